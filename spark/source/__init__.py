"""Reads topics into Spark, in batches and as a stream, from the bucket alone.

    options.py ─▶ topic_catalog.py ─▶ log_snapshot.py ─▶ offset_ranges.py ─▶ scan_plan.py ─▶ task_reader.py

Entry: `TidelogSource` in reader.py; stream_reader.py for streams. Option names are those of Spark's Kafka source.

Invariants:
- A batch query plans from one snapshot of the bucket.
- Records that expired or were deleted fail the query unless `failOnDataLoss` is false.

- Filters on `partition`, `offset` and `timestamp` save reads if `spark.sql.python.filterPushdown.enabled` is on;
  `source/reader.py` explains how. `.schema("value binary")` reads only these columns.
- `pyspark_tidelog.read` reads compacted records through Spark's own Parquet reader: files that lie within the range
  unfiltered, cut files filtered by offset, the tail through the data source. Offsets and files are pinned at the call. Spark
  gets its files as a streaming query's log (`_spark_metadata`), so 10,000 files cost half a second. `ignoreMissingFiles` and
  `ignoreCorruptFiles` are off. Parquet's page CRC-32 is checked; the manifest's CRC-32C is not. If a file was collected, Spark
  fails with `FAILED_READ_FILE.FILE_NOT_EXIST`. `s3://` becomes `s3a://`. Spark Connect is refused.

Must not import the SDK, the gateway or compaction.
"""
