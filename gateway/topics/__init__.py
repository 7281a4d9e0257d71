"""Resolves, describes and changes topics and partitions for all listeners.

- names.py: from names and ids in a request to partitions.
- describe.py: what listeners answer about topics, from this broker's watches.
- `TopicAdmin` in admin.py: changes of topics, which return when every partition has a leader.
- usage/: what topics take of the bucket, and what that costs.

Invariant: a name is checked against the caller's rights where it is resolved, in names.py.

Must not import a listener, gateway/groups or gateway/records.
"""
