"""Implements the services with one answer a call: log, groups, topics, cluster and access.

Entries: `LogService` (log.py), `GroupsService` (groups.py), `GrpcGroupAdmin` (group_admin.py), `TopicsService` and `ClusterService`
(admin.py), `AccessService` (access.py).

Invariants:
- A service checks names and rights, calls gateway/api.py, and translates the answer to protobuf. It decides nothing.
- A call that another broker forwarded is answered here, and not forwarded again.

Must not import the HTTP or Kafka listener.
"""
