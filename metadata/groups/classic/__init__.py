"""Decides what happens in a classic consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup with generations. Pure.

    join.py ─▶ rebalance_barrier.py ─▶ state_machine.py (sync, heartbeat, commit, leave)      on the values of ../model.py

Groups of the protocol of KIP-848 are in ../reconciliation.

Invariants:
- At most one member owns a partition in a generation.
- A member of an older generation changes nothing.
- A waiting member keeps its partitions for as long as a rebalance takes.

Entry: `join` in join.py for members that come, state_machine.py for everything after.
"""
