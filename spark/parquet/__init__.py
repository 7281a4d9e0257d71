"""Reads compacted records with Spark's own Parquet reader, and only the uncompacted tail through the data source.

    read.py ─▶ plan.py (pure: which files whole, which in part) ─▶ files.py, s3a.py ─▶ Spark's reader
               └─▶ [compacted_to, end) ─▶ the data source of spark/source

Entry: `read` in read.py, which users call as `pyspark_tidelog.read`.

Invariants:
- Offsets and files are pinned at the call; a file that is gone fails the query.
- Options of Spark's session cannot make the read skip a missing or corrupt file.
- Credentials never become options of the read (s3a.py).

Must not import the SDK, the gateway or compaction.
"""
