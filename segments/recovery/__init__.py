"""Restores partitions from the sessions of earlier leaders, before a new leader serves them.

    takeover_prefetch.py ─▶ recover.py ─▶ footer_cache.py ─▶ session_runs.py ─▶ recovered_partition.py

Entry: `recover` in recover.py. takeover_prefetch.py starts reading while the former leader still writes. missing_manifests.py
refuses partitions whose Parquet files are newer than their manifests.

Invariants:
- Only sealed or released sessions are read to their end.
- The end offset is what the footers say, never what a process remembered.
- A session whose claim is missing is damage, not an empty session.
- A partition that ends before a record of its Parquet files is damage, not a shorter partition.

Must not import segments/read or segments/log.
"""
