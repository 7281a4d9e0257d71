"""Reads topics into Spark, in batches and as a stream, from the bucket alone.

    options.py ─▶ topic_catalog.py ─▶ log_snapshot.py ─▶ offset_ranges.py ─▶ scan_plan.py ─▶ task_reader.py

Entry: `TidelogSource` in reader.py. Must not import the SDK, the gateway or compaction.
"""
