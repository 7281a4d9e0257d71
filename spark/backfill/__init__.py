"""Implements `tidelog backfill`: compacts the waiting segments on Spark's executors.

    command.py ─▶ backfill.py ─▶ plan.py (pure) ─▶ executors make files ─▶ the driver commits manifests

Entry: `backfill` in backfill.py.

Invariant: a backfill beside running compactors changes no record; of two commits of one manifest version, one is discarded.
"""
