"""Counts the requests of an idle broker and its compactor to the bucket, with few partitions and with very many.

The broker is whole, in this process, with its default settings; the bucket is in memory and counts what it is asked. Some records
are written and compacted before, so that there is something to look at.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.batches import record_batch
from bench.figures import Figure, Target
from bench.run import Run
from compaction.settings import CompactionSettings
from gateway.broker.broker import Broker, wall_clock_ms
from gateway.cluster.identity import identify_cluster
from gateway.net.ports import reserve_ports
from gateway.settings import BrokerSettings
from metadata.model import Partition, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.object_store.instrumented import InstrumentedObjectStore
from segments.object_store.interface import Buffer, ListPage, Tail
from segments.object_store.memory import MemoryObjectStore
from segments.records.batch import parse_whole

PARTITIONS_PER_TOPIC: Final = 100
FEW_TOPICS, MANY_TOPICS = 1, 1_000
# Longer than a compactor's interval: when no more came for that long, all that follows creation is over.
QUIET_S: Final = 12.0
SETTLED_WITHIN_S: Final = 100.0
WATCHED_PER_SECOND: Final = 26.0
# A compactor looks every 10 s, at the sessions and into the open one.
PER_MINUTE_MAX: Final = 20


class CountingStore(MemoryObjectStore):
    """By what is asked, and of which part of the bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self._count("PUT", key)
        await super().create(key, body, crc32c=crc32c)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._count("GET", key)
        return await super().get(key, start=start, end=end)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        self._count("GET", key)
        return await super().tail(key, bytes_max)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self._count("LIST", prefix)
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def delete(self, key: str) -> None:
        self._count("DELETE", key)
        await super().delete(key)

    def _count(self, method: str, key: str) -> None:
        self.asked[f"{method} {key.partition('/')[0]}"] += 1


class Idle(NamedTuple):
    asked: Counter[str]
    seconds: float
    cpu_s: float

    @property
    def per_minute(self) -> float:
        return self.asked.total() * 60 / self.seconds

    @property
    def reported(self) -> str:
        return ", ".join(f"{what}: {count}" for what, count in self.asked.most_common()) or "none"


def measure(run: Run) -> list[Figure]:
    found = []
    for topics in (FEW_TOPICS, MANY_TOPICS):
        with run.new_directory(f"idle-partitions-{topics}") as directory:
            found.append(asyncio.run(_idle(directory, topics, run.seconds * WATCHED_PER_SECOND)))
    few, many = found
    partitions = MANY_TOPICS * PARTITIONS_PER_TOPIC
    return [
        Figure(
            f"requests to the bucket at rest, {partitions:,} partitions",
            many.per_minute,
            "1/min",
            Target(most=PER_MINUTE_MAX),
            f"in {many.seconds:.0f} s {many.reported}",
        ),
        Figure(
            f"the same, {FEW_TOPICS * PARTITIONS_PER_TOPIC:,} partitions",
            few.per_minute,
            "1/min",
            Target(most=PER_MINUTE_MAX),
            f"in {few.seconds:.0f} s {few.reported}",
        ),
        Figure(
            f"CPU at rest, {partitions:,} partitions",
            many.cpu_s / many.seconds * 100,
            "% of a core",
            note=f"{few.cpu_s / few.seconds * 100:.1f} % with {FEW_TOPICS * PARTITIONS_PER_TOPIC:,}",
        ),
    ]


async def _idle(directory: Path, topics: int, seconds: float) -> Idle:
    store, batch = CountingStore(), record_batch(10)
    header = parse_whole(batch)
    bucket = InstrumentedObjectStore(store)
    metadata = SqliteStore(directory / "metadata.sqlite")
    compaction = CompactionSettings(compact=True, compaction_due_age_ms=1_000)
    settings = BrokerSettings(directory, http="127.0.0.1:0", grpc="127.0.0.1:0", compaction=compaction)
    layout = KeyLayout(settings.cluster)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(metadata.run())
        identity = await identify_cluster(bucket, metadata, layout, new_id=uuid.uuid4().hex, now_ms=wall_clock_ms())
        broker = Broker(settings, bucket, metadata, layout, cluster_id=identity)
        ready = asyncio.Event()
        serving = tasks.create_task(broker.run(await reserve_ports(http=settings.http, grpc=settings.grpc), ready))
        await ready.wait()
        for number in range(topics):
            topic = await broker.create_topic(f"topic-{number:04d}", PARTITIONS_PER_TOPIC)
            partition = TopicPartition(topic.id, Partition(number % PARTITIONS_PER_TOPIC))
            await broker.log.produce(partition, batch, header)
        await _settled(store)
        store.asked.clear()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        idle = Idle(store.asked.copy(), time.perf_counter() - started_s, time.process_time() - cpu_s)
        broker.stop()
        await serving
        following.cancel()
    return idle


async def _settled(store: CountingStore) -> None:
    """Returns when topics were mirrored, and the compactor has seen what there is."""
    ends_s = time.monotonic() + SETTLED_WITHIN_S
    while time.monotonic() < ends_s:
        before = store.asked.total()
        await asyncio.sleep(QUIET_S)
        if store.asked.total() - before <= 2 * PER_MINUTE_MAX * QUIET_S / 60:
            return
