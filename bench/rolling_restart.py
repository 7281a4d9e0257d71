"""Three brokers are replaced under load, one after the other, as the chart has Kubernetes do it: how late the last
acknowledgement is, and that no client gets an error.

The producer is given the addresses of the first three brokers alone, none of which is there any more in the end.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import ExitStack
from time import monotonic
from typing import NamedTuple

from bench.cluster import BROKERS, LIKE_S3, ClusterWatch, ServedCluster, cluster, watched
from bench.figures import Figure, Target, number
from bench.load import Until
from bench.rolled_pods import Roll, roll_of_the_chart
from bench.run import Run
from bench.sdk_client import Produced, lost_and_doubled, produce_for, produce_in_turn
from tidelog.testing.broker_process import BrokerProcess

PARTITIONS = 60
VALUE_BYTES = 1_000
LATEST_S_MAX = 2.0
# How long producers run before the first broker is replaced, and after the last has ended.
BEFORE_S, AFTER_S = 3.0, 2.0
SATURATING_S = 2.0
TOPIC = "records"
START, READY, PRE_STOP, SIGTERM = "a new broker starts", "it is ready", "preStop", "SIGTERM"


class Phase(NamedTuple):
    name: str
    began_s: float
    ended_s: float


def measure(run: Run) -> list[Figure]:
    roll = roll_of_the_chart()
    with cluster(run, "rolling", flags=LIKE_S3) as served, ExitStack() as later:
        served.create_topic("saturated", PARTITIONS)
        saturating = run.client.run(
            produce_for, served.urls, "saturated", PARTITIONS, value_bytes=VALUE_BYTES, seconds=SATURATING_S
        ).records_per_second
        served.create_topic(TOPIC, PARTITIONS)
        until = Until(run.directory / "rolled")
        load: Future[Produced] = run.client.start(
            produce_in_turn,
            served.urls,
            TOPIC,
            PARTITIONS,
            value_bytes=VALUE_BYTES,
            records_per_second=saturating / 2,
            until=until,
        )
        try:
            phases = asyncio.run(_roll_all(run, served, roll, later))
        finally:
            until.end()
        produced = load.result()
        lost, doubled = run.client.run(lost_and_doubled, served.urls, TOPIC, produced.records)
    began_s, ended_s = phases[0].began_s, phases[-1].ended_s
    since = produced.sent_s >= began_s - 1
    latest_s, before_s = float(produced.waited_s[since].max()), float(produced.waited_s[produced.answered_s < began_s].max())
    worst = {
        name: max(_latest_s(produced, phase) for phase in phases if phase.name == name)
        for name in (START, READY, PRE_STOP, SIGTERM)
    }
    return [
        Figure(
            "latest acknowledgement while three brokers are replaced",
            latest_s,
            "s",
            Target(most=LATEST_S_MAX),
            f"before at most {before_s:.2f} s; {', '.join(f'{name} {value:.2f} s' for name, value in worst.items())}; "
            f"{len(BROKERS)} brokers in {ended_s - began_s:.0f} s; "
            f"{number(produced.records_per_second)} records/s of {VALUE_BYTES:,} B to {PARTITIONS} partitions",
        ),
        Figure(
            "errors that reached the caller",
            len(produced.errors),
            "",
            Target(most=0),
            produced.errors[0] if produced.errors else "",
        ),
        Figure("records lost or doubled", lost + doubled, "", Target(most=0)),
    ]


def _latest_s(produced: Produced, phase: Phase) -> float:
    """Of what was on its way at some moment of the phase."""
    on_its_way = (produced.sent_s < phase.ended_s) & (produced.answered_s > phase.began_s)
    return float(produced.waited_s[on_its_way].max(initial=0.0))


async def _roll_all(run: Run, served: ServedCluster, roll: Roll, later: ExitStack) -> list[Phase]:
    async with watched(served) as watch:
        await asyncio.sleep(BEFORE_S)
        phases = [phase for old_id in BROKERS for phase in await _replace(run, served, watch, roll, later, old_id)]
        await asyncio.sleep(AFTER_S)
    return phases


async def _replace(run: Run, served: ServedCluster, watch: ClusterWatch, roll: Roll, later: ExitStack, old_id: str) -> list[Phase]:
    new_id = f"{old_id}-new"
    bucket = served.bucket.as_uri()
    own = ["--etcd", served.etcd.url, "--cluster", served.layout.cluster, "--bucket", bucket, "--broker-id", new_id, *LIKE_S3]
    new = later.enter_context(BrokerProcess(run.directory / new_id, flags=own, command="serve"))
    old = served.brokers[old_id]
    times = [monotonic()]
    await asyncio.to_thread(new.start)  # until it says that it is ready
    times.append(monotonic())
    await asyncio.sleep(roll.min_ready_s)
    served.brokers[new_id] = new
    times.append(monotonic())
    await asyncio.to_thread(roll.run_pre_stop, old, old_id)
    times.append(monotonic())
    await asyncio.to_thread(old.stop)
    del served.brokers[old_id]
    times.append(await watch.until(lambda: old_id not in watch.view.brokers.brokers, f"{old_id} is registered no more"))
    return [Phase(*phase) for phase in zip((START, READY, PRE_STOP, SIGTERM), times, times[1:], strict=False)]
