"""A broker is drained under load: how late the latest acknowledgement is, and that no client gets an error.

`cluster drain` under a load of half of what saturates, and under one that saturates; and a SIGTERM under half, as a rolling restart
sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic

from bench.cluster import BROKERS, ClusterWatch, ServedCluster, cluster, watched
from bench.figures import Figure, Target, number
from bench.load import Until
from bench.run import Run
from bench.sdk_client import Produced, lost_and_doubled, produce_for, produce_in_turn
from tidelog import connect

PARTITIONS = 60
VALUE_BYTES = 1_000
LATEST_S_MAX = 1.0
# How long producers run before the drain, and after it has ended.
BEFORE_S, AFTER_S = 3.0, 2.0
SATURATING_S = 3.0
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Round:
    # Partitions.
    moved: int
    # Until the broker led nothing.
    drained_s: float
    # The longest from a record's send to its acknowledgement, of those sent from a second before the drain on.
    latest_s: float
    # The same of those that had their acknowledgement before it.
    latest_before_s: float
    errors: tuple[str, ...]
    lost: int
    doubled: int
    records_per_second: float


@dataclass(frozen=True, slots=True)
class Case:
    drain: Callable[[ServedCluster, str], Awaitable[None]]
    undo: Callable[[ServedCluster, str], Awaitable[None]]
    # 0: as many as there is room for.
    records_per_second: float


def measure(run: Run) -> list[Figure]:
    with cluster(run, "drain") as served:
        served.create_topic("saturated", PARTITIONS)
        saturating = run.client.run(
            produce_for, served.urls, "saturated", PARTITIONS, value_bytes=VALUE_BYTES, seconds=SATURATING_S
        ).records_per_second
        cases = {
            "drain at half load": Case(_ask_to_drain, _undrain, saturating / 2),
            "drain, saturated": Case(_ask_to_drain, _undrain, 0.0),
            "SIGTERM at half load": Case(_stop, _start, saturating / 2),
        }
        measured = asyncio.run(_all(run, served, cases))
    return [figure for name, rounds in measured.items() for figure in _figures(name, rounds)]


def _figures(name: str, rounds: list[Round]) -> list[Figure]:
    latest = [round_.latest_s for round_ in rounds]
    errors = [error for round_ in rounds for error in round_.errors]
    wrong = sum(round_.lost + round_.doubled for round_ in rounds)
    pace = ", ".join(number(round_.records_per_second) for round_ in rounds)
    return [
        Figure(
            f"{name}: latest acknowledgement",
            max(latest),
            "s",
            Target(most=LATEST_S_MAX),
            f"rounds: {', '.join(f'{value:.2f}' for value in latest)} s; before the drain at most "
            f"{max(round_.latest_before_s for round_ in rounds):.2f} s; {rounds[0].moved} partitions moved in "
            f"{max(round_.drained_s for round_ in rounds):.2f} s; {pace} records/s of {VALUE_BYTES:,} B",
        ),
        Figure("errors that reached the caller", len(errors), "", Target(most=0), errors[0] if errors else ""),
        Figure("records lost or doubled", wrong, "", Target(most=0)),
    ]


async def _all(run: Run, served: ServedCluster, cases: dict[str, Case]) -> dict[str, list[Round]]:
    measured: dict[str, list[Round]] = {name: [] for name in cases}
    topics = 1
    async with watched(served) as watch:
        for turn in range(ROUNDS):
            broker_id = BROKERS[turn % len(BROKERS)]
            for name, case in cases.items():
                topic = f"records-{topics}"
                topics += 1
                await asyncio.to_thread(served.create_topic, topic, PARTITIONS)
                await watch.balanced(topics * PARTITIONS, len(BROKERS))
                measured[name].append(await _round(run, served, watch, topic, broker_id, case))
                await case.undo(served, broker_id)
    return measured


async def _round(run: Run, served: ServedCluster, watch: ClusterWatch, topic: str, broker_id: str, case: Case) -> Round:
    until = Until(run.directory / f"{topic}-is-over")
    load: Future[Produced] = run.client.start(
        produce_in_turn,
        served.urls,
        topic,
        PARTITIONS,
        value_bytes=VALUE_BYTES,
        records_per_second=case.records_per_second,
        until=until,
    )
    try:
        await asyncio.sleep(BEFORE_S)
        moved = len(watch.led_by(broker_id))
        began_s = monotonic()
        draining = asyncio.ensure_future(case.drain(served, broker_id))
        ended_s = await watch.until(lambda: not watch.led_by(broker_id), f"{broker_id} leads nothing")
        await draining
        await asyncio.sleep(AFTER_S)
    finally:
        until.end()
    produced = await asyncio.wrap_future(load)
    lost, doubled = await asyncio.to_thread(run.client.run, lost_and_doubled, served.urls, topic, produced.records)
    since = produced.sent_s >= began_s - 1
    before = produced.answered_s < began_s
    return Round(
        moved,
        ended_s - began_s,
        float(produced.waited_s[since].max()),
        float(produced.waited_s[before].max()),
        produced.errors,
        lost,
        doubled,
        produced.records_per_second,
    )


async def _ask_to_drain(served: ServedCluster, broker_id: str) -> None:
    async with connect(*served.urls) as log:
        await log.drain_broker(broker_id)


async def _undrain(served: ServedCluster, broker_id: str) -> None:
    async with connect(*served.urls) as log:
        await log.undrain_broker(broker_id)


async def _stop(served: ServedCluster, broker_id: str) -> None:
    """SIGTERM, until the process has ended."""
    await asyncio.to_thread(served.brokers[broker_id].stop)


async def _start(served: ServedCluster, broker_id: str) -> None:
    await asyncio.to_thread(served.restart, broker_id)
