"""Holds the records by which brokers find each other: registrations, leaders and epochs, ids, and notices of newer manifests.

Each record has its stored form and a cache that follows it by a watch. Entries: `PartitionCache` (leadership_cache.py),
`BrokerCache` (broker_registry.py). Imports only the store and the modules at the top of metadata.
"""
