"""Lists, describes, resets and deletes consumer groups for operators.

    admin.py (any broker) ─▶ local_admin.py (the coordinator) ─▶ lag.py, seek.py
                        └─▶ topic_readers.py (any broker)    ─▶ lag.py

Entry: `GroupAdmin` in admin.py. topic_readers.py finds the groups that read a topic; lag.py computes lag in records and seconds;
seek.py computes the offsets of a reset (pure).

Invariants:
- A forwarded call is not forwarded again.
- `validate_only` checks everything and changes nothing.

Must not import a listener.
"""
