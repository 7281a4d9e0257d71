"""Fifty readers catch up on a history in Parquet, each somewhere else in it, while others wait at the tail: what it costs those,
and how much memory the broker takes.

In a local directory a lone record is on the disk within 4 ms, by ten calls of the system in a thread; beside readers that take both
cores the thread waits for each of them, for a core and the interpreter's lock, which is most of what the tail waits for then
(measured: 2 to 6 ms for an fsync that takes 1). On S3 no thread is in the way, and a record lingers longer than that.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, NamedTuple

import grpc.aio
import uvloop

from bench.batches import produce_request, record_batch
from bench.compacted_history import TOPIC, compacted_history
from bench.figures import Figure, Target, median, percentile, spread
from bench.grpc_client import OPTIONS, check_produced
from bench.load import client_process
from bench.run import Run
from gateway.process.runtime_tuning import KEPT_BYTES_MAX
from gateway.proto import log_pb2

READERS = 50
PARTITIONS = 8
ROUNDS = 3
TAIL = "tail"
PAUSE_S = 0.02
# After this time, all readers are at work.
BEGIN_S = 1.0
FETCH_BYTES = 1 << 20
SETTINGS_MIB = {
    "cold pool": 64,
    "reads in flight": 96,
    "footers": 8,
    "hot pool": 8,
    "answers on their way": 64,
    "freed memory that is kept": KEPT_BYTES_MAX >> 20,
}


class CaughtUp(NamedTuple):
    # By each reader.
    bytes_read: list[int]


def measure(run: Run) -> list[Figure]:
    return _measure(run, "catch-up", on_s3=False)


def measure_on_s3(run: Run) -> list[Figure]:
    return _measure(run, "catch-up-s3", on_s3=True)


def _measure(run: Run, name: str, *, on_s3: bool) -> list[Figure]:
    alone_s: list[list[float]] = []
    beside_s: list[list[float]] = []
    taken_mib: list[float] = []
    rates: list[float] = []
    flags = ("--tail-cache-bytes-max", "8MiB")
    with (
        compacted_history(run, name, partitions=PARTITIONS, megabytes=run.history_megabytes, flags=flags, on_s3=on_s3) as history,
        client_process() as reading,
    ):
        served = history.served
        served.create_topic(TAIL, 1)
        for _ in range(1 + ROUNDS):
            alone_s.append(run.client.run(tail_latencies, served.grpc_address, 2 * run.seconds))
            seconds = BEGIN_S + 2 * run.seconds + 0.5
            readers = reading.start(catch_up, served.grpc_address, history.end_offsets, seconds)
            time.sleep(BEGIN_S)
            beside_s.append(run.client.run(tail_latencies, served.grpc_address, 2 * run.seconds))
            taken_mib.append(served.rss_mib() - history.idle_mib)
            peak_mib = served.peak_rss_mib() - history.idle_mib
            rates.append(sum(readers.result().bytes_read) / seconds / 1e6)
    ratios = [percentile(beside, 99) / percentile(alone, 99) for alone, beside in zip(alone_s[1:], beside_s[1:], strict=True)]
    tails_ms = {name: median(percentile(each, 99) for each in found) * 1000 for name, found in (("a", alone_s), ("b", beside_s))}
    return [
        Figure("tail p99 beside fifty readers of history", round(median(ratios), 2), "×", Target(most=2), spread(ratios)),
        Figure("tail p99 alone", tails_ms["a"], "ms", note="a lone record every 20 ms, from its producer to its reader"),
        Figure("tail p99 beside them", tails_ms["b"], "ms"),
        Figure("what they read together", median(rates), "MB/s", note=f"of {history.megabytes:,.0f} MB of keys and values"),
        Figure(
            "memory that they take in the broker, at its peak",
            peak_mib,
            "MiB",
            Target(most=sum(SETTINGS_MIB.values())),
            f"above {history.idle_mib:.0f} of the idle broker; {max(taken_mib):.0f} while they read; settings: "
            + ", ".join(f"{part} {mib}" for part, mib in SETTINGS_MIB.items()),
        ),
    ]


def tail_latencies(address: str, seconds: float) -> list[float]:
    """Seconds from each record's produce to its arrival at a reader that waits for it. Runs in the client's process."""

    async def run() -> list[float]:
        request = produce_request(TAIL, record_batch(1), range(1))
        latencies: list[float] = []
        async with (
            grpc.aio.insecure_channel(address, options=OPTIONS) as producing,
            grpc.aio.insecure_channel(address, options=OPTIONS) as reading,
        ):
            produce: Any = producing.unary_unary("/tidelog.v1.Log/Produce")
            fetch: Any = reading.unary_unary("/tidelog.v1.Log/Fetch", response_deserializer=log_pb2.FetchResponse.FromString)
            offset = (await _fetched(fetch, TAIL, 0, 0, wait_ms=0)).high_watermark
            ends_s = time.perf_counter() + seconds
            while time.perf_counter() < ends_s:
                next_one = asyncio.ensure_future(_fetched(fetch, TAIL, 0, offset, wait_ms=10_000))
                await asyncio.sleep(PAUSE_S)  # it waits at the broker by now
                sent_s = time.perf_counter()
                answer = asyncio.ensure_future(produce(request, timeout=30))
                offset = (await next_one).next_offset
                latencies.append(time.perf_counter() - sent_s)
                check_produced(await answer)
        return latencies

    return uvloop.run(run())


def catch_up(address: str, end_offsets: list[int], seconds: float) -> CaughtUp:
    """Readers that each begin somewhere, and again at the beginning when they come to the end. Runs in a process of its own."""

    async def one(number: int) -> int:
        partition = number % len(end_offsets)
        offset, size_bytes = random.Random(number).randrange(end_offsets[partition]), 0
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            fetch: Any = channel.unary_unary("/tidelog.v1.Log/Fetch", response_deserializer=log_pb2.FetchResponse.FromString)
            ends_s = time.perf_counter() + seconds
            while time.perf_counter() < ends_s:
                found = await _fetched(fetch, TOPIC, partition, offset, wait_ms=1_000)
                size_bytes += len(found.record_batches)
                offset = found.next_offset if found.next_offset < end_offsets[partition] else 0
        return size_bytes

    async def run() -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(one(number)) for number in range(READERS)]
        return [reader.result() for reader in readers]

    return CaughtUp(uvloop.run(run()))


async def _fetched(fetch: Any, topic: str, partition: int, offset: int, *, wait_ms: int) -> log_pb2.FetchedPartition:
    asked = log_pb2.FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=FETCH_BYTES)
    request = log_pb2.FetchRequest(partitions=[asked], max_bytes=FETCH_BYTES, min_bytes=1, max_wait_ms=wait_ms)
    [found] = (await fetch(request.SerializeToString(), timeout=60)).partitions
    if found.HasField("error"):
        raise RuntimeError(f"the broker refused a fetch: {found.error.message}")
    return found  # type: ignore[no-any-return]  # grpc's calls are not typed
