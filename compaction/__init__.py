"""Rewrites the log in the background: segments become Parquet, and Parquet is merged, expired and deleted.

    service.py ─▶ compactor.py ─▶ wal/ (what waits) ─▶ conversion/ (to Parquet) ─▶ maintenance/ ─▶ gc/

Entry: `Compactor` in compactor.py; its `tick` is a list of named steps. work_sharing.py divides the work between compactors.
audit/ verifies a bucket, for the command line and the console.

Invariants:
- A compactor decides from the bucket alone; the manifest is the only commit point.
- Records expire by the settings that topics have now, as the metadata store confirms, and in no copy that has lost.
- Nothing is deleted that a manifest or an untrimmed segment names, nor within the grace period.
- Offsets, counts and checksums are the same before and after.

Must not import gateway or tidelog.
"""
