"""History that lies on a bucket already, somebody who looks after it, and processes that die at any request. Under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

import msgspec
import pyarrow as pa

from compaction.context import CompactionContext
from compaction.gc.collector import GarbageCollector
from compaction.maintenance.maintainer import HistoryMaintainer
from compaction.settings import CompactionSettings
from metadata.model import Offset, Revision, TopicPartition
from metadata.store.interface import Put
from metadata.topics.topic import Topic, encode_topic
from segments.bucket.layout import history_file_key, history_file_name, manifest_key, parse_topic_key
from segments.history.manifest import UNKNOWN_MS, HistoryFile, Manifest, encode_manifest, no_manifest
from segments.history.manifest_edits import with_compacted
from segments.history.manifest_store import newest_manifest
from segments.history.parquet_file import ParquetSettings, read_columns, verify_history
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail
from segments.object_store.memory import MemoryObjectStore
from segments.records.columns import SCHEMA
from tests.kit.compaction.compacting import LAYOUT, NAMES, Scene, plain
from tests.kit.segments.batches import ORDERS
from tests.kit.segments.history_files import write_history

GRACE_MS = 1000
SETTINGS = CompactionSettings(
    delete_grace_ms=GRACE_MS,
    merge_bytes_min=1 << 20,
    merge_bytes_max=4 << 20,
    merge_files_min=3,
    dirty_ratio_min=0.5,
    row_group_bytes=200,
    history_file_bytes_max=1 << 20,
    bucket_listing_interval_ms=100 * GRACE_MS,
)
# Offset, timestamp, key, value.
Record = tuple[int, int, bytes | None, bytes | None]


def record(offset: int, key: bytes | None = None, value: bytes | None = b"v", *, at_ms: int = 0) -> Record:
    return offset, at_ms, key, value


def columns_of(records: Sequence[Record]) -> pa.RecordBatch:
    offsets, times, keys, values = zip(*records, strict=True)
    rows = len(offsets)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.timestamp("ms", tz="UTC")),
            pa.array([0] * rows, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[]] * rows, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


class Crash(BaseException):
    """The process dies here."""


class Guarded:
    """A client of the bucket that dies at a request, before or after it happened; and that refuses to delete what is named."""

    def __init__(self, store: ObjectStore, scene: Scene, *, dies_at: int | None = None, after: bool = False) -> None:
        self._store = store
        self._scene = scene
        self._dies_at = dies_at
        self._after = after
        self.calls: list[str] = []
        self.url = store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        self._before(f"create {key}")
        await self._store.create(key, body, crc32c=crc32c)
        self._behind()

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._before(f"get {key}")
        found = await self._store.get(key, start=start, end=end)
        self._behind()
        return found

    async def tail(self, key: str, bytes_max: int) -> Tail:
        self._before(f"tail {key}")
        found = await self._store.tail(key, bytes_max)
        self._behind()
        return found

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self._before(f"list {prefix}")
        found = await self._store.list(prefix, start_after=start_after, limit=limit)
        self._behind()
        return found

    async def delete(self, key: str) -> None:
        self._before(f"delete {key}")
        await check_deletable(self._scene, key)
        await self._store.delete(key)
        self._behind()

    async def close(self) -> None:
        pass

    def _before(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 == self._dies_at and not self._after:
            raise Crash

    def _behind(self) -> None:
        if self._dies_at is not None and len(self.calls) - 1 >= self._dies_at:
            raise Crash


class Meanwhile(Guarded):
    """Something else happens in one request, the first of its kind: before a manifest is created, or behind a read of a file."""

    def __init__(self, scene: Scene, at: Literal["create manifest", "get file"], happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(plain(scene.store), scene)
        self._at: str | None = at
        self._happens = happens

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if "/_log/" in key:
            await self._reached("create manifest")
        await super().create(key, body, crc32c=crc32c)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = await super().get(key, start=start, end=end)
        if key.endswith(".parquet"):
            await self._reached("get file")
        return body

    async def _reached(self, at: str) -> None:
        if self._at == at:
            self._at = None
            await self._happens()


async def check_deletable(scene: Scene, key: str) -> None:
    parsed = parse_topic_key(key)
    if parsed is None:
        return
    life = f"topics/{parsed.name}/{parsed.topic_id}/_log/deleted-"
    if scene.store.keys(life):
        assert parsed.deleted is None, f"{key} is the marker of a topic that was deleted"
        return
    found = parsed.manifest or parsed.history
    assert found is not None, f"{key} is deleted, and its topic is not"
    partition = TopicPartition(parsed.topic_id, found.partition)
    newest = await newest_manifest(plain(scene.store), parsed.name, partition) or no_manifest(partition)
    if parsed.manifest is not None:
        assert parsed.manifest.version < newest.version, f"{key} is the newest manifest"
        reported = {one.version: one.at_ms for one in newest.superseded}.get(parsed.manifest.version)
    else:
        assert parsed.history is not None
        assert parsed.history.file_name not in {file.name for file in newest.files}, f"{key} is named by version {newest.version}"
        assert parsed.history.version <= newest.version, f"{key} may still be named by version {parsed.history.version}"
        reported = {one.name: one.at_ms for one in newest.retired}.get(parsed.history.file_name)
    assert reported is None or reported + GRACE_MS <= scene.now_ms(), f"{key} is deleted while readers may plan with it"


async def write_files(
    scene: Scene,
    *files: Sequence[Record],
    partition: TopicPartition = ORDERS,
    cover: int | None = None,
    appended_by_ms: int = UNKNOWN_MS,
) -> Manifest:
    """Compacts these records, each sequence into a file of its own, as the next version of the manifest."""
    topic, store = NAMES[partition.topic_id], plain(scene.store)
    manifest = await newest_manifest(store, topic, partition) or no_manifest(partition)
    written = []
    for records in files:
        name = history_file_name(Offset(records[0][0]), Offset(records[-1][0]), manifest.version + 1, f"{records[0][0]:016x}")
        file = write_history(
            [columns_of(records)],
            name=name,
            topic=topic,
            partition=partition.partition,
            settings=ParquetSettings(row_group_bytes=SETTINGS.row_group_bytes),
        )
        await store.create(history_file_key(topic, partition, name), [memoryview(file.body)])
        written.append(msgspec.structs.replace(file.file, appended_by_ms=appended_by_ms))
    end = cover if cover is not None else files[-1][-1][0] + 1
    following = with_compacted(
        manifest, files=written, compacted_to=Offset(end), epochs=(), producers=(), writer="test", now_ms=scene.now_ms()
    )
    await store.create(manifest_key(topic, partition, following.version), [encode_manifest(following)])
    return following


async def small_files(scene: Scene, count: int = 4, *, partition: TopicPartition = ORDERS, **settings: str) -> Manifest:
    """Files of two records each, which are to become one; of the topic with these settings, or with records that never expire."""
    await configure(scene, **(settings or {"retention_ms": "-1"}))
    return await write_files(scene, *(some(n * 2, 2, at_ms=0) for n in range(count)), partition=partition)


async def records_in(scene: Scene, partition: TopicPartition = ORDERS) -> list[Record]:
    """What the newest manifest names, of files that are read back whole; from the log start on."""
    manifest = await scene.manifest(partition)
    found: list[Record] = []
    for file in manifest.files:
        found += records_of(scene, file, partition)
    return [one for one in found if one[0] >= manifest.log_start_offset]


def records_of(scene: Scene, file: HistoryFile, partition: TopicPartition = ORDERS) -> list[Record]:
    key = history_file_key(NAMES[partition.topic_id], partition, file.name)
    body = scene.store.content(key)
    verify_history(body, file, key=key)
    found: list[Record] = []
    for columns in read_columns(body, file, key=key):
        times = columns["timestamp"].cast(pa.int64()).to_pylist()
        found += zip(columns["offset"].to_pylist(), times, columns["key"].to_pylist(), columns["value"].to_pylist(), strict=True)
    return found


class Keeper:
    """Somebody who looks after history; a new one knows nothing, as after a crash."""

    def __init__(
        self,
        scene: Scene,
        settings: CompactionSettings = SETTINGS,
        *,
        store: ObjectStore | None = None,
        pending_bytes: Callable[[TopicPartition, Offset], int] = lambda partition, from_offset: 0,
    ) -> None:
        self.scene = scene
        self.context: CompactionContext = scene.context(settings, store=store)
        self.keeping = HistoryMaintainer(self.context, pending_bytes=pending_bytes)
        self.collector = GarbageCollector(self.context)

    def close(self) -> None:
        self.keeping.close()
        self.collector.close()

    async def tick(self) -> int:
        """The first one lists the bucket, and so hears of the partitions."""
        deleted = await self.collector.run()
        return deleted + await self.keeping.run()

    async def until_quiet(self, *, rounds: int = 12) -> None:
        """Lets one grace after the other go by until nothing is left to do."""
        quiet = 0
        for _ in range(rounds):
            quiet = 0 if await self.tick() else quiet + 1
            if quiet >= 3:
                return
            self.scene.ahead_ms += GRACE_MS + 1
        raise AssertionError("it goes on and on")


def guarded_keeper(scene: Scene, settings: CompactionSettings = SETTINGS) -> Keeper:
    """One whose deletes are looked at."""
    return Keeper(scene, settings, store=Guarded(plain(scene.store), scene))


async def settle(scene: Scene, settings: CompactionSettings = SETTINGS) -> None:
    """A new process does what there is to do."""
    keeper = guarded_keeper(scene, settings)
    try:
        await keeper.until_quiet()
    finally:
        keeper.close()


def unnamed(scene: Scene, manifests: Iterable[Manifest]) -> list[str]:
    return scene.orphans(manifests)


def bucket_of(scene: Scene) -> MemoryObjectStore:
    return plain(scene.store)


class Unhurried:
    """A client of the bucket for which every request takes its time, on the way there and on the way back."""

    def __init__(self, store: ObjectStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self.url = store.url

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.01, 0.1, 5.0)))

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._pause()
        try:
            await self._store.create(key, body, crc32c=crc32c)
        finally:
            await self._pause()

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        await self._pause()
        found = await self._store.get(key, start=start, end=end)
        await self._pause()
        return found

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._store.tail(key, bytes_max)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        await self._pause()
        found = await self._store.list(prefix, start_after=start_after, limit=limit)
        await self._pause()
        return found

    async def delete(self, key: str) -> None:
        await self._pause()
        await self._store.delete(key)
        await self._pause()

    async def close(self) -> None:
        pass


async def configure(scene: Scene, **settings: str) -> None:
    """Puts the topic's settings, and returns once the compactor has heard of them."""
    await scene.topics.wait_for(await configure_unheard(scene, **settings), timeout_s=10)


async def configure_unheard(scene: Scene, **settings: str) -> Revision:
    """Puts the topic's settings, and returns at once."""
    topic = Topic(
        id=ORDERS.topic_id,
        name="orders",
        partition_count=1000,
        settings={name.replace("_", "."): text for name, text in settings.items()},
        created_at_ms=0,
    )
    return (await scene.metadata.transact([], [Put(LAYOUT.topic("orders"), encode_topic(topic))])).revision


def some(first: int, count: int, *, at_ms: int) -> list[Record]:
    return [record(first + n, b"k%d" % (first + n), at_ms=at_ms) for n in range(count)]
