"""Reads a bucket without a broker: audits it, and restores a cluster's metadata from it.

    audit.py, history_audit.py ─▶ findings.py
    restore_evidence.py ─▶ restore_plan.py, snapshot_contents.py (pure) ─▶ restore.py

Entries: `tidelog bucket verify` calls audit.py, `tidelog cluster restore` calls restore.py.

Invariants:
- An audit writes nothing.
- A restore seals every session before it reads, and writes only into an empty metadata store.

Must not import the client, a broker's listener or the command line.
"""
