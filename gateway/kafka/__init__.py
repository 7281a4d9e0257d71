"""Serves Kafka's wire protocol, so that every Kafka client works unchanged.

    socket ─▶ connection.py ─▶ requests.py ─┬▶ produce.py: appended within the call that received it
                                            └▶ handlers.py ─▶ fetch · list_offsets · metadata · groups · producer_ids …
    answers ◀─ connection.py, in the order of the requests

Entry: `KafkaServer` (server.py), which opens the listeners that listener_config.py reads from the settings. protocol/ is the codec.

Invariants:
- Answers of a connection leave in the order of its requests, and its batches are appended in the order of their arrival.
- An API is served only in a version that ApiVersions advertises.
- All answers on one listener name a broker by the same number and the same address (leaders.py).
- An error of one partition has its place in the answer; errors.py gives it a code that clients of that API expect.
- A request is handled only after its client has authenticated, if authentication is on (access/).

Must not import gateway/http or gateway/grpc.
"""
