"""Measures what the cluster takes of its bucket, and forecasts what that costs.

    counters of this broker ─▶ topic_rates.py ─▶ broker_usage.py ─┬▶ cluster_usage.py ─▶ storage_report.py ─▶ GET /v1/storage
                                    the other brokers (gRPC) ─────┘        └───────────▶ cost_forecast.py ──▶ GET /v1/costs
    LIST, now and then ─▶ bucket_tally.py ─▶ bucket_snapshots.py ──────────┘
    compaction/audit/ ─▶ verification.py                                                                      /v1/verification

Entry: `UsageService` in service.py; the broker runs it as a task.

Invariants:
- A request reads memory, and asks the other brokers at most once in some seconds. Only a snapshot lists the bucket: it is made when
  it is asked for, once a minute or more rarely, and lists at most so many pages.
- Memory is bounded by the number of topics, of which those beyond a bound are counted together.
- What is not known is left out and named: a silent broker, a snapshot that ended early, a compactor of its own.

Must not import listeners.
"""
