"""Implements the Consume stream, which pushes records to clients that have no SDK.

    service.py (first message) ─▶ standalone.py | member.py (which partitions) ─▶ start_offsets.py ─▶ delivery.py (by credit)

Entry: `GrpcConsume` in service.py. partitions.py keeps the position of each partition and what the client may commit; messages.py
translates between protobuf and the package's values.

Invariants:
- Records of a partition arrive in the order of their offsets, within the client's credit.
- A member's stream delivers only partitions that the member owns.
- Every partition of a subscribed topic is delivered, also one that is added later.

Must not import the HTTP or Kafka listener.
"""
