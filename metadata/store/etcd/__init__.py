"""Implements the metadata store on an etcd cluster, over its gRPC protocol.

    store.py ─▶ client.py (failover, tokens, time limits) ─▶ member.py (one member's channel)
    watch.py ─▶ watch_batches.py (pure: answers of a watch become whole transactions)

Entry: `EtcdStore` in store.py. errors.py says of each failure whether anything was written.

Invariant: a watch resumes behind the last revision that it delivered, or reports that the range must be read again.

Must not import metadata/store/sqlite.
"""
