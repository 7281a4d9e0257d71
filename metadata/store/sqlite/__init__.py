"""Implements the metadata store in one SQLite file, for a single broker.

    store.py (thread, watches) ─▶ mvcc.py (tables of revisions, leases)

Entry: `SqliteStore` in store.py. errors.py translates SQLite's errors.

Invariants:
- A transaction is durable when it is answered (synchronous=FULL).
- The files belong to the user of the process alone (0600).

Only open.py of the parent package imports this one.
"""
