"""Holds API keys, ACLs and quotas: stored forms, registry, and a cache for the hot path.

Entries: `AccessRegistry` (registry.py) changes records; `AccessCache` (cache.py) follows them by watches. acl.py, api_key.py and
quota.py decide (pure).

Invariants:
- The store holds a digest of a key, never the key.
- The cache knows how old its proof is, so that a broker can stop trusting it.

Must not import metadata/controller, metadata/groups or a listener: it knows neither HTTP nor gRPC.
"""
