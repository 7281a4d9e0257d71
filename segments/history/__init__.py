"""Holds compacted records: Parquet files, and the manifests that name them.

manifest.py is the stored form, manifest_edits.py makes the next one (pure), manifest_store.py reads and commits them by create-only
writes, parquet_file.py writes and reads files. Must not import read/, recovery/, log/.
"""
