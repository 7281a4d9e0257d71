"""Implements `tidelog replay`: copies a range of a topic's history into a topic, Parquet files or a table.

    command.py ─▶ plan.py (pure) ─▶ replay.json, beside Spark's checkpoint
                     └─▶ replay.py: readStream of exactly these offsets ─▶ filter ─▶ writeStream, batch after batch
                              └─▶ a batch query counts the same range   =   rows in the target

Entry: `replay` in replay.py.

Invariants:
- Each record of the range is written once, across interruptions.
- The offsets are pinned when a replay begins; a different request with the same checkpoint is refused.
- A refused replay has written nothing.
- The final count uses another way than the write.

Must not import the gateway or compaction. Checks of target topics go through the SDK.
"""
