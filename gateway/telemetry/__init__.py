"""Observes the broker: the registry of metrics, the context of the request that is served, and traces (OTLP).

    counted there, declared there (metadata/measurements.py)  ─▶ registry.py ─▶ /metrics, docs/metrics.md
      listeners                traffic.py                        process, event loop     process_metrics.py
      bucket, metadata store   store_metrics.py over             segments, reads         segments/counters.py
                               object_store/instrumented.py,     log, partitions         log_metrics.py
                               metadata/store/instrumented.py    broker, cluster         gateway/broker_metrics.py
      groups                   gateway/groups/metrics.py,        compaction              compaction/metrics.py
                               group.py, expiry.py               reads of other racks    gateway/routing/follower_fetch.py
      audit log                gateway/access/audit_log.py

Invariants: the name, help text, kind and labels of a metric stand in one place, the field that is counted; counting costs an
addition for each request or segment, never for each record; a scrape answers from memory.
Must not import what it observes: measures receive values or narrow interfaces.
"""
