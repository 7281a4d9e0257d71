"""Implements Fetch: a long poll over many partitions, answered with record batches or structured records.

    service.py ─▶ gateway/routing ─▶ response_encoder.py

Entry: `GrpcFetch` in service.py. response_encoder.py puts batches into the answer with one copy.

Invariants:
- A reader's leader epoch is checked by the leader, and a stale one is refused (KIP-320).
- A Fetch reserves memory for its answer before it reads.

Must not import the HTTP or Kafka listener.
"""
