"""Appends and decodes records for all listeners: targets, partitioning, idempotency, budgets of responses.

Entry: append.py. Must not import a listener (http/, grpc/) or groups/.
"""
