"""Runs the client side of a consumer group: joining, syncing, heartbeats, and the assignment of partitions by the member that
leads; and decides where a member begins in each partition (start_offsets.py).

Used by the SDK, by the broker's HTTP and Consume members, and by the simulation. The caller brings the connection
(interfaces.py) and what is done with partitions (interfaces.py). Entry: `GroupMember` in member.py.
"""
