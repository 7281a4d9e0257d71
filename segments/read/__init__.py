"""Serves fetches from memory, from the local disk, or from the bucket.

    read_path.py ─▶ log_reader.py ─▶ fetch_plan.py ─▶ tail_cache.py (just written)
                                                  ─▶ read_cache.py ─▶ disk_cache.py ─▶ run_loader.py | row_group_loader.py

Runs of one segment that are wanted at the same time are read with one GET: run_ranges.py.

Entry: `ReadPath` in read_path.py. follower_reader.py reads what another broker leads (KIP-392); record_lookup.py finds records by
time.

Invariants:
- A fetch ends at the high watermark.
- A damaged batch is reported with its object and byte range, never skipped.
- Memory of reads stays within its budgets, whatever clients ask.

Must not import segments/recovery or segments/log.
"""
