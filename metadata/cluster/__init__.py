"""Holds the records by which brokers find each other: registrations, leaders and epochs, ids, manifest notices.

Entries: `PartitionCache` (leadership_cache.py), `BrokerCache` (broker_registry.py), `ManifestNoticeCache` (manifest_notices.py),
`ProducerIds` (id_allocation.py), `take_node_id` (node_ids.py). leadership.py draws the stored state of a partition.

Invariants:
- The leader epoch of a partition grows by one with each leader.
- The node id of a broker id never changes.
- A session that may hold records of a partition above its manifest is in the partition's list of sessions.

Must not import metadata/controller, metadata/groups or anything above metadata.
"""
