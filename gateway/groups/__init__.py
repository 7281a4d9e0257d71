"""Coordinates consumer groups: the groups of this broker, and the way to the coordinator of any other group.

    service.py ─▶ router.py ─▶ coordinator.py (here) ─▶ group.py      the decisions are in metadata/groups
                           └─▶ the coordinating broker, over gRPC     coordinator_lookup.py names it

Entry: `GroupService` in service.py. coordinator_lease.py proves that this broker may answer for a group; maintenance.py expires
offsets and groups; metrics.py keeps figures for Prometheus. admin/ serves operators.

Invariants:
- A step of a group is stored before its members receive the answer.
- A commit of an older generation, or of another epoch of its member, is refused.
- A broker that cannot prove its view of the cluster answers no member.

Must not import a listener; http/ and grpc/ call it.
"""
