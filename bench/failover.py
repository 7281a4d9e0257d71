"""kill -9 of a broker under load: until the partitions that it led are acknowledged by others.

kill ───── what is left of its lease ─────▶ registration gone ─▶ sealed ─▶ appointed ─▶ footers read ─▶ acknowledged
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic

import numpy as np

from bench.bucket_reads import BucketReads, bucket_reads
from bench.cluster import BROKERS, LIKE_S3, SESSION_TIMEOUT_S, ClusterWatch, ServedCluster, cluster, watched
from bench.figures import Figure, Target
from bench.load import Until
from bench.run import Run
from bench.sdk_client import Produced, produce_in_turn
from metadata.model import TopicPartition

# By number of partitions.
BEYOND_THE_LEASE_S = {1_000: 1.0, 10_000: 3.0}
ROUNDS = {1_000: 3, 10_000: 2}
# Over all partitions in turn: a record waits for each of them long before somebody leads it again.
RECORDS_PER_SECOND = {1_000: 1_000.0, 10_000: 2_000.0}
VALUE_BYTES = 100
# How long producers run before the kill, and after all is led again.
BEFORE_S, AFTER_S = 4.0, 1.0
# Tens.
OBJECTS_MAX = 99


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds since the kill, but for the last two."""

    # That the dead broker led.
    partitions: int
    lease_ended_s: float
    # The first of them, and the last.
    appointed_s: tuple[float, float]
    # Of each of them, the first by its new leader.
    acknowledged_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    # Batches for the other partitions, from a second before the kill on.
    others_waited_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    # Of objects of the log to take over, by all brokers together, by what they are.
    reads: Counter[str]
    of_the_controller: bool

    @property
    def last_s(self) -> float:
        return float(self.acknowledged_s.max())


def measure(run: Run) -> list[Figure]:
    figures: list[Figure] = []
    for partitions, rounds in ROUNDS.items():
        with cluster(run, f"failover-{partitions}", flags=LIKE_S3) as served:
            created_s = served.create_topic("records", partitions)
            measured = asyncio.run(_rounds(run, served, partitions, rounds))
        figures += _figures(partitions, measured, created_s)
    return figures


def _figures(partitions: int, rounds: list[Round], created_s: float) -> list[Figure]:
    slack_s = BEYOND_THE_LEASE_S[partitions]
    within = Target(most=SESSION_TIMEOUT_S + slack_s)
    firsts = [float(round_.acknowledged_s.min()) for round_ in rounds]
    lasts = [round_.last_s for round_ in rounds]
    after_lease = [round_.last_s - round_.lease_ended_s for round_ in rounds]
    worst = max(rounds, key=lambda round_: round_.last_s - round_.lease_ended_s)
    spread_ms = (np.percentile(worst.acknowledged_s, (0, 50, 99, 100)) - worst.lease_ended_s) * 1000
    appointed_ms = [(at_s - worst.lease_ended_s) * 1000 for at_s in worst.appointed_s]
    most_read = max((round_.reads for round_ in rounds), key=Counter.total)
    others_s = np.concatenate([round_.others_waited_s for round_ in rounds])
    led = f"{worst.partitions:,} of {partitions:,}"
    return [
        Figure(f"{partitions:,} partitions: kill to the first acknowledgement", max(firsts), "s", within, _each(firsts, "s")),
        Figure(
            "kill to the first acknowledgement of the last partition",
            max(lasts),
            "s",
            within,
            f"{_each(lasts, 's')}; the dead led {led}; the controller died in {sum(r.of_the_controller for r in rounds)} of them",
        ),
        Figure("the same from the end of its lease", max(after_lease), "s", Target(most=slack_s), _each(after_lease, "s")),
        Figure(
            "half of the partitions, in the worst round",
            float(spread_ms[1]) / 1000,
            "s",
            note="from the end of the lease: "
            f"first {spread_ms[0]:,.0f}, p50 {spread_ms[1]:,.0f}, p99 {spread_ms[2]:,.0f}, last {spread_ms[3]:,.0f} ms; "
            f"appointed {appointed_ms[0]:,.0f} to {appointed_ms[1]:,.0f} ms",
        ),
        Figure(
            "objects read to take over",
            most_read.total(),
            "",
            Target(most=OBJECTS_MAX),
            f"by all brokers together, at the most in a round: {_by_kind(most_read)}",
        ),
        Figure(
            "longest wait for partitions of the living",
            float(others_s.max()),
            "s",
            note=f"p50 {np.percentile(others_s, 50) * 1000:.0f}, p99 {np.percentile(others_s, 99) * 1000:,.0f} ms of all batches; "
            f"the topic was there in {created_s:.1f} s",
        ),
    ]


