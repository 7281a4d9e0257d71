"""Observes the broker: the registry of metrics, collectors, the context of the current request, and traces.

Entries: `MetricsRegistry` (registry.py) serves /metrics; `RequestContext` (request_context.py) follows a request through the log,
the metrics and the traces; `OtlpTracer` (otlp.py) exports spans.

Collectors: log_metrics.py, store_metrics.py, process_metrics.py and traffic.py here; gateway/groups/metrics.py,
gateway/broker/metrics.py and compaction/metrics.py beside what they count.

Invariants:
- Counting is per batch, request or message, never per record.
- Prometheus objects are made at the scrape, in a thread.

Must not import what it observes: collectors receive values or narrow interfaces.
"""
