"""Holds the state of a partition that this broker leads: offsets, producers and their sequences. Pure.

Entries: `PartitionLog` (partition_log.py), `LeaderPartitions` (leader_partitions.py).
"""
