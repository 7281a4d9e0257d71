"""Serves fetches from memory, from the local disk, or from the bucket.

    read_path.py ─▶ log_reader.py ─▶ fetch_plan.py ─▶ tail_cache.py (just written)
                                                   ─▶ read_cache.py ─▶ disk_cache.py ─▶ cached_run.py, cached_row_group.py
                                     row_group_loader.py reads Parquet; follower_reader.py reads what another broker leads

Entry: `ReadPath` in read_path.py. Must not import log/ or recovery/.
"""
