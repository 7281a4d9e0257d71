"""Decides what happens in a consumer group. Pure, but for reading stored offsets.

    join.py ──▶ rebalance_barrier.py ──▶ state_machine.py (sync, heartbeat, commit, leave)     on the values of model.py

Owns the stored form of groups (record.py) and of committed offsets (offsets.py), the wire form of assignments
(consumer_protocol.py) and the assignors. Sources: Kafka's group coordinator, KIP-62, KIP-345.
"""
