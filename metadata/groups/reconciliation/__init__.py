"""The consumer group protocol of KIP-848: the coordinator assigns, and each member follows by its heartbeats. Pure.

    heartbeat.py ─▶ membership ─▶ group epoch ─▶ target.py: the target assignment ─▶ reconcile.py: one member's next step
    group.py        the group as its coordinator holds it       topic_pattern.py   subscriptions by regular expression
    model.py        the state that is stored

Entry: `beaten` in group.py.

Invariants:
- A partition belongs to one member at most. Its next owner receives it after the owner gave it up, left, or was removed.
- The group epoch rises with each change of members, subscriptions or topics. The epoch of a member never passes it.
- A request that is refused has changed nothing.

Must not import metadata/group_member, or anything above metadata.
"""
