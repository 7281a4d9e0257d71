"""Writes docs/reference/metrics.md from the metrics of a broker: `python -m docs.metrics_page`. A test compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric

from docs.page_broker import described_broker

PAGE = Path(__file__).parent / "reference" / "metrics.md"
OF_THE_PROCESS = "process_"

_INTRODUCTION = """\
# Metrics

This page lists every metric of a broker and of a compactor. `python -m docs.metrics_page` generates it.

- `/metrics` of each broker has few series: by listener, code, group and topic.
- `/metrics/detail` has the series of each partition, for at most 10,000 partitions, and the names that dashboards for Kafka expect.
  Scrape it less often.
- A compactor (`tidelog compact --http HOST:PORT`) reports compaction, its requests and its process.

With `authentication` on, both pages require the right to describe the cluster, unless `metrics_open` is set. Dashboard and alerts:
[deploy/observability](../../deploy/observability/README.md). What to do when an alert fires: [the runbook](../runbook/README.md).

Counters end in `_total`. Times are seconds, sizes are bytes. Histograms have `_bucket`, `_sum` and `_count`. `listener` is `http`,
`grpc` or `kafka`; `peer` is for requests that other brokers forward, which the first broker counts as well. Each broker reports
the cluster (brokers, topics, partitions) as its watches show it: take the maximum. It reports its own partitions, groups and
stored bytes: take the sum.
"""

_DETAIL = """
## /metrics/detail

The controller alone reports `kafka_topic_partitions` and `kafka_brokers`, so that sums are right.

"""


async def page() -> str:
    """Returns the text of docs/reference/metrics.md. Metrics of etcd are described without an etcd."""
    async with described_broker() as broker:
        summary, detail = broker.metrics.families(), broker.metrics.families(detailed=True)
    ours = [family for family in summary if not family.name.startswith(OF_THE_PROCESS)]
    process = [family for family in summary if family.name.startswith(OF_THE_PROCESS)]
    return "".join(
        [_INTRODUCTION, "\n## /metrics\n\n", _table(ours), "\n## The process\n\n", _table(process), _DETAIL, _table(detail)]
    )


def _table(families: Iterable[Metric]) -> str:
    rows = [f"| `{_name(family)}` | {_labels(family)} | {family.type} | {family.documentation} |" for family in families]
    return "\n".join(["| name | labels | kind | meaning |", "| --- | --- | --- | --- |", *sorted(rows)]) + "\n"


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    """As the family declares them: it may have no series now."""
    return ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page()), encoding="utf-8")
