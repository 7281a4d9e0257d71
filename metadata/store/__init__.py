"""Stores metadata behind one interface: a versioned key-value store with transactions, leases and watches.

    interface.py ◀── sqlite/ (one broker)     open.py chooses by the settings
                 ◀── etcd/   (a cluster)      instrumented.py counts

Entry: `open_metadata` in open.py. keys.py spells every key; range_watch.py keeps a reader in step with a prefix; write_batcher.py
joins small writes.

Invariants:
- Both stores pass one contract suite, and refuse the same transactions.
- A lost answer is OutcomeUnknown, never Unavailable.

Must not import what is stored in it: topics, groups, cluster, access.
"""
