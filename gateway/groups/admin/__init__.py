"""Lists, describes, resets and deletes consumer groups for operators.

    admin.py (any broker) ─▶ local_admin.py (the coordinator) ─▶ lag.py, seek.py
                        └─▶ topic_readers.py (any broker)    ─▶ lag.py
    lag_history.py (any broker) ─▶ lag_samples.py ◀─ the figures of ../metrics.py, and other brokers

Entry: `GroupAdmin` in admin.py. topic_readers.py finds the groups that read a topic; lag.py computes lag in records and seconds;
seek.py computes the offsets of a reset (pure). lag_history.py has the lag of the last hour while clients ask; lag_samples.py
holds its samples (pure).

Invariants:
- A forwarded call is not forwarded again.
- `validate_only` checks everything and changes nothing.

Must not import a listener.
"""
