"""Holds topics: their stored form, their settings, the registry that changes them, and a cache for the hot path.

topic.py and settings.py are pure. Entries: `Topics` (registry.py), `TopicCache` (cache.py).
"""
