"""Restores a cluster's metadata from its bucket, without a broker. compaction/audit/ verifies a bucket.

    restore_evidence.py ─▶ restore_plan.py, and snapshot_contents.py, restored_offsets.py (pure) ─▶ unnamed_files.py ─▶ restore.py

Entry: `tidelog cluster restore` calls restore.py.

Invariant: a restore seals every session before it reads, and writes only into an empty metadata store.

Must not import the client, a broker's listener or the command line.
"""
