"""A bucket that brokers have written to, compactors at work on it, and the history that they write. Under virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from compaction.compactor import Compactor, TickReport
from compaction.context import CompactionContext
from compaction.manifest_cache import ManifestCache
from compaction.notifier import ManifestNotifier
from compaction.settings import CompactionSettings
from metadata.errors import TidelogError
from metadata.model import Revision, TopicId, TopicPartition
from metadata.store.interface import Delete, Put
from metadata.store.keys import KeyLayout
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.deleted_topic import TopicTombstone, encode_deleted_topic
from segments.bucket.layout import deleted_topic_key, history_file_key, parse_topic_key
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_store import newest_manifest
from segments.history.parquet_file import read_columns, verify_history
from segments.object_store.interface import ObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.store_clock import StoreClock
from tests.kit.segments.batches import ORDERS, PAYMENTS, TIMESTAMP_MS
from tests.kit.segments.past_sessions import Bucket
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
NAMES = {ORDERS.topic_id: "orders", PAYMENTS.topic_id: "payments"}
# Whatever waits is due.
AT_ONCE = CompactionSettings(compaction_due_age_ms=1, delete_grace_ms=1, compaction_threads=1)
# Offset and value.
Record = tuple[int, bytes | None]


class Scene:
    def __init__(self, store: Bucket) -> None:
        self.store = store
        self.metadata = EtcdModel(virtual_loop().time)
        self.topics = TopicCache(self.metadata, LAYOUT)
        self._nonces = itertools.count(1)
        self._following: asyncio.Task[None] | None = None
        self.ahead_ms = 0
        # Of the context's question whether another copy of the metadata has gone on.
        self.is_overtaken = False

    async def begin(self, topics: Mapping[TopicId, str] = NAMES, settings: Mapping[str, str] | None = None) -> None:
        for topic_id, name in topics.items():
            topic = Topic(
                id=topic_id,
                name=name,
                partition_count=1000,
                settings=dict(settings or {"retention.ms": "-1"}),
                created_at_ms=0,
            )
            await self.metadata.transact([], [Put(LAYOUT.topic(name), encode_topic(topic))])
        self.follow()
        await self.topics.wait_for(Revision(1), timeout_s=10)

    def follow(self) -> None:
        """The compactors hear of topics from here on."""
        self._following = asyncio.create_task(self.topics.run())

    def end(self) -> None:
        """They hear no more, and keep what they know."""
        if self._following is not None:
            self._following.cancel()

    async def delete_topic(self, name: str, topic_id: TopicId) -> None:
        result = await self.metadata.transact([], [Delete(LAYOUT.topic(name))])
        await self.topics.wait_for(result.revision, timeout_s=10)
        marker = TopicTombstone(name=name, id=topic_id, gone_at_revision=result.revision, marked_at_ms=self.now_ms())
        self.store.plant(deleted_topic_key(name, topic_id, result.revision), encode_deleted_topic(marker))

    def now_ms(self) -> int:
        return virtual_loop().now_ms() + self.ahead_ms

    def context(
        self,
        settings: CompactionSettings = AT_ONCE,
        *,
        store: ObjectStore | None = None,
        is_mine: Callable[[str], bool] = lambda name: True,
        clock: StoreClock | None = None,
    ) -> CompactionContext:
        bucket = store if store is not None else self.store
        return CompactionContext(
            bucket,
            self.topics,
            ManifestCache(bucket, bytes_max=1 << 20, timeout_s=5),
            settings,
            self.now_ms if clock is None else clock.now_ms,
            lambda size: f"{next(self._nonces):0{2 * size}x}",
            is_mine,
            is_overtaken=self._is_overtaken,
            store_clock=clock,
        )

    async def _is_overtaken(self) -> bool:
        return self.is_overtaken

    def compactor(
        self,
        settings: CompactionSettings = AT_ONCE,
        *,
        store: ObjectStore | None = None,
        is_mine: Callable[[str], bool] = lambda name: True,
        clock: StoreClock | None = None,
    ) -> Compactor:
        context = self.context(settings, store=store, is_mine=is_mine, clock=clock)
        return Compactor(context, ManifestNotifier(self.metadata, LAYOUT), report=lambda text: None)

    async def compacted(self, settings: CompactionSettings = AT_ONCE) -> TickReport:
        """By a compactor that has just begun; nothing may fail."""
        report = await self.compactor(settings).tick()
        assert not report.failed
        return report

    async def manifest(self, partition: TopicPartition = ORDERS) -> Manifest:
        return await newest_manifest(plain(self.store), NAMES[partition.topic_id], partition) or no_manifest(partition)

    async def history(self, partition: TopicPartition = ORDERS) -> list[Record]:
        """What is in Parquet, of files that were read back whole."""
        manifest = await self.manifest(partition)
        found: list[Record] = []
        for file in manifest.files:
            key = history_file_key(NAMES[partition.topic_id], partition, file.name)
            body = self.store.content(key)
            verify_history(body, file, key=key)
            for columns in read_columns(body, file, key=key):
                found += zip(columns["offset"].to_pylist(), columns["value"].to_pylist(), strict=True)
        return found

    def orphans(self, manifests: Iterable[Manifest]) -> list[str]:
        """Files that none of these names."""
        held = list(manifests)
        named = {file.name for one in held for file in one.files} | {file.name for one in held for file in one.retired}
        parsed = [(key, parse_topic_key(key)) for key in self.store.keys("topics/")]
        return [key for key, one in parsed if one is not None and one.history is not None and one.history.file_name not in named]


def plain(store: Bucket) -> MemoryObjectStore:
    """The bucket without faults, and without counting."""
    return store.another_client()


def on_a_bucket(work: Callable[[Scene], Coroutine[Any, Any, None]], *, seed: int = 0) -> None:
    async def main() -> None:
        scene = Scene(Bucket())
        await scene.begin()
        scene.ahead_ms = TIMESTAMP_MS - virtual_loop().now_ms() + 3_600_000  # segments were written an hour ago
        try:
            await work(scene)
        finally:
            scene.end()

    run(main(), seed=seed, shuffled=bool(seed))


def values(first: int, count: int, size: int = 20) -> list[bytes]:
    return [f"{first + n}".encode().ljust(size, b".") for n in range(count)]


def expected(first: int, count: int, size: int = 20) -> list[Record]:
    return [(first + n, value) for n, value in enumerate(values(first, count, size))]


async def attempt(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    try:
        await work
    except (TidelogError, asyncio.CancelledError) as error:
        return error
    return None
