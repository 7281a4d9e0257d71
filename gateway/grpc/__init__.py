"""Serves gRPC: the protocol of the SDK, and of brokers among each other.

    server.py ─▶ guard.py ─▶ calls.py ─▶ services/ | produce/ | fetch/ | consume/

Entry: `GrpcServer` in server.py. calls.py turns bytes into messages and errors into statuses; limits.py and anonymous_streams.py
bound open calls; slow_readers.py ends connections of clients that do not read.

Invariants:
- The guard checks a call before its handler runs.
- A message is read only when the buffer has room for it.

Asks the broker only through gateway/api.py. Must not import gateway/http.
"""
