"""Implements `tidelog backfill`: compacts the waiting segments on Spark's executors.

    command.py ─▶ backfill.py ─┬─▶ plan.py (pure: units of a wave)
                               ├─▶ executors: segments ─▶ Parquet files, uploaded and read back
                               └─▶ driver: creates the manifests, then plans the next wave

Entry: `backfill` in backfill.py. mirrored_topics.py supplies topics and settings from their mirror on the bucket.

It owns no format: compaction/conversion writes the files and commits them.

Invariants:
- A backfill beside running compactors changes no record. Of two manifests with one version, one is discarded.
- Only the driver creates manifests; an executor that dies leaves files that no manifest names.
- It deletes nothing: compactors trim the segments.

Must not import the gateway, the SDK's client or the metadata store: the bucket is enough.
"""
