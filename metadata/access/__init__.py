"""Holds who may do what: API keys, ACLs and quotas, with their stored forms, their registry and a cache for the hot path.

acl.py decides (pure), registry.py changes the records, cache.py follows them by a watch. Nothing here knows of HTTP or gRPC.
"""
