"""Compaction whole: from segments on a bucket to history that a manifest names, in CPU time; and the requests of a GiB's life.

The bucket is in memory, so that the figure is the compactor's own. What one broker writes in so many partitions is compacted by the
default rule, in proportion: where 1,000 partitions fill the scratch space of 16 GiB, PARTITIONS of them fill SCRATCH_BYTES, and the
file of each is as large as there. Requests are counted at the store: the broker's, the compactor's, and those of one reader of all.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.batches import TIMESTAMP_MS, values
from bench.figures import Figure, Target, median, spread
from bench.run import Run
from compaction.compactor import Compactor
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from metadata.model import LeaderEpoch, Offset, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from segments.bucket.layout import index_key, segment_key
from segments.history.manifest import Manifest
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import Buffer, ListPage, Tail
from segments.object_store.memory import MemoryObjectStore
from segments.records.batch import parse_whole, stamp
from segments.records.columns import encode_batch
from segments.settings import MIB, SegmentSettings
from segments.wal.footer_index import FooterBlocks, encode_index
from segments.wal.segment_file import StampedBatch, encode_segment

PARTITIONS: Final = 16
# As much of 16 GiB as 16 is of 1,000 partitions, about.
SCRATCH_BYTES: Final = 256 * MIB
# Of 100 B in a batch: a segment has one of each partition.
RECORDS: Final = 4_800
ROUNDS: Final = 3
PUT_CLASS_PER_GIB: Final = Target(most=400)
GET_CLASS_PER_GIB: Final = Target(most=1_500)
# S3 Standard, us-east-1. A LIST costs as much as a PUT; a DELETE nothing.
PUT_DOLLARS, GET_DOLLARS = 0.005 / 1000, 0.0004 / 1000
MIB_PER_SECOND: Final = 100


class CountingStore(MemoryObjectStore):
    """S3's two classes of requests, as S3 counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self.requests["put"] += 1
        await super().create(key, body, crc32c=crc32c)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.requests["get"] += 1
        return await super().get(key, start=start, end=end)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        self.requests["get"] += 1
        return await super().tail(key, bytes_max)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.requests["put"] += 1
        return await super().list(prefix, start_after=start_after, limit=limit)


def measure(run: Run) -> list[Figure]:
    rounds = []
    for number in range(ROUNDS):
        with run.new_directory(f"compaction-{number}") as directory:
            rounds.append(asyncio.run(_round(directory)))
    speeds = [gib * 1024 * MIB / 1e6 / cpu_s for gib, cpu_s, _ in rounds]
    gib, _, requests = rounds[-1]
    puts, gets = requests["put"] / gib, requests["get"] / gib
    dollars = puts * PUT_DOLLARS + gets * GET_DOLLARS
    month_gib = MIB_PER_SECOND * 86_400 * 30 / 1024
    bill = f"S3: {100 * dollars:.3f} cents a GiB, {dollars * month_gib:,.0f} dollars a month at {MIB_PER_SECOND} MiB/s"
    return [
        Figure("compaction, of one core", median(speeds), "MB/s", None, spread(speeds)),
        Figure("PUT, LIST: write, compact, read once", puts, "per GiB", PUT_CLASS_PER_GIB, bill),
        Figure("GET: the same", gets, "per GiB", GET_CLASS_PER_GIB),
    ]


async def _round(directory: Path) -> tuple[float, float, Counter[str]]:
    """GiB of batches, seconds of CPU, requests."""
    store = CountingStore()
    metadata = SqliteStore(directory / "metadata.sqlite")
    layout = KeyLayout()
    topics = TopicCache(metadata, layout)
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(metadata.run()), tasks.create_task(topics.run())]
        topic = await TopicRegistry(metadata, layout).create("bench", PARTITIONS, {"retention.ms": "-1"})
        await topics.wait_for(Revision(topic.revision), timeout_s=10)
        written = await _write(store, topic.id)
        numbers = itertools.count(1)
        context = CompactionContext(
            store,
            topics,
            ManifestCache(store, bytes_max=MIB),
            CompactionSettings(scratch_bytes_max=SCRATCH_BYTES, compaction_threads=1, delete_grace_ms=0),
            lambda: TIMESTAMP_MS,
            lambda size: f"{next(numbers):0{2 * size}x}",
            lambda name: True,
        )
        compactor = Compactor(context, ManifestNotifier(metadata, layout), report=lambda text: None)
        begun_s = time.process_time()
        report = await compactor.tick()
        cpu_s = time.process_time() - begun_s
        assert report.manifests >= PARTITIONS, report
        led = {TopicPartition(topic.id, Partition(partition)): "bench" for partition in range(PARTITIONS)}
        for manifest in (await newest_manifests(store, led)).values():  # as their leader does after a notice
            assert isinstance(manifest, Manifest)
            _count_reading(store, manifest)
        for task in following:
            task.cancel()
    return written / (1024 * MIB), cpu_s, store.requests


async def _write(store: MemoryObjectStore, topic_id: TopicId) -> int:
    """Segments and indexes as a broker writes them, until the scratch space is full; answers the bytes of batches."""
    times = np.full(RECORDS, TIMESTAMP_MS, np.int64)
    batch = encode_batch(pa.nulls(RECORDS, pa.binary()), values(RECORDS), timestamps_ms=times)
    header, session, written = parse_whole(batch), SessionId(1), 0
    blocks = FooterBlocks(SegmentSettings().index_every_segments)
    for seq in range(SCRATCH_BYTES // (len(batch) * PARTITIONS) + 1):
        offset = Offset(seq * RECORDS)
        stamped = StampedBatch(header, offset, stamp(batch, base_offset=offset, leader_epoch=1), memoryview(batch)[16:])
        segment = encode_segment(
            session=session,
            seq=SegmentSeq(seq),
            writer=bytes(16),
            committed_to=SegmentSeq(seq),
            written_at_ms=TIMESTAMP_MS,
            partitions=[(TopicPartition(topic_id, Partition(p)), LeaderEpoch(1), [stamped]) for p in range(PARTITIONS)],
        )
        await store.create(segment_key(session, SegmentSeq(seq)), segment.body)
        written += len(batch) * PARTITIONS
        if (block := blocks.add(SegmentSeq(seq), segment.footer_bytes)) is not None:
            await store.create(index_key(session, block.first, block.end), encode_index(session, block))
    return written


def _count_reading(store: CountingStore, manifest: Manifest) -> None:
    """One reader of all of it: of each file the footer, and each row group."""
    store.requests["get"] += sum(1 + len(file.row_groups) for file in manifest.files)
