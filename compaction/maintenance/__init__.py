"""Maintains Parquet files: retention, merges of small files, and key compaction.

    maintainer.py ─▶ retention.py | merge_plan.py | key_compaction.py (plans, pure) ─▶ merge.py | key_pass.py ─▶ replace_files.py

Entry: `HistoryMaintainer` in maintainer.py, one partition after the other.

Invariants:
- Retention removes only whole files at the start of the log.
- Key compaction keeps the last record of each key and all records younger than `min.compaction.lag.ms`.
- Replaced files stay for the grace period.

Must not import compaction/conversion or compaction/gc.
"""
