"""Decides what happens in a consumer group. Pure, except for reading stored offsets.

    classic/           groups with generations: JoinGroup, SyncGroup, Heartbeat
    reconciliation/    groups of KIP-848: each heartbeat brings a member nearer to its target assignment

Both work on the values of model.py. record.py and offsets.py own the stored forms; consumer_protocol.py has Kafka's bytes;
assignors.py assigns partitions.

Invariants:
- At most one member owns a partition in a generation.
- A member of an older generation changes nothing.
- A waiting member keeps its partitions for as long as a rebalance takes.

Must not import metadata/group_member.
"""
