"""Coordinates consumer groups: the groups of this broker, and the way to the coordinator of any other.

    service.py ─▶ router.py ─▶ coordinator.py (here) ─▶ group.py       the decisions are in metadata/groups
                           ─▶ the coordinator elsewhere, by coordinator_lookup.py
    start_offsets.py finds where members begin whose partitions a listener reads for them
    coordinator_lease.py proves that this broker may still answer

Must not import a listener (http/, grpc/).
"""
