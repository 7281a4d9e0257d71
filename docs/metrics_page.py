"""Writes docs/reference/metrics.md from what a broker tells: `python -m docs.metrics_page`. A test sees that the page is fresh."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric

from gateway.process.broker_process import run_broker
from gateway.settings import load_settings

PAGE = Path(__file__).parent.joinpath("reference/metrics.md")
OF_THE_PROCESS = "process_"

_INTRODUCTION = """\
# Metrics

`/metrics` of each broker is for Prometheus, with few series whatever there is in the cluster: by listener, code, group and topic.
`/metrics/detail` has what there is one of for each partition, of at most 10,000 partitions, and the names that boards made for
Kafka know; scrape it less often. A compactor (`tidelog compact --http HOST:PORT`) tells of compaction, its requests, and its
process.

With `authentication` on, both want a principal that may read the cluster, unless `metrics_open` is set. Dashboard and alerts:
[deploy/observability](../../deploy/observability/README.md); what to do when one fires: [the runbook](../runbook/README.md).

Counters end in `_total`, times are seconds, sizes bytes; histograms have `_bucket`, `_sum` and `_count`. `listener` is `http` or
`grpc`, and `peer` for what other brokers forward, which counts at the first broker already. What a broker tells of the whole
cluster (brokers, topics, partitions) is as it sees it: take the maximum. What it tells of its partitions, groups and stored bytes:
take the sum.
"""

_DETAIL = """
## /metrics/detail

The controller alone reports `kafka_topic_partitions` and `kafka_brokers`, so that sums are right.

"""


async def page() -> str:
    """Of a broker that compacts, and of one that has an etcd: what only etcd tells is described, too."""
    with tempfile.TemporaryDirectory() as directory:
        given = {"data_dir": directory, "http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "kafka": "127.0.0.1:0", "compact": True}
        async with run_broker(load_settings(given, {})) as broker:
            summary, detail = broker.metrics.families(), broker.metrics.families(detailed=True)
    ours = [family for family in summary if not family.name.startswith(OF_THE_PROCESS)]
    process = [family for family in summary if family.name.startswith(OF_THE_PROCESS)]
    return "".join(
        [_INTRODUCTION, "\n## /metrics\n\n", _table(ours), "\n## The process\n\n", _table(process), _DETAIL, _table(detail)]
    )


def _table(families: Iterable[Metric]) -> str:
    rows = [f"| `{_name(family)}` | {_labels(family)} | {family.type} | {family.documentation} |" for family in families]
    return "\n".join(["| name | labels | kind | what it tells |", "| --- | --- | --- | --- |", *sorted(rows)]) + "\n"


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    """As the family declares them: it may have no series now."""
    return ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
