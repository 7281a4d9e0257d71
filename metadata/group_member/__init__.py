"""Runs the client side of a consumer group: join, sync, heartbeat, and the assignment by the leading member.

    member.py ─▶ rebalance.py ─▶ state.py (pure)     heartbeats.py beside it     interfaces.py: what the caller brings

Entry: `GroupMember` in member.py. The SDK, the broker's HTTP and Consume members and the simulation share it.

Invariants:
- A member stops reading a partition before another member may own it.
- A member that has heard nothing for a session timeout stops reading.

Must not import metadata/controller, or anything above metadata.
"""
