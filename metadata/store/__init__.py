"""Stores metadata behind one interface: a versioned key-value store with transactions, leases and watches.

    interface.py ◀── sqlite/ (one broker)     open.py chooses by the settings
                 ◀── etcd/   (a cluster)      instrumented.py counts the calls of either

Owns every key (keys.py), the size limits of a transaction, batches of guarded writes, and the watches that caches are built on.
Entry: `MetadataStore` in interface.py. Must not import the packages beside it, which store their records through it.
"""
