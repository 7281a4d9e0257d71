"""Wraps the asynchronous client for callers without an event loop.

    caller's thread ─▶ client.py, readers.py ─▶ thread.py (an event loop in a background thread) ─▶ tidelog/client.py

Entry: `BlockingClient` in client.py, which `tidelog.connect_sync` returns.

Invariant: each method has the same parameters, results and errors as its asynchronous twin.

Must not import the command line.
"""
