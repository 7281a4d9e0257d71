"""Holds topics: stored form, settings, the registry that changes them, and a cache for the hot path.

Entries: `TopicRegistry` (registry.py), `TopicCache` (cache.py). topic.py and settings.py are pure.

Invariants:
- A topic is one key; its id is new each time a topic of that name is created.
- The number of partitions only grows.

Must not import metadata/controller, metadata/groups or anything above metadata.
"""
