"""A broker that starts with 1,000 partitions to lead: until /readyz says that it is ready, and until it leads them all.

After a stop in order, and after kill -9: then it has to seal its own session first, and to read what it wrote.
"""

from __future__ import annotations

import asyncio
import urllib.request
from http import HTTPStatus
from time import monotonic
from typing import NamedTuple

from bench.cluster import BROKERS, LIKE_S3, ServedCluster, cluster, watched
from bench.figures import Figure, Target, median, spread
from bench.run import Run
from bench.sdk_client import produce_for

PARTITIONS = 1_000
VALUE_BYTES = 100
WRITTEN_S = 3.0
ROUNDS = 3
READY_S_MAX = 3.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names


class Start(NamedTuple):
    """Seconds from the start of the process."""

    ready_s: float
    # Until it leads everything.
    leading_s: float
    # That the process has used until it was ready.
    cpu_s: float


def measure(run: Run) -> list[Figure]:
    (broker_id,) = BROKERS[:1]
    with cluster(run, "ready", broker_ids=[broker_id], flags=LIKE_S3) as served:
        served.create_topic("records", PARTITIONS)
        measured: dict[str, list[Start]] = {"SIGTERM": [], "kill -9": []}
        for _ in range(ROUNDS):
            for end, times in measured.items():
                run.client.run(produce_for, served.urls, "records", PARTITIONS, value_bytes=VALUE_BYTES, seconds=WRITTEN_S)
                broker = served.brokers[broker_id]
                broker.stop() if end == "SIGTERM" else broker.kill()
                times.append(asyncio.run(_start(served, broker_id)))
    return [figure for end, starts in measured.items() for figure in _figures(end, starts)]


def _figures(end: str, starts: list[Start]) -> list[Figure]:
    ready, leading, cpu = zip(*starts, strict=True)
    rounds = ", ".join(f"{value:.2f}" for value in ready)
    return [
        Figure(
            f"start to /readyz after {end}, {PARTITIONS:,} partitions",
            max(ready),
            "s",
            Target(most=READY_S_MAX),
            f"rounds: {rounds} s",
        ),
        Figure("start until it leads them all", max(leading), "s"),
        Figure("CPU of the process until it is ready", median(cpu), "s", note=spread(cpu)),
    ]


async def _start(served: ServedCluster, broker_id: str) -> Start:
    async with watched(served) as watch:
        before = watch.view.brokers.brokers.get(broker_id)
        started_s = monotonic()
        await asyncio.to_thread(served.restart, broker_id)
        await asyncio.to_thread(_await_ready, served.brokers[broker_id].http_url)
        ready_s, cpu_s = monotonic() - started_s, served.cpu_seconds()

        def leads_all() -> bool:
            now = watch.view.brokers.brokers.get(broker_id)
            return now is not None and now != before and len(watch.led_by(broker_id)) == PARTITIONS

        leading_s = await watch.until(leads_all, f"{broker_id} leads {PARTITIONS:,} partitions") - started_s
    return Start(ready_s, leading_s, cpu_s)


def _await_ready(url: str) -> None:
    with _direct.open(f"{url}/readyz", timeout=10) as answer:  # it has said so already: anything but 200 raises
        assert answer.status == HTTPStatus.OK
