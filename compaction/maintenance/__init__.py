"""Rewrites Parquet files that are there: retention, merges of small files, and compaction by key.

Entry: maintainer.py, one partition after the other. Plans (retention.py, merge_plan.py, key_compaction.py, key_map.py) are pure.
"""
