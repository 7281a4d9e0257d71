"""Every topic is on the bucket before its first record can be, each change of it after that, and its deletion in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.controller import topic_mirror
from gateway.controller.metadata_snapshots import take_snapshot
from gateway.controller.topic_mirror import TopicMirror
from metadata.errors import OutcomeUnknown, Rejected, TidelogError, Unavailable
from metadata.model import Offset, Partition, Revision, TopicId, TopicPartition
from metadata.store.interface import KeyValue, Put
from metadata.store.sqlite.store import SqliteStore
from metadata.topics.cache import TopicCache
from metadata.topics.registry import TopicRegistry
from metadata.topics.topic import Topic, decode_topic
from segments.bucket.deleted_topic import parse_deleted_topic
from segments.bucket.layout import (
    TOPICS,
    TopicKey,
    history_file_key,
    history_file_name,
    manifest_key,
    parse_topic_key,
    topic_mirror_key,
    topic_prefix,
)
from segments.object_store.interface import Buffer, ListPage, list_all
from segments.object_store.memory import MemoryObjectStore
from tests.kit.gateway.listenerless_cluster import LAYOUT, cluster_of, now_ms, until


async def proven() -> None:
    """No other copy of the metadata has appointed leaders."""


class CountingBucket(MemoryObjectStore):
    """Counts listings and creates below topics/, and fails the creates while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.creates = self.lists = 0
        self.fails: TidelogError | None = None

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if key.startswith(TOPICS):
            self.creates += 1
            if self.fails is not None:
                raise self.fails
        await super().create(key, body, crc32c=crc32c)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        self.lists += 1
        return await super().list(prefix, start_after=start_after, limit=limit)


async def mirrored(bucket: MemoryObjectStore, topic_id: TopicId | None = None) -> list[TopicKey]:
    """Content of the mirror, by name and then by kind and revision."""
    found = [parsed async for info in list_all(bucket, TOPICS) if (parsed := parse_topic_key(info.key)) is not None]
    return [parsed for parsed in found if topic_id in (None, parsed.topic_id)]