def _by_what_it_is(reads: BucketReads) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for key, count in reads.objects.items():
        name = key.rpartition("/")[2].partition("-")[0]
        kinds["claims" if name == "claim" else "indexes" if name == "index" else "segments and seals"] += count
    return kinds


def _by_kind(reads: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in reads.most_common()) or "none"


def _each(seconds: list[float], unit: str) -> str:
    return "rounds: " + ", ".join(f"{value:.2f}" for value in seconds) + f" {unit}"


async def _rounds(run: Run, served: ServedCluster, partitions: int, rounds: int) -> list[Round]:
    found = []
    async with watched(served) as watch:
        for broker_id in BROKERS[:rounds]:
            await watch.balanced(partitions, len(BROKERS))
            found.append(await _kill(run, served, watch, broker_id, partitions))
            await asyncio.to_thread(served.restart, broker_id)
    return found


async def _kill(run: Run, served: ServedCluster, watch: ClusterWatch, broker_id: str, partitions: int) -> Round:
    until = Until(run.directory / f"failover-{broker_id}-{partitions}-is-over")
    load: Future[Produced] = run.client.start(
        produce_in_turn,
        served.urls,
        "records",
        partitions,
        value_bytes=VALUE_BYTES,
        records_per_second=RECORDS_PER_SECOND[partitions],
        until=until,
    )
    try:
        await asyncio.sleep(BEFORE_S + partitions / RECORDS_PER_SECOND[partitions])
        of_the_dead = watch.led_by(broker_id)
        of_the_controller = watch.controller == broker_id
        with bucket_reads(served.bucket / "wal") as reads:
            killed_s = monotonic()
            served.brokers[broker_id].kill()
            gone = f"{broker_id} is gone and others lead what it led"
            await watch.until(lambda: _all_led_again(watch, of_the_dead, killed_s), gone)
            await asyncio.sleep(AFTER_S)
            until.end()
            produced = await asyncio.wrap_future(load)
            reads.look()
    finally:
        until.end()
    if produced.errors:
        raise RuntimeError(f"{len(produced.errors)} batches failed, the first with: {produced.errors[0]}")
    return _round(produced, watch, of_the_dead, broker_id, killed_s, _by_what_it_is(reads), of_the_controller=of_the_controller)


def _all_led_again(watch: ClusterWatch, partitions: frozenset[TopicPartition], since_s: float) -> bool:
    return all(watch.led_at_s[partition] > since_s for partition in partitions)


def _round(
    produced: Produced,
    watch: ClusterWatch,
    of_the_dead: frozenset[TopicPartition],
    broker_id: str,
    killed_s: float,
    reads: Counter[str],
    *,
    of_the_controller: bool,
) -> Round:
    lease_ended_s = watch.left_at_s[broker_id]
    appointed_s = [watch.led_at_s[partition] for partition in of_the_dead]
    numbers = np.array(sorted(partition.partition for partition in of_the_dead), np.int32)
    theirs = np.isin(produced.partitions, numbers)
    again = theirs & (produced.answered_s > lease_ended_s)
    first_s = np.full(numbers.max() + 1, np.inf)
    np.minimum.at(first_s, produced.partitions[again], produced.answered_s[again])
    acknowledged_s = first_s[numbers]
    if not np.isfinite(acknowledged_s).all():
        raise RuntimeError(f"{int(np.isinf(acknowledged_s).sum())} partitions were not acknowledged after the kill")
    others = ~theirs & (produced.sent_s > killed_s - 1)
    return Round(
        len(of_the_dead),
        lease_ended_s - killed_s,
        (min(appointed_s) - killed_s, max(appointed_s) - killed_s),
        acknowledged_s - killed_s,
        produced.waited_s[others],
        reads,
        of_the_controller,
    )
