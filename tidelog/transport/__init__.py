"""Connects the SDK to brokers: addresses, channels, credentials, routes to leaders, and what an RPC error means.

Entry: `Connection` in connection.py. Must not import the producer, the consumer or the group.
"""