def run(tmp_path: Path, test: Callable[[CountingBucket, SqliteStore], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        try:
            await test(CountingBucket(), metadata)
        finally:
            await metadata.close()

    asyncio.run(main())


# ── as the controller calls it ──


@pytest.mark.slow
def test_a_partition_gets_no_leader_before_its_topic_is_on_the_bucket(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:
            bucket.fails = Unavailable("the bucket takes no topics")
            topic = await cluster.topics.create("orders", 2)

            async def tried() -> bool:
                return bucket.creates > 2

            await until(tried)
            assert await cluster.states() == {}
            bucket.fails = None
            await cluster.until_led(topic)
            assert await mirrored(bucket) == [TopicKey("orders", topic.id, registered=topic.revision)]
            body = await bucket.get(topic_mirror_key("orders", topic.id, topic.revision))
            stored = KeyValue(LAYOUT.topic("orders"), body, topic.revision, topic.revision, 1)
            assert decode_topic(stored) == topic

    run(tmp_path, test)


@pytest.mark.slow
def test_each_change_is_an_object_of_its_own(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:
            made = await cluster.create("orders")
            altered = await cluster.topics.alter("orders", settings={"retention.ms": "5"})

            async def first_there() -> bool:
                return len(await mirrored(bucket)) == 2

            await until(first_there)
            grown = await cluster.topics.alter("orders", partition_count=2)
            await cluster.until_led(grown)

            async def all_there() -> bool:
                return len(await mirrored(bucket)) == 3

            await until(all_there)
            assert [found.registered for found in await mirrored(bucket)] == [made.revision, altered.revision, grown.revision]

    run(tmp_path, test)


@pytest.mark.slow
def test_a_deletion_is_marked_before_the_partitions_are_forgotten(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:
            topic = await cluster.create("orders", 2)
            bucket.fails = Unavailable("the bucket takes no topics")
            await cluster.topics.delete("orders")

            async def tried() -> bool:
                return bucket.creates > 2

            await until(tried)
            assert len(await cluster.states()) == 2
            bucket.fails = None

            async def forgotten() -> bool:
                return not await cluster.states()

            await until(forgotten)
            (mark,) = [found for found in await mirrored(bucket, topic.id) if found.deleted is not None]
            assert mark.deleted is not None
            assert mark.deleted > topic.revision

    run(tmp_path, test)


@pytest.mark.slow
def test_the_mirror_makes_up_for_changes_while_there_was_no_controller(tmp_path: Path) -> None:
    """A topic altered, and one deleted of which the next broker has never heard: its name is found on the bucket."""

    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:
            others = [await cluster.create(name) for name in ("a", "z")]
            gone = await cluster.create("gone")
        altered = await TopicRegistry(metadata, LAYOUT).alter("a", settings={"retention.ms": "5"})
        await TopicRegistry(metadata, LAYOUT).delete("gone")
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:

            async def made_up() -> bool:
                revisions = [found.registered for found in await mirrored(bucket, others[0].id)]
                return len(await cluster.states()) == 2 and revisions == [others[0].revision, altered.revision]

            await until(made_up)
            assert [found.deleted is not None for found in await mirrored(bucket, gone.id)] == [True, False]

    run(tmp_path, test)


@pytest.mark.slow
def test_a_new_controller_writes_nothing_of_topics_that_a_snapshot_has(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with cluster_of(bucket, metadata, ["b1"]) as cluster:
            for number in range(30):
                await cluster.create(f"topic-{number}")
        creates = bucket.creates
        assert creates == 30
        async with cluster_of(bucket, metadata, ["b2"]) as cluster:
            await cluster.create("one-more")
            assert bucket.creates == creates + 1

    run(tmp_path, test)


# ── alone ──


@asynccontextmanager
async def mirroring(
    bucket: MemoryObjectStore, metadata: SqliteStore
) -> AsyncIterator[tuple[TopicRegistry, TopicCache, TopicMirror]]:
    cache = TopicCache(metadata, LAYOUT)
    mirror = TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=now_ms, prove=proven)
    following = asyncio.ensure_future(cache.run())
    await cache.wait_for(Revision(1), timeout_s=10)
    try:
        yield TopicRegistry(metadata, LAYOUT), cache, mirror
    finally:
        following.cancel()


def test_a_copy_of_the_metadata_that_has_lost_registers_no_topic(tmp_path: Path) -> None:
    """It creates a batch of appointments before the registration, and another copy has taken the number of that batch."""

    async def lost() -> None:
        raise Rejected("appointments that the metadata do not contain")

    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, _):
            topic = await made(topics, cache)
            with pytest.raises(Rejected):
                await TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=now_ms, prove=lost).ensure([topic])
            assert bucket.creates == 0

    run(tmp_path, test)


def test_one_batch_of_appointments_proves_a_topic_until_it_is_altered(tmp_path: Path) -> None:
    """A bucket that refuses registrations for long does not fill up with batches."""
    proofs: list[int] = []

    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async def prove() -> None:
            proofs.append(bucket.creates)

        async with mirroring(bucket, metadata) as (topics, cache, _):
            mirror = TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=now_ms, prove=prove)
            bucket.fails = Unavailable("refused")
            for topic in (await made(topics, cache), await topics.alter("orders", settings={"retention.ms": "5"})):
                for _ in range(3):
                    assert isinstance((await mirror.ensure([topic]))[topic.id], Unavailable)
            bucket.fails = None
            assert await mirror.ensure([topic]) == {}
            assert len(proofs) == 2
            assert proofs[0] == 0, "the proof came before the registration"

    run(tmp_path, test)


def test_a_topic_that_is_deleted_during_its_proof_is_not_registered(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, _):

            async def delete() -> None:
                await topics.delete("orders")
                await cache.catch_up_with_all(timeout_s=10)

            topic = await made(topics, cache)
            await TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=now_ms, prove=delete).ensure([topic])
            assert bucket.creates == 0

    run(tmp_path, test)


async def made(topics: TopicRegistry, cache: TopicCache, name: str = "orders") -> Topic:
    topic = await topics.create(name, 1)
    await cache.wait_for(topic.revision, timeout_s=10)
    return topic


def test_a_topic_is_written_once_by_one_controller_and_again_by_the_next_does_no_harm(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            topic = await made(topics, cache)
            await mirror.ensure([topic])
            await mirror.ensure([topic])
            assert bucket.creates == 1
            await TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=now_ms, prove=proven).ensure([topic])
            assert len(await mirrored(bucket)) == 1

    run(tmp_path, test)


def test_a_create_whose_answer_was_lost_is_made_again_and_in_the_end_given_up(tmp_path: Path) -> None:
    class Deaf(CountingBucket):
        lost = 1

        async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            await super().create(key, body, crc32c=crc32c)
            if self.lost:
                self.lost -= 1
                raise OutcomeUnknown("the answer was lost")

    async def test(_: CountingBucket, metadata: SqliteStore) -> None:
        bucket = Deaf()
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            await mirror.ensure([await made(topics, cache)])
            assert len(await mirrored(bucket)) == 1
            bucket.fails = OutcomeUnknown("no answer")
            (error,) = (await mirror.ensure([await made(topics, cache, "payments")])).values()
            assert "could not be written" in error.message

    run(tmp_path, test)


def test_different_content_under_the_same_revision_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It can't be, unless the metadata were set back to a backup of their own."""

    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            topic = await made(topics, cache)
            await bucket.create(topic_mirror_key("orders", topic.id, topic.revision), [b"{}"])
            await mirror.ensure([topic])
            assert "was etcd set back to a backup" in caplog.text

    run(tmp_path, test)


def test_after_a_restore_revisions_go_on_where_they_were(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.revision_base, b"9000")])
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            topic = await made(topics, cache)
            await mirror.ensure([topic])
            await mirror.ensure_deleted([topic.id])
            deleted, registered = await mirrored(bucket)
            assert registered.registered == topic.revision + 9000
            assert deleted.deleted is not None
            assert deleted.deleted >= registered.registered

    run(tmp_path, test)


