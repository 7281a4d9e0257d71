"""Finds segments that are not compacted yet: lists sessions, reads footers, keeps the runs that wait.

    scanner.py (reads the bucket) ─▶ state.py, pending_runs.py (decide, pure)

Entry: `WalScanner` in scanner.py.

Invariants:
- A run counts as committed only when no seal can stand before its segment.
- Memory is bounded by the number of runs; what does not fit is read again later.

Must not import the packages that act on what it finds: conversion, maintenance, gc.
"""
