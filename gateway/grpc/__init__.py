"""Serves gRPC: the protocol of the SDK and of brokers among each other.

    server.py ─▶ guard.py ─▶ calls.py ─▶ services/ | produce/ | fetch/ | consume/

Asks the broker only through gateway/api.py. Must not import gateway/http: what both need lies below them.
"""
