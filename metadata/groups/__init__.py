"""Decides what happens in a consumer group. Pure, except for reading stored offsets.

    join.py ─▶ rebalance_barrier.py ─▶ state_machine.py (sync, heartbeat, commit, leave)      on the values of model.py

record.py and offsets.py own the stored forms; consumer_protocol.py has Kafka's bytes; assignors.py assigns partitions.

Invariants:
- At most one member owns a partition in a generation.
- A member of an older generation changes nothing.
- A waiting member keeps its partitions for as long as a rebalance takes.

Entry: `join` in join.py for members that come, state_machine.py for everything after. Must not import metadata/group_member.
"""
