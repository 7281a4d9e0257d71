"""Resolves and describes topics and partitions for all listeners, and changes them on behalf of administrators.

Must not import a listener (http/, grpc/), groups/ or records/.
"""
