"""Wraps the asynchronous client for callers without an event loop. Entry: `BlockingClient` in client.py."""
