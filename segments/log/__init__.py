"""Appends to and reads from the log of one session: the top of this folder.

    session_log.py ─▶ wal/ (write) | partition/ (state) | read/ (fetch) | history/ (manifests)

Entry: `SessionLog` in session_log.py. append_result.py is what a producer waits for; seal_check.py looks for its seal;
manifest_follower.py adopts newer manifests and commits DeleteRecords.

Invariants:
- An append is acknowledged after its segment and all earlier ones of the session are committed.
- A refusal by a replaced leader counts only if this broker still led (`UnverifiedRejection`).

Must not import the gateway or compaction.
"""
