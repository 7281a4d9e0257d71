"""Holds compacted records: Parquet files, and the manifests that name them.

    manifest.py (stored form) ─▶ manifest_edits.py (the next version, pure) ─▶ manifest_store.py (create-only PUT)
    index.py ─▶ parquet_file.py ─▶ row_group_batches.py

Entries: manifest_store.py reads and commits manifests; `HistoryIndex` finds row groups; `HistoryWriter` encodes files.

Invariants:
- The highest manifest version counts; of two writers of one version, one wins and the other plans again.
- `compacted_to` and the log start never fall.
- A manifest names a file only after the file is on the bucket.

Must not import segments/partition, segments/read or segments/log.
"""
