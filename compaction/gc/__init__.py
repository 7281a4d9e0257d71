"""Deletes what no manifest names any more: Parquet files, segments, and whole topics that were deleted.

Entry: collector.py. What may be deleted is decided by compaction/deletion_policy.py (pure).
"""
