"""Deletes what no manifest names any more: Parquet files, segments, and topics that were deleted.

Entries: `GarbageCollector` in collector.py; `trim_wal` in wal_trim.py. compaction/deletion_policy.py decides (pure).

Invariants:
- A segment is marked as trimmed first, and deleted after the grace period, in order.
- A topic's files go only after a marker of its deletion is on the bucket.
- Age is measured by the object store's clock.

Must not import compaction/conversion or compaction/maintenance.
"""
