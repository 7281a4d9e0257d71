"""The controller dies: until the next one has planned. It must not grow with the partitions that lie idle.

    kill ── its lease ──▶ registration and election key gone ─▶ elected ─▶ planned: a new topic gets its leaders

The controller that dies leads nothing, so that what is measured is the controller's change and not that of leaders (failover.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.cluster import BROKERS, SESSION_TIMEOUT_S, ClusterWatch, ServedCluster, cluster, watched
from bench.figures import Figure, Target, median, spread
from bench.run import Run
from gateway.cluster.view import partitions_of
from metadata.cluster.broker_registry import write_draining
from metadata.cluster.leadership import read_all
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic
from tidelog import connect

FEW, MANY = 1_000, 50_000
# Of one topic: the many lie in several.
TOPIC_PARTITIONS_MAX = 10_000
ROUNDS = 3
SHARE_MAX = 1.5
FRESH_PARTITIONS = 3
CREATED_S_MAX = 60.0
DOOMED = BROKERS[-1]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds since the lease of the controller had ended, but for the last."""

    elected_s: float
    planned_s: float
    # Until the new topic had its leaders, the lease included.
    since_the_kill_s: float


@dataclass(frozen=True, slots=True)
class Side:
    rounds: list[Round]
    # All partitions, read once by a client of its own.
    range_read_s: float
    # Until the partitions were led.
    created_s: float

    @property
    def planned_s(self) -> float:
        return median(round_.planned_s for round_ in self.rounds)


def measure(run: Run) -> list[Figure]:
    with cluster(run, "controller-failover") as served:
        few, many = asyncio.run(_both(served))
    planned_ms = [[round_.planned_s * 1000 for round_ in side.rounds] for side in (few, many)]
    elected_ms = [[round_.elected_s * 1000 for round_ in side.rounds] for side in (few, many)]
    allowed_ms = SHARE_MAX * few.planned_s * 1000 + many.range_read_s * 1000
    from_kill = [round_.since_the_kill_s for side in (few, many) for round_ in side.rounds]
    return [
        Figure(
            f"lease's end to planned, {MANY:,} partitions",
            many.planned_s * 1000,
            "ms",
            Target(most=round(allowed_ms)),
            f"{spread(planned_ms[1])}; the bound: {SHARE_MAX} × that of {FEW:,}, and one range read",
        ),
        Figure(f"the same with {FEW:,} partitions", few.planned_s * 1000, "ms", note=spread(planned_ms[0])),
        Figure("the one against the other, nothing excluded", many.planned_s / few.planned_s, "×"),
        Figure(
            f"of these, until elected, {MANY:,} partitions",
            median(elected_ms[1]),
            "ms",
            note=f"{spread(elected_ms[1])}; with {FEW:,} {median(elected_ms[0]):.0f} ms",
        ),
        Figure(
            f"one range read of {MANY:,} partitions",
            many.range_read_s * 1000,
            "ms",
            note=f"of {FEW:,}: {few.range_read_s * 1000:.0f} ms",
        ),
        Figure(
            "kill to a new topic's leaders, lease included",
            max(from_kill),
            "s",
            Target(most=SESSION_TIMEOUT_S + 1),
            spread(from_kill),
        ),
        Figure(
            f"creating {MANY - FEW:,} partitions, until all are led",
            many.created_s,
            "s",
            Target(most=CREATED_S_MAX),
            f"{(MANY - FEW) / many.created_s:,.0f} partitions/s; {FEW:,} in {few.created_s:.1f} s",
        ),
    ]


async def _both(served: ServedCluster) -> tuple[Side, Side]:
    async with watched(served) as watch:
        await _drained(watch)
        few = await _side(served, watch, 0, FEW)
        many = await _side(served, watch, FEW + ROUNDS * FRESH_PARTITIONS, MANY)
    return few, many


async def _side(served: ServedCluster, watch: ClusterWatch, there: int, wanted: int) -> Side:
    """Measured with `wanted` partitions, of which `there` exist already."""
    created_s = await _create(served, watch, there, wanted)
    started_s = time.monotonic()
    states = await read_all(watch.store, watch.layout)
    range_read_s = time.monotonic() - started_s
    rounds = []
    for turn in range(ROUNDS):
        rounds.append(await _kill(served, watch, f"fresh-{wanted}-{turn}"))
        await asyncio.to_thread(served.restart, DOOMED)
        await _drained(watch)
        await watch.until(lambda: not watch.led_by(DOOMED), f"{DOOMED} leads nothing")
    assert len(states) >= wanted
    return Side(rounds, range_read_s, created_s)


async def _create(served: ServedCluster, watch: ClusterWatch, there: int, wanted: int) -> float:
    """Seconds until all of them are led."""
    started_s = time.monotonic()
    async with connect(*served.urls, request_timeout_ms=60_000.0) as log:
        for first in range(there, wanted, TOPIC_PARTITIONS_MAX):
            await log.topics.create(f"idle-{wanted}-{first}", partitions=min(TOPIC_PARTITIONS_MAX, wanted - first))
    await watch.until(lambda: len(watch.led_at_s) >= wanted, f"{wanted:,} partitions are led")
    return time.monotonic() - started_s


async def _drained(watch: ClusterWatch) -> None:
    """The broker that is to die takes part, leads nothing, and is the controller."""
    await watch.until(lambda: DOOMED in watch.view.brokers.brokers, f"{DOOMED} is registered")
    await write_draining(watch.store, watch.layout, DOOMED, draining=True)
    await watch.until(lambda: not watch.led_by(DOOMED) and not watch.view.partitions.moving, f"{DOOMED} leads nothing")


async def _kill(served: ServedCluster, watch: ClusterWatch, topic_name: str) -> Round:
    await watch.make_controller(DOOMED)
    await asyncio.sleep(1.0)  # what the election has begun comes to its end
    killed_s = time.monotonic()
    served.brokers[DOOMED].kill()
    topic = await TopicRegistry(watch.store, watch.layout).create(
        topic_name, FRESH_PARTITIONS
    )  # no controller is there to appoint its leaders
    await watch.until(lambda: watch.controller not in (None, DOOMED) and _led(watch, topic), f"{topic_name} has leaders")
    ended_s = watch.left_at_s[DOOMED]
    planned_s = max(watch.led_at_s[partition] for partition in partitions_of(topic))
    return Round(watch.controller_at_s - ended_s, planned_s - ended_s, planned_s - killed_s)


def _led(watch: ClusterWatch, topic: Topic) -> bool:
    return all(partition in watch.led_at_s for partition in partitions_of(topic))
