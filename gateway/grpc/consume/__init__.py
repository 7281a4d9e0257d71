"""Implements the Consume stream, which pushes records to a client that has no SDK.

service.py reads the first message; standalone.py or member.py chooses partitions; delivery.py pushes within the client's credit.
"""
