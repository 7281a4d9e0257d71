"""Implements the metadata store in one SQLite file, for a single broker.

store.py runs SQLite in a thread and feeds watches; mvcc.py holds the tables of revisions; errors.py translates SQLite's errors.
Only open.py of the parent package imports this one.
"""
