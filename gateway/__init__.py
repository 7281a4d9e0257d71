"""The broker: listeners for HTTP, gRPC and Kafka over request routing, cluster membership and the controller.

    process/ ─▶ broker.py ─▶ http/ | grpc/ | kafka/ ─▶ api.py
                                     │ groups/ records/ topics/ access/   what all listeners share
                                     ▼
                                  routing/ ─▶ cluster/ ─▶ controller/     telemetry/ net/ concurrency/ proto/ below all

Entry: `Broker` in broker.py builds the parts, owns their tasks and stops them in order; settings.py reads all settings.

Invariants:
- A listener keeps no state of the log, so clients may use any broker.
- Every error reaches clients through the one table in error_codes.py.
- Imports run downwards in the picture; the listeners do not import each other (import contracts in pyproject.toml).

Must not import the SDK (tidelog/) or spark/.
"""
