"""Writes the dashboard that the chart installs: `python deploy/observability/dashboard.py`. A test sees that the file is fresh,
another one that no expression in it is empty on the metrics of a real cluster.

Twelve panels for who asks "is it well, and what does it cost?", and a row below them for who looks for the reason. One board for
all: `cluster` and `job` are variables, and both match where their label is missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "helm" / "files" / "dashboard.json"
OF = 'cluster=~"$cluster", job=~"$job"'
CLIENTS = f'{OF}, listener!="peer"'
RATE = "$__rate_interval"


class Target(NamedTuple):
    legend: str
    expression: str
    # Where it is another than the panel's: on the right axis.
    unit: str = ""


class Panel(NamedTuple):
    title: str
    unit: str
    description: str
    targets: tuple[Target, ...]


def rate(metric: str, by: str, of: str = OF, window: str = RATE) -> str:
    return f"sum by ({by}) (rate({metric}{{{of}}}[{window}]))"


def quantiles(metric: str, of: str = OF, *, legend: str = "", shares: tuple[float, ...] = (0.5, 0.95, 0.99)) -> tuple[Target, ...]:
    return tuple(
        Target(f"{legend}p{share * 100:g}", f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'le', of)})")
        for share in shares
    )


PANELS = (
    Panel(
        "Brokers and leases",
        "short",
        "Ready brokers, leases that hold, and partitions without a leader, which can be neither written nor read.",
        (
            Target("ready", f"sum(tidelog_ready{{{OF}}})"),
            Target("leases held", f"sum(tidelog_lease_held{{{OF}}})"),
            Target("{{state}}", f"max by (state) (tidelog_brokers{{{OF}}})"),
            Target("partitions without leader", f"max(tidelog_partitions_without_leader{{{OF}}})"),
        ),
    ),
    Panel(
        "Bytes in and out",
        "Bps",
        "Bytes of produce requests, and of answers with records, by listener.",
        (
            Target("in, {{listener}}", rate("tidelog_produced_bytes_total", "listener", CLIENTS)),
            Target("out, {{listener}}", rate("tidelog_fetched_bytes_total", "listener", CLIENTS)),
        ),
    ),
    Panel(
        "Records in and out",
        "cps",
        "Records that were accepted, and that readers got, by listener.",
        (
            Target("in, {{listener}}", rate("tidelog_produced_records_total", "listener", CLIENTS)),
            Target("out, {{listener}}", rate("tidelog_fetched_records_total", "listener", CLIENTS)),
        ),
    ),
    Panel(
        "Produce latency",
        "s",
        "From reading a request to its answer: the commit on the bucket, unless the producer asked for less.",
        quantiles("tidelog_produce_seconds", CLIENTS),
    ),
    Panel(
        "Fetch latency",
        "s",
        "Answers with records, since they could be had: the wait of a long poll is not in here.",
        quantiles("tidelog_fetch_seconds", CLIENTS),
    ),
    Panel(
        "Errors by code",
        "cps",
        "What was refused or failed. The codes are those of the answers.",
        (Target("{{code}}", rate("tidelog_errors_total", "code", CLIENTS)),),
    ),
    Panel(
        "End to end",
        "s",
        "From a segment's first batch to its commit, and to the readers that wait at the tail.",
        (
            *quantiles("tidelog_commit_seconds", legend="commit ", shares=(0.5, 0.99)),
            *quantiles("tidelog_delivery_seconds", legend="reader ", shares=(0.5, 0.99)),
        ),
    ),
    Panel(
        "Lag of consumer groups",
        "s",
        "Age of the first record that a group has not committed, and how many there are (right).",
        (
            Target("{{group}}", f"max by (group) (tidelog_group_lag_seconds{{{OF}}})"),
            Target("{{group}}, records", f"sum by (group) (tidelog_group_lag_records{{{OF}}})", "short"),
        ),
    ),
    Panel(
        "Bucket",
        "s",
        "Latency of requests (p99), and how many there are, and how many fail (right).",
        (
            Target(
                "p99 {{operation}}",
                f"histogram_quantile(0.99, {rate('tidelog_bucket_request_seconds_bucket', 'le, operation')})",
            ),
            Target("{{operation}}", rate("tidelog_bucket_request_seconds_count", "operation"), "reqps"),
            Target("{{operation}} {{code}}", rate("tidelog_bucket_errors_total", "operation, code"), "reqps"),
        ),
    ),
    Panel(
        "Flush and cache",
        "s",
        "How long batches linger before their PUT, how large segments are, and which share of reads memory serves (right).",
        (
            *quantiles("tidelog_segment_linger_seconds", legend="linger ", shares=(0.5, 0.99)),
            *(target._replace(unit="bytes") for target in quantiles("tidelog_segment_bytes", legend="segment ", shares=(0.5,))),
            Target("oldest uncommitted", f"max(tidelog_oldest_uncommitted_seconds{{{OF}}})"),
            Target(
                "served from the tail cache",
                f'sum(rate(tidelog_read_bytes_total{{{OF}, pool="hot"}}[{RATE}]))'
                f" / sum(rate(tidelog_read_bytes_total{{{OF}}}[{RATE}]))",
                "percentunit",
            ),
            Target("cold reads, {{source}}", rate("tidelog_cold_reads_total", "source"), "reqps"),
        ),
    ),
    Panel(
        "etcd",
        "s",
        "Latency of requests (p99), for how long it was silent, changes of its leader in an hour, size of its database (right).",
        (
            Target(
                "p99 {{operation}}",
                f"histogram_quantile(0.99, {rate('tidelog_metadata_request_seconds_bucket', 'le, operation')})",
            ),
            Target("silent", f"max(tidelog_metadata_silent_seconds{{{OF}}})"),
            Target("leader changes", f"max(increase(tidelog_etcd_leader_changes_total{{{OF}}}[1h]))", "short"),
            Target("watch events", f"sum(rate(tidelog_metadata_watch_events_total{{{OF}}}[{RATE}]))", "cps"),
            Target("database", f"max(tidelog_etcd_database_bytes{{{OF}}})", "bytes"),
        ),
    ),
    Panel(
        "Storage and cost",
        "bytes",
        "What lies on the bucket, what waits to be compacted, and what both cost a day at the prices of the settings (right).",
        (
            Target("{{form}}", f"sum by (form) (tidelog_stored_bytes{{{OF}}})"),
            Target("waits for compaction", f"max(tidelog_compaction_pending_bytes{{{OF}}})"),
            Target("oldest of it", f"max(tidelog_compaction_oldest_pending_seconds{{{OF}}})", "s"),
            Target(
                "dollars a day",
                f"86400 * sum(rate(tidelog_bucket_request_dollars_total{{{OF}}}[{RATE}]))"
                f" + sum(tidelog_stored_dollars_per_day{{{OF}}})",
                "currencyUSD",
            ),
        ),
    ),
)

PROCESS = (
    Panel(
        "Buffer",
        "bytes",
        "Batches that are not on the bucket yet, beside their limit, and requests that wait for room (right).",
        (
            Target("{{instance}}", f"tidelog_buffered_bytes{{{OF}}}"),
            Target("limit", f"max(tidelog_buffer_limit_bytes{{{OF}}})"),
            Target("waiting", f"sum(tidelog_buffer_waiting{{{OF}}})", "short"),
            Target("throttled", f'sum(rate(tidelog_errors_total{{{OF}, code="THROTTLED"}}[{RATE}]))', "cps"),
        ),
    ),
    Panel(
        "Sessions and open calls",
        "short",
        "Sessions that were begun within an hour (one at the start is usual), and calls that are open.",
        (
            Target("sessions, {{instance}}", f"increase(tidelog_sessions_total{{{OF}}}[1h])"),
            Target("open, {{listener}}", f"sum by (listener) (tidelog_open_calls{{{OF}}})"),
            Target("partitions led, {{instance}}", f"tidelog_partitions_led{{{OF}}}"),
        ),
    ),
    Panel(
        "Event loop",
        "s",
        "How late the event loop is (p99): what every request has to bear.",
        (
            Target(
                "p99 {{instance}}",
                f"histogram_quantile(0.99, {rate('tidelog_event_loop_lag_seconds_bucket', 'le, instance')})",
            ),
        ),
    ),
    Panel(
        "Processor and memory",
        "bytes",
        "Resident memory, the pools of batches, and cores (right).",
        (
            Target("{{instance}}", f"process_resident_memory_bytes{{{OF}}}"),
            Target("{{pool}} pool", f"sum by (pool) (tidelog_pool_bytes{{{OF}}})"),
            Target("cores, {{instance}}", f"rate(process_cpu_seconds_total{{{OF}}}[{RATE}])", "short"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    for at, panel in enumerate(PANELS):
        panels.append(_panel(panel, len(panels) + 1, x=8 * (at % 3), y=8 * (at // 3), width=8))
    below = 8 * ((len(PANELS) + 2) // 3)
    row = {"h": 1, "w": 24, "x": 0, "y": below}
    panels.append({"id": len(panels) + 1, "type": "row", "title": "The process", "collapsed": False, "gridPos": row, "panels": []})
    for at, panel in enumerate(PROCESS):
        panels.append(_panel(panel, len(panels) + 1, x=6 * at, y=below + 1, width=6))
    return {
        "uid": "tidelog",
        "title": "Tidelog",
        "tags": ["tidelog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "Cluster", "label_values(tidelog_build_info, cluster)"),
                _variable("job", "Job", 'label_values(tidelog_build_info{cluster=~"$cluster"}, job)'),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, number: int, *, x: int, y: int, width: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "$datasource"}
    targets = [
        {"refId": chr(ord("A") + at), "datasource": source, "expr": target.expression, "legendFormat": target.legend}
        for at, target in enumerate(panel.targets)
    ]
    on_the_right = [
        {
            "matcher": {"id": "byFrameRefID", "options": chr(ord("A") + at)},
            "properties": [{"id": "unit", "value": target.unit}, {"id": "custom.axisPlacement", "value": "right"}],
        }
        for at, target in enumerate(panel.targets)
        if target.unit
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"h": 8, "w": width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": on_the_right},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def page() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
