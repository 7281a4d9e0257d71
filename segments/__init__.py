"""The log on the bucket: record batches, segments, commit, recovery, Parquet history, reads and object stores.

    log/ ─▶ read/ | recovery/ ─▶ partition/ ─▶ history/ ─▶ wal/ ─▶ records/ | bucket/ ─▶ object_store/

Entry: `SessionLog` in log/session_log.py. settings.py bounds time and memory; byte_budget.py is the back-pressure.

Invariants:
- What says which records exist is on the bucket, decided by create-only PUTs.
- Offsets of a partition are dense, and each is given once.
- Readers see a committed prefix.

Must not import the gateway, compaction or a metadata store. A partition is a topic id and a number, and a session is a number.
"""
