"""Copies the metadata to one object, and marks a cluster that is being restored.

Entries: `Snapshot` in snapshot.py (stored form, pure); `RestoreState` in restore_state.py.

Invariants:
- A snapshot holds all keys without a lease at one revision.
- No broker starts and no controller is elected while the restore mark is present.
- Revisions on the bucket never fall: a restore sets a base that is added to each later one.

Must not import the packages beside it (groups, access, topics, cluster), or anything above metadata.
"""
