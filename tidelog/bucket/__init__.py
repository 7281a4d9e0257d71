"""Reads a bucket without a broker: audits it, and restores a cluster's metadata from it.

    audit.py, history_audit.py, trimmed_segments.py ─▶ findings.py
    restore_evidence.py ─▶ restore_plan.py, and snapshot_contents.py, trimmed_segments.py, restored_offsets.py (pure) ─▶ restore.py

Entries: `tidelog bucket verify` calls audit.py, `tidelog cluster restore` calls restore.py.

Invariants:
- An audit writes nothing.
- A restore seals every session before it reads, and writes only into an empty metadata store.

Must not import the client, a broker's listener or the command line.
"""
