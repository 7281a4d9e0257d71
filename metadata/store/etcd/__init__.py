"""Implements the metadata store on an etcd cluster, over its gRPC protocol.

    store.py ──▶ client.py (failover, tokens, limits) ──▶ member.py (one member's channel)
    watch.py ──▶ watch_batches.py (pure: answers of a watch become whole transactions)

settings.py and settings.py stay free of gRPC, because brokers without etcd load them, too. Only open.py of the parent package, the
command line and tests import the rest.
"""
