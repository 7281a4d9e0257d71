"""Implements `tidelog replay`: copies a range of a topic's history into a topic, Parquet files or a table.

    command.py ─▶ plan.py (pure, kept in the checkpoint) ─▶ replay.py

Entry: `replay` in replay.py.

Invariants:
- Each record of the range is written once, across interruptions.
- A refused replay has written nothing.
"""
