"""Reads compacted records by Spark's own Parquet reader. Must not import the SDK, the gateway or compaction."""
