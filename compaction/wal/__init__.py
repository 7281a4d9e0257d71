"""Finds segments that are not compacted yet: lists sessions, reads footers, and keeps the runs that wait.

scanner.py reads the bucket; state.py and pending_runs.py decide (pure).
"""
