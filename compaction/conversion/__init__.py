"""Turns runs of segments into Parquet files and commits them by the next manifest.

planner.py (pure: which runs make a unit) ─▶ compact_unit.py ─▶ unit_files.py ─▶ partition_file.py, scratch.py
"""
