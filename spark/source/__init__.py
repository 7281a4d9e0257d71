"""Reads topics into Spark, in batches and as a stream, from the bucket alone.

    options.py ─▶ topic_catalog.py ─▶ log_snapshot.py ─▶ offset_ranges.py ─▶ scan_plan.py ─▶ task_reader.py

Entry: `TidelogSource` in reader.py; stream_reader.py for streams. Option names are those of Spark's Kafka source.

Invariants:
- A batch query plans from one snapshot of the bucket.
- Records that expired or were deleted fail the query unless `failOnDataLoss` is false.

Must not import the SDK, the gateway or compaction.
"""
