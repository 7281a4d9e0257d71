"""Turns runs of segments into Parquet files and commits them by the next manifest.

    planner.py (pure: which runs make a unit) ─▶ convert_unit.py ─▶ unit_files.py ─▶ partition_file.py, scratch.py

Entry: `convert_unit` in convert_unit.py.

Invariants:
- Each segment of a unit is read once.
- A file is checked against the batches behind it before the upload.
- A damaged run stops its own partition only.

Must not import compaction/maintenance or compaction/gc.
"""
