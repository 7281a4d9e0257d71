"""Serves the consumer group protocol of KIP-848 on the Kafka listeners.

    heartbeats.py     ConsumerGroupHeartbeat   members join, follow their assignment, and leave
    descriptions.py   ConsumerGroupDescribe    operators see members, with what they own and what they shall own

Entries: `heartbeats.py` for members, `descriptions.py` for operators. metadata/groups/reconciliation decides; gateway/groups
coordinates.

Invariant: a refused heartbeat has changed nothing in the group.

Must not import the other listeners.
"""
