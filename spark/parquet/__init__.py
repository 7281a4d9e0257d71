"""Reads compacted records with Spark's own Parquet reader, and only the uncompacted tail through the data source.

    read.py ─▶ plan.py (pure: which files whole, which in part) ─▶ files.py, s3a.py

Entry: `read` in read.py.

Must not import the SDK, the gateway or compaction.
"""
