"""The same records before and after: produced, compacted, trimmed, deleted from segments, read, taken over, and gone on with."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from compaction.compactor import Compactor
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from metadata.model import LeaderEpoch, Revision, SessionId, TopicPartition
from metadata.store.interface import Put
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic, encode_topic
from segments.byte_budget import ByteBudget
from segments.log.session_log import FetchTarget, SessionLog
from segments.object_store.directory import DirectoryObjectStore
from segments.object_store.interface import ObjectStore, list_all
from segments.object_store.memory import MemoryObjectStore
from segments.read.log_reader import FetchResult
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.settings import SegmentSettings
from segments.wal.session import Session
from tests.kit.compaction.compacting import LAYOUT, NAMES
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, header_of, led, records_in, sequenced_batch
from tests.simulation.etcd_model import EtcdModel

AT_ONCE = CompactionSettings(compaction_due_age_ms=0.001, delete_grace_ms=0, row_group_bytes=4_000, history_file_bytes_max=20_000)
QUICK = SegmentSettings(linger_ms=0, read_cache_bytes_max=1 << 20)
TOPICS = {ORDERS: "orders", PAYMENTS: "payments"}
COUNT = 60


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def session_of(number: int) -> Session:
    return Session(SessionId(number), number.to_bytes(16, "big"))


@asynccontextmanager
async def opened(kind: Literal["memory", "directory"], path: Path) -> AsyncIterator[ObjectStore]:
    store: ObjectStore = MemoryObjectStore() if kind == "memory" else await DirectoryObjectStore.open(path, make_root=True)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def leading(
    store: ObjectStore, number: int, epoch: int, *, recovered: tuple[RecoveredPartition, ...]
) -> AsyncIterator[SessionLog]:
    log = SessionLog(store, session_of(number), QUICK, budget=ByteBudget(QUICK.buffer_bytes_max), now_ms=now_ms)
    for partition in recovered:
        log.lead(partition, LeaderEpoch(epoch))
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    try:
        yield log
    finally:
        log.close()
        await running


async def read_all(log: SessionLog, partition: TopicPartition) -> list[tuple[int, bytes | None]]:
    offset, found = 0, []
    end = log.partitions.bounds(partition).high_watermark
    while offset < end:
        (answer,) = await log.reads.fetch([FetchTarget(partition, offset, 4_000)], bytes_max=4_000)
        assert isinstance(answer, FetchResult), answer
        found += records_in(answer.batches, from_offset=offset)
        assert answer.next_offset > offset
        offset = answer.next_offset
    return found


async def compactor_on(store: ObjectStore) -> tuple[Compactor, asyncio.Task[None]]:
    metadata = EtcdModel(asyncio.get_running_loop().time)
    for topic_id, name in NAMES.items():
        topic = Topic(id=topic_id, name=name, partition_count=1, settings={"retention.ms": "-1"}, created_at_ms=0)
        await metadata.transact([], [Put(LAYOUT.topic(name), encode_topic(topic))])
    topics = TopicCache(metadata, LAYOUT)
    following = asyncio.create_task(topics.run())
    await topics.wait_for(Revision(1), timeout_s=10)
    numbers = itertools.count(1)
    context = CompactionContext(
        store,
        topics,
        ManifestCache(store, bytes_max=1 << 20),
        AT_ONCE,
        now_ms,
        lambda size: f"{next(numbers):0{2 * size}x}",
        lambda name: True,
    )
    return Compactor(context, ManifestNotifier(metadata, LAYOUT)), following


async def segments_left(store: ObjectStore, session: int) -> int:
    keys = [found.key async for found in list_all(store, f"wal/{session:016x}/")]
    return sum(key.rpartition("/")[2].startswith("0") for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_records_are_read_and_gone_on_with_as_if_they_had_never_moved(kind: Literal["memory", "directory"], tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path / "bucket") as store:
            compactor, following = await compactor_on(store)
            expected: dict[TopicPartition, list[tuple[int, bytes | None]]] = {ORDERS: [], PAYMENTS: []}

            async def produce(log: SessionLog, first: int) -> None:
                for n in range(first, first + COUNT):
                    value = f"{n}".encode() * 30
                    for partition, batch in ((ORDERS, batch_of(value, b"")), (PAYMENTS, sequenced_batch(5, n, value))):
                        appended = await log.produce(partition, batch, header_of(batch))
                        assert appended.base_offset == len(expected[partition]), "offsets go on without a gap"
                        expected[partition] += [(len(expected[partition]), value)]
                        if partition == ORDERS:
                            expected[partition] += [(len(expected[partition]), b"")]

            fresh = tuple(empty_partition(partition, QUICK) for partition in TOPICS)
            async with leading(store, 1, 1, recovered=fresh) as log:
                await produce(log, 0)
                for _ in range(3):
                    assert not (await compactor.tick()).failed
                await produce(log, COUNT)
            spans = {partition: [led(1, 1)] for partition in TOPICS}
            for number, epoch in ((2, 2), (3, 3)):
                found = await recover(store, spans, by=session_of(number), settings=QUICK, now_ms=now_ms, topics=TOPICS)
                recovered = tuple(one for one in found.values() if isinstance(one, RecoveredPartition))
                assert len(recovered) == 2, found
                async with leading(store, number, epoch, recovered=recovered) as log:
                    for partition in TOPICS:
                        assert await read_all(log, partition) == expected[partition]
                    again = sequenced_batch(5, epoch * COUNT - 1, f"{epoch * COUNT - 1}".encode() * 30)
                    repeated = await log.produce(PAYMENTS, again, header_of(again))
                    assert repeated.duplicate, "sequences are remembered across compaction"
                    await produce(log, epoch * COUNT)
                    for _ in range(3):
                        assert not (await compactor.tick()).failed
                        await asyncio.sleep(0.005)
                    assert await segments_left(store, number - 1) <= 1, "its seal is left"
                for partition in TOPICS:
                    spans[partition].append(led(number, epoch))
            following.cancel()

    asyncio.run(main())
