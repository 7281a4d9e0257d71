"""Appends to and reads from the log of one session: the top of this folder.

session_log.py joins writing (wal/), partitions (partition/), reading (read/) and manifests (history/). seal_check.py looks for a
seal that a newer leader has set, manifest_follower.py follows what compaction has written. Entry: `Log` in session_log.py.
"""