def test_a_deletion_says_when_it_was_marked_and_another_time_for_the_same_is_no_contradiction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            topic = await made(topics, cache)
            await mirror.ensure([topic])
            begun_ms = now_ms()
            await mirror.ensure_deleted([topic.id])
            [info] = [info async for info in list_all(bucket, f"{topic_prefix('orders', topic.id)}_log/deleted-")]
            marker = parse_deleted_topic(await bucket.get(info.key))
            assert marker is not None
            assert marker.marked_at_ms is not None
            assert begun_ms <= marker.marked_at_ms <= now_ms()
            later = TopicMirror(bucket, metadata, cache, LAYOUT, now_ms=lambda: now_ms() + 60_000, prove=proven)
            await later.ensure_deleted([topic.id])
            assert "was etcd set back to a backup" not in caplog.text

    run(tmp_path, test)


@pytest.mark.slow
def test_the_mirror_goes_on_when_the_bucket_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_mirror, "PAUSE_S", 0.0)

    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            topic = await made(topics, cache)
            bucket.fails = Unavailable("the bucket takes no topics")
            running = asyncio.ensure_future(mirror.run())

            async def tried() -> bool:
                return bucket.creates > 2

            await until(tried)
            bucket.fails = None

            async def there() -> bool:
                return [found.registered for found in await mirrored(bucket)] == [topic.revision]

            await until(there)
            running.cancel()

    run(tmp_path, test)


def test_a_deleted_topic_of_which_nothing_is_on_the_bucket_needs_no_mark(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            await mirror.ensure([await made(topics, cache)])
            await mirror.ensure_deleted([TopicId("f" * 32)])
            assert len(await mirrored(bucket)) == 1

    run(tmp_path, test)


@pytest.mark.slow
def test_the_mirror_writes_only_topics_that_are_newer_than_the_last_snapshot(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"c")])
        async with mirroring(bucket, metadata) as (topics, cache, mirror):
            await made(topics, cache)
            await take_snapshot(bucket, metadata, LAYOUT, now_ms=now_ms)
            later = await made(topics, cache, "later")
            running = asyncio.ensure_future(mirror.run())

            async def there() -> bool:
                return [found.topic_id for found in await mirrored(bucket)] == [later.id]

            await until(there)
            running.cancel()

    run(tmp_path, test)


def test_the_name_of_a_deleted_topic_is_found_without_a_look_at_manifests_and_files(tmp_path: Path) -> None:
    async def test(bucket: CountingBucket, metadata: SqliteStore) -> None:
        gone = TopicPartition(TopicId("f" * 32), Partition(0))
        for name, partition in (("a", TopicPartition(TopicId("a" * 32), Partition(0))), ("gone", gone)):
            await bucket.create(topic_mirror_key(name, partition.topic_id, Revision(5)), [b"{}"])
            for number in range(1, 2_000):
                await bucket.create(manifest_key(name, partition, number), [b""])
                file_name = history_file_name(Offset(number), Offset(number), 1, f"{number:016x}")
                await bucket.create(history_file_key(name, partition, file_name), [b""])
        async with mirroring(bucket, metadata) as (_, _, mirror):
            bucket.lists = 0
            await mirror.ensure_deleted([gone.topic_id])
            assert bucket.lists == 2, "one for each topic"
        assert any(found.deleted is not None for found in await mirrored(bucket, gone.topic_id))

    run(tmp_path, test)
