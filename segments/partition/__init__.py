"""Holds the state of a partition at its leader: offsets, producers, sequences. Pure.

Entries: `PartitionLog` assigns offsets and checks leader epochs; `LeaderPartitions` in leader_partitions.py holds
what a session leads; producer_state.py recognizes repeats of idempotent producers.

Invariants:
- Offsets are assigned in the order of appends, without gaps.
- A batch of an idempotent producer is appended once; its repeat gets the same offsets.
- The high watermark never falls.

Must not import segments/read, segments/recovery or segments/log.
"""
