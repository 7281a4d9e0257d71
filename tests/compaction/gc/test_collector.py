"""Unreferenced objects are found and deleted after the grace; objects that may be needed stay, and so do unknown ones."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from compaction.deletion_policy import (
    STAGED_ROWS_KEPT_MS,
    SUPERSEDED_MIN,
    collection_due,
    due_for_collection,
    fate_of_file,
    is_leftover_version,
)
from compaction.gc.collector import MARKERS_READ_AT_ONCE
from metadata.errors import Unavailable
from metadata.model import Offset, Partition, Revision, TopicId, TopicPartition
from segments.bucket.deleted_topic import TopicTombstone, encode_deleted_topic
from segments.bucket.layout import (
    TopicIncarnation,
    chosen_key,
    deleted_topic_key,
    done_key,
    history_file_key,
    history_file_name,
    manifest_key,
    parse_topic_key,
    proof_key,
    staged_rows_key,
    topic_mirror_key,
)
from segments.bucket.topic_listing import ListedPartition, Remains, TopicListing
from segments.history.manifest import Manifest, Retired, Superseded, encode_manifest, no_manifest
from segments.history.manifest_edits import with_collected, with_log_start
from segments.object_store.memory import MemoryObjectStore
from tests.kit.compaction.compacting import Scene, on_a_bucket, plain
from tests.kit.compaction.kept import GRACE_MS, SETTINGS, Guarded, Keeper, record, records_in, settle, write_files
from tests.kit.segments.batches import ORDERS, PAYMENTS


def orphan(scene: Scene, version: int, *, partition: TopicPartition = ORDERS, base: int = 0, last: int = 0) -> str:
    """A file that was to be named by this version first."""
    name = history_file_name(Offset(base), Offset(last), version, f"{version:016x}")
    key = history_file_key("orders", partition, name)
    scene.store.plant(key, b"PAR1")
    return key


# ── orphans ──


def test_an_orphan_file_that_no_manifest_can_name_any_more_is_deleted_at_once() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, 1)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        assert await keeper.collector.run() == 1
        assert not scene.store.has(key)
        assert len(await records_in(scene)) == 1
        keeper.close()

    on_a_bucket(work)


def test_an_orphan_file_that_a_writer_may_still_name_is_kept_for_the_grace_and_then_its_version_is_taken() -> None:
    async def work(scene: Scene) -> None:
        manifest = await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, 2)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        assert await keeper.collector.run() == 0
        scene.ahead_ms += GRACE_MS - 1
        assert await keeper.collector.run() == 0
        assert (await scene.manifest()).version == 1
        scene.ahead_ms += 1
        assert await keeper.collector.run() == 1
        assert not scene.store.has(key)
        fenced = await scene.manifest()
        assert (fenced.version, fenced.cause, fenced.files) == (2, "collection", manifest.files)
        keeper.close()

    on_a_bucket(work)


def test_an_orphan_file_that_a_manifest_names_meanwhile_is_kept() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        hidden = {}
        named = await write_files(scene, [record(1, at_ms=scene.now_ms())])
        hidden[manifest_key("orders", ORDERS, 2)] = encode_manifest(named)
        scene.store.remove(manifest_key("orders", ORDERS, 2))
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.collector.run()  # meets the file before its manifest is there
        for key, body in hidden.items():
            scene.store.plant(key, body)
        scene.ahead_ms += GRACE_MS + 1
        await keeper.collector.run()
        assert [one[0] for one in await records_in(scene)] == [0, 1]
        assert (await scene.manifest()).version == 2
        keeper.close()

    on_a_bucket(work)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_with_records_that_no_manifest_has_stays_until_one_has_them(version: int) -> None:
    """Its segments may be gone, and the manifest that named it: it is all that is left of them then."""

    async def work(scene: Scene) -> None:
        if version > 1:
            await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, version, base=version - 1, last=5)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        for _ in range(3):
            await keeper.until_quiet()
            scene.ahead_ms += 200 * GRACE_MS
        assert scene.store.has(key)
        assert (await scene.manifest()).version == version - 1, "no version is created for its sake"
        for offset in range(version - 1, 6):
            await write_files(scene, [record(offset, at_ms=scene.now_ms())])
        keeper.close()
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.until_quiet()
        assert not scene.store.has(key)
        assert [one[0] for one in await records_in(scene)] == [*range(6)]
        keeper.close()

    on_a_bucket(work)


def test_a_file_beyond_the_newest_manifest_stays_though_its_version_was_created_for_something_else() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, 1, base=1, last=5)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.until_quiet()
        assert scene.store.has(key)
        keeper.close()

    on_a_bucket(work)


def test_a_file_whose_records_lie_below_the_log_start_goes_though_they_were_never_compacted() -> None:
    async def work(scene: Scene) -> None:
        manifest = await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, 1, base=1, last=5)
        deleted = with_log_start(manifest, Offset(6), cause="delete-records", writer="w", now_ms=scene.now_ms())
        await plain(scene.store).create(manifest_key("orders", ORDERS, deleted.version), [encode_manifest(deleted)])
        keeper = Keeper(scene)
        await keeper.until_quiet()
        assert not scene.store.has(key)
        keeper.close()

    on_a_bucket(work)


def test_a_file_of_a_far_later_version_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        key = orphan(scene, 7)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.until_quiet()
        assert scene.store.has(key)
        keeper.close()

    on_a_bucket(work)
    assert any("Were manifests deleted by hand?" in text for text in caplog.messages)


def test_leftover_versions_go_and_superseded_ones_when_they_are_worth_it() -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        manifest = await write_files(scene, [record(0, at_ms=now)])
        for n in range(SUPERSEDED_MIN + 2):
            manifest = with_collected(manifest, writer=f"{n}", now_ms=now)
            await plain(scene.store).create(manifest_key("orders", ORDERS, manifest.version), [encode_manifest(manifest)])
        await settle(scene)
        after = await scene.manifest()
        left = [key for key in scene.store.keys("topics/orders/") if "/_log/00000/" in key]
        assert len(left) == len(after.superseded) + 1 <= SUPERSEDED_MIN
        assert after.version == manifest.version + 1
        scene.store.plant(manifest_key("orders", ORDERS, 1), b"a stalled writer's")
        scene.ahead_ms += 200 * GRACE_MS
        await settle(scene)
        assert not scene.store.has(manifest_key("orders", ORDERS, 1))
        assert (await scene.manifest()).version == after.version, "an old manifest that went is no reason to write a new one"

    on_a_bucket(work)


def test_a_damaged_manifest_keeps_all_of_its_partition_and_the_others_are_collected(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        other = TopicPartition(ORDERS.topic_id, Partition(1))
        for partition in (ORDERS, other):
            await write_files(scene, [record(0, at_ms=scene.now_ms())], partition=partition)
        kept, gone = orphan(scene, 1), orphan(scene, 1, partition=other)
        scene.store.plant(manifest_key("orders", ORDERS, 1), b"{")
        keeper = Keeper(scene)
        await keeper.tick()
        assert scene.store.has(kept)
        assert not scene.store.has(gone)
        keeper.close()

    on_a_bucket(work)
    assert any(manifest_key("orders", ORDERS, 1) in text for text in caplog.messages)


# ── deleted topics ──


def topic_objects(scene: Scene) -> list[str]:
    return scene.store.keys("topics/orders/")


def test_a_deleted_topic_leaves_its_marker_and_nothing_else() -> None:
    async def work(scene: Scene) -> None:
        scene.store.plant(topic_mirror_key("orders", ORDERS.topic_id, Revision(1)), b"{}")
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        await write_files(scene, [record(0, at_ms=scene.now_ms())], partition=PAYMENTS)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        await scene.delete_topic("orders", ORDERS.topic_id)
        await keeper.tick()
        assert len(topic_objects(scene)) == 4, "readers that planned with it may go on for a while"
        scene.ahead_ms += GRACE_MS + 1
        await keeper.tick()
        (marker,) = topic_objects(scene)
        assert "/_log/deleted-" in marker
        assert len(await records_in(scene, PAYMENTS)) == 1
        keeper.close()

    on_a_bucket(work)


def test_a_compactor_that_is_restarted_within_every_grace_deletes_what_a_topic_left_all_the_same() -> None:
    """The grace is counted from what the marker says, not from when it was seen first."""

    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        await scene.delete_topic("orders", ORDERS.topic_id)
        left = []
        for _ in range(3):
            scene.ahead_ms += GRACE_MS // 2
            restarted = Keeper(scene, store=Guarded(plain(scene.store), scene))
            await restarted.tick()
            restarted.close()
            left.append(len(topic_objects(scene)))
        assert left == [3, 1, 1], "not before the grace is over"

    on_a_bucket(work)


def some_topic(number: int) -> TopicId:
    """One that is not registered."""
    return TopicId(f"{0xDEAD + number:032x}")


def mark(scene: Scene, revision: int, topic_id: TopicId = ORDERS.topic_id) -> str:
    """As deleted now."""
    marker = TopicTombstone(name="orders", id=topic_id, gone_at_revision=Revision(revision), marked_at_ms=scene.now_ms())
    key = deleted_topic_key("orders", topic_id, Revision(revision))
    scene.store.plant(key, encode_deleted_topic(marker))
    return key


def test_a_topic_that_was_restored_and_is_deleted_again_has_a_grace_of_its_own() -> None:
    """The compactor that deletes starts after the deletion; the first marker is long past."""

    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        mark(scene, 1)
        scene.ahead_ms += 10 * GRACE_MS
        await scene.delete_topic("orders", ORDERS.topic_id)
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        scene.ahead_ms += GRACE_MS - 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 4
        scene.ahead_ms += 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 2, "both markers stay"
        keeper.close()

    on_a_bucket(work)


@pytest.mark.parametrize("marked_late", [False, True])
def test_a_topic_that_is_deleted_again_while_the_collector_deletes_it_is_collected_too(marked_late: bool) -> None:
    """Also while the first marker alone is there: the second one comes a moment after the metadata cease to name the topic."""

    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        mark(scene, 1)
        scene.ahead_ms += 10 * GRACE_MS
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        await scene.delete_topic("orders", ORDERS.topic_id)
        markers = [key for key in topic_objects(scene) if "/_log/deleted-" in key]
        second = scene.store.content(markers[1])
        if marked_late:
            scene.store.remove(markers[1])
        await keeper.tick()
        scene.store.remove(markers[1])
        scene.store.plant(markers[1], second)
        scene.ahead_ms += GRACE_MS - 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 4
        scene.ahead_ms += 1
        await keeper.tick()
        assert topic_objects(scene) == markers
        keeper.close()

    on_a_bucket(work)


def test_a_later_marker_puts_off_a_sweep_that_is_planned() -> None:
    """The topic was restored and deleted again unseen: the metadata were not followed meanwhile, or came from a snapshot."""

    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        await scene.delete_topic("orders", ORDERS.topic_id)
        settings = replace(SETTINGS, bucket_listing_interval_ms=GRACE_MS // 2)
        keeper = Keeper(scene, settings, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        scene.ahead_ms += GRACE_MS - 1
        mark(scene, 1_000)
        await keeper.tick()
        scene.ahead_ms += GRACE_MS - 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 4
        scene.ahead_ms += 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 2
        keeper.close()

    on_a_bucket(work)


def test_the_marker_of_a_topic_that_has_left_nothing_else_costs_no_request() -> None:
    """Markers are never deleted, and each listing shows all of them."""

    async def work(scene: Scene) -> None:
        for number in range(500):
            mark(scene, 1, some_topic(number))
        store = Guarded(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        for _ in range(3):
            await keeper.tick()
            scene.ahead_ms += 10 * GRACE_MS
        assert not [call for call in store.calls if call.startswith("get ")]
        assert len(store.calls) <= 3
        keeper.close()

    on_a_bucket(work)


def test_the_markers_of_many_topics_that_were_deleted_at_once_are_read_some_at_a_time() -> None:
    async def work(scene: Scene) -> None:
        count = 2 * MARKERS_READ_AT_ONCE + 10
        for number in range(count):
            mark(scene, 1, some_topic(number))
            scene.store.plant(topic_mirror_key("orders", some_topic(number), Revision(1)), b"{}")
        scene.ahead_ms += GRACE_MS
        store = Guarded(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        left = []
        for _ in range(3):
            store.calls.clear()
            await keeper.tick()
            assert sum(call.startswith("get ") for call in store.calls) <= MARKERS_READ_AT_ONCE
            left.append(len(topic_objects(scene)) - count)
        assert left == [count - MARKERS_READ_AT_ONCE, count - 2 * MARKERS_READ_AT_ONCE, 0]
        keeper.close()

    on_a_bucket(work)


def test_a_marker_is_read_again_where_the_bucket_was_away_and_holds_up_no_other() -> None:
    async def work(scene: Scene) -> None:
        away, other = TopicId("a" * 32), TopicId("b" * 32)
        for topic_id in (away, other):
            mark(scene, 1, topic_id)
            scene.store.plant(topic_mirror_key("orders", topic_id, Revision(1)), b"{}")
        scene.ahead_ms += GRACE_MS

        class Away(Guarded):
            failing = True

            async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
                if self.failing and away in key:
                    raise Unavailable("away")
                return await super().get(key, start=start, end=end)

        store = Away(plain(scene.store), scene)
        keeper = Keeper(scene, store=store)
        for _ in range(2):
            await keeper.tick()
        assert [away in key for key in topic_objects(scene)] == [True, True, False]
        store.failing = False
        await keeper.tick()
        assert len(topic_objects(scene)) == 2, "its grace began when it was marked, not when it was read"
        keeper.close()

    on_a_bucket(work)


@pytest.mark.parametrize("reported_ms", [None, 10 * GRACE_MS])
def test_the_grace_of_a_topic_whose_marker_has_no_time_or_a_future_one_begins_when_seen(reported_ms: int | None) -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        await scene.delete_topic("orders", ORDERS.topic_id)
        reported = None if reported_ms is None else scene.now_ms() + reported_ms
        marker = TopicTombstone(name="orders", id=ORDERS.topic_id, gone_at_revision=Revision(9), marked_at_ms=reported)
        for key in [key for key in topic_objects(scene) if "/_log/deleted-" in key]:
            scene.store.remove(key)
            scene.store.plant(key, encode_deleted_topic(marker) if reported_ms is not None else b"of somebody else")
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        scene.ahead_ms += GRACE_MS - 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 3
        scene.ahead_ms += 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 1
        keeper.close()

    on_a_bucket(work)


def test_files_that_a_stalled_compactor_writes_after_the_sweep_go_with_the_next() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        keeper = Keeper(scene, store=Guarded(plain(scene.store), scene))
        await keeper.tick()
        await scene.delete_topic("orders", ORDERS.topic_id)
        await keeper.tick()
        scene.ahead_ms += GRACE_MS + 1
        await keeper.tick()
        await write_files(scene, [record(0, at_ms=scene.now_ms())])  # file and manifest
        scene.ahead_ms += GRACE_MS + 1
        await keeper.tick()
        assert len(topic_objects(scene)) == 1
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        scene.ahead_ms += 200 * GRACE_MS
        await keeper.until_quiet()
        assert len(topic_objects(scene)) == 1, "the daily listing finds what came later still"
        keeper.close()

    on_a_bucket(work)


def test_a_topic_that_is_deleted_while_it_is_merged_leaves_nothing_behind() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, *([record(n, at_ms=scene.now_ms())] for n in range(4)))

        class Deleting(Guarded):
            done = False

            async def create(self, key: str, body: Any, *, crc32c: int | None = None) -> None:
                if key.endswith(".parquet") and not self.done:
                    self.done = True
                    await scene.delete_topic("orders", ORDERS.topic_id)
                    scene.ahead_ms += 10 * GRACE_MS
                    await settle(scene)
                    assert len(topic_objects(scene)) == 1
                await super().create(key, body, crc32c=crc32c)

        keeper = Keeper(scene, store=Deleting(plain(scene.store), scene))
        await keeper.tick()
        assert len(topic_objects(scene)) > 1
        await keeper.until_quiet()
        scene.ahead_ms += 200 * GRACE_MS
        await settle(scene)
        assert len(topic_objects(scene)) == 1
        keeper.close()

    on_a_bucket(work)


def test_a_topic_that_is_gone_from_the_metadata_and_not_marked_stays() -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        orphaned = orphan(scene, 1)
        await scene.delete_topic("orders", ORDERS.topic_id)
        for key in [key for key in topic_objects(scene) if "/_log/deleted-" in key]:
            scene.store.remove(key)
        before = topic_objects(scene)
        scene.ahead_ms += 10 * GRACE_MS
        await settle(scene)
        assert topic_objects(scene) == before
        assert scene.store.has(orphaned)

    on_a_bucket(work)


def test_a_topic_that_is_marked_as_deleted_and_registered_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        await write_files(scene, [record(0, at_ms=scene.now_ms())])
        scene.store.plant(deleted_topic_key("orders", ORDERS.topic_id, Revision(9)), b"{}")
        before = topic_objects(scene)
        await settle(scene)
        assert topic_objects(scene) == before

    with caplog.at_level(logging.ERROR):
        on_a_bucket(work)
    assert any("it is registered, and marked as deleted" in text for text in caplog.messages)


def test_scratch_of_proofs_goes_when_two_listings_show_it() -> None:
    async def work(scene: Scene) -> None:
        scene.store.plant(proof_key("1"), b"x")
        keeper = Keeper(scene)
        await keeper.tick()
        scene.store.plant(proof_key("2"), b"x")
        scene.ahead_ms += 200 * GRACE_MS
        await keeper.tick()
        assert scene.store.keys("proof/") == [proof_key("2")]
        keeper.close()

    on_a_bucket(work)


def test_rows_that_spark_has_staged_go_after_a_week_and_what_became_of_them_stays() -> None:
    async def work(scene: Scene) -> None:
        now_ms, write = scene.now_ms(), "0f" * 16
        stale = staged_rows_key(write, 1, now_ms - STAGED_ROWS_KEPT_MS, "a" * 16, 0)
        kept = [
            staged_rows_key(write, 1, now_ms - STAGED_ROWS_KEPT_MS + 60_000, "a" * 16, 1),
            chosen_key(write, 1),
            done_key(write, 0),
            "spark/of-somebody-else",
        ]
        for key in (stale, *kept):
            scene.store.plant(key, b"x")
        keeper = Keeper(scene)
        await keeper.tick()
        assert scene.store.keys("spark/") == sorted(kept)
        keeper.close()

    on_a_bucket(work)


# ── many objects ──


@pytest.mark.slow
def test_a_listing_of_many_objects_goes_on_over_several_calls_and_is_never_in_memory() -> None:
    """100,000 orphans of one topic, and pages of a thousand: what is held at a time is a few partitions."""

    async def work(scene: Scene) -> None:
        files = [history_file_name(Offset(n * 10), Offset(n * 10 + 9), 1, f"{n:016x}") for n in range(100)]
        objects: dict[str, bytes] = {}
        for number in range(1000):
            partition = TopicPartition(ORDERS.topic_id, Partition(number))
            manifest = with_collected(no_manifest(partition), writer="w", now_ms=0)
            manifest = msgspec.structs.replace(manifest, compacted_to=Offset(1_000))
            objects[manifest_key("orders", partition, 1)] = encode_manifest(manifest)
            objects |= {history_file_key("orders", partition, name): b"" for name in files}
        store = MemoryObjectStore()
        store._objects, store._keys = objects, sorted(objects)

        class Watching(MemoryObjectStore):
            held_max = 0

            async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Any:
                self.held_max = max(self.held_max, sum(len(one.files) for one in keeper.collector._batch))
                return await super().list(prefix, start_after=start_after, limit=limit)

            async def delete(self, key: str) -> None:
                deleted.append(key)

        deleted: list[str] = []
        watching = Watching()
        watching._objects, watching._keys = store._objects, store._keys
        keeper = Keeper(scene, store=watching)
        calls = 1
        await keeper.collector.run()
        while keeper.collector._listing is not None:
            calls += 1
            await keeper.collector.run()
        assert len(set(deleted)) == 100_000
        assert 3 <= calls <= 12
        assert watching.held_max <= 26_000
        keeper.close()

    on_a_bucket(work)


# ── the decisions ──


def test_a_listing_is_grouped_by_partition() -> None:
    topic_a, topic_b, over = TopicId("a" * 32), TopicId("b" * 32), TopicId("c" * 32)

    def partition_at(topic_id: TopicId, number: int) -> TopicPartition:
        return TopicPartition(topic_id, Partition(number))

    def file(topic_id: TopicId, number: int, offset: int) -> str:
        return history_file_key("t", partition_at(topic_id, number), history_file_name(Offset(offset), Offset(offset), 1, "0" * 16))

    keys = sorted(
        [
            *(manifest_key("t", partition_at(topic_a, number), version) for number in (0, 1, 2) for version in (1, 2)),
            topic_mirror_key("t", topic_a, Revision(1)),
            *(file(topic_a, number, offset) for number in (1, 10, 2) for offset in (0, 1)),
            manifest_key("t", partition_at(topic_b, 0), 5),
            deleted_topic_key("t", over, Revision(3)),
            manifest_key("t", partition_at(over, 0), 5),
            file(over, 0, 0),
        ]
    )
    listing = TopicListing()
    reported: list[ListedPartition] = []
    for key in [*keys, None]:
        parsed = parse_topic_key(key) if key is not None else None
        for one in listing.take_in(parsed, 7) if parsed is not None else listing.end():
            assert one == Remains(TopicIncarnation("t", over), Revision(3)) or isinstance(one, ListedPartition)
            reported += [one] if isinstance(one, ListedPartition) else []
    assert [(one.partition, one.versions, len(one.files)) for one in reported] == [
        (partition_at(topic_a, 1), [1, 2], 2),
        (partition_at(topic_a, 10), [], 2),
        (partition_at(topic_a, 2), [1, 2], 2),
        (partition_at(topic_a, 0), [1, 2], 0),
        (partition_at(topic_b, 0), [5], 0),
    ]
    assert {found.size_bytes for one in reported for found in one.files} == {7}


def test_deleted_topics_with_objects_left_are_listed_with_their_newest_marker() -> None:
    ids = [TopicId(letter * 32) for letter in "abcdef"]
    before, behind, alone, live, twice, last = ids
    keys = sorted(
        [
            manifest_key("t", TopicPartition(before, Partition(0)), 1),
            *(deleted_topic_key("t", topic_id, Revision(3)) for topic_id in ids if topic_id != live),
            topic_mirror_key("t", behind, Revision(1)),
            topic_mirror_key("t", live, Revision(1)),
            deleted_topic_key("t", twice, Revision(20)),
            history_file_key("t", TopicPartition(twice, Partition(0)), "of-somebody-else"),
            manifest_key("t", TopicPartition(last, Partition(0)), 1),
        ]
    )
    listing = TopicListing()
    reported = [one for key in keys if (parsed := parse_topic_key(key)) is not None for one in listing.take_in(parsed, 7)]
    reported += [*listing.end(), *listing.end()]
    assert reported == [
        Remains(TopicIncarnation("t", before), Revision(3)),
        Remains(TopicIncarnation("t", behind), Revision(3)),
        Remains(TopicIncarnation("t", twice), Revision(20)),
        Remains(TopicIncarnation("t", last), Revision(3)),
    ]
    assert alone not in {one.topic.topic_id for one in reported if isinstance(one, Remains)}


def test_files_that_a_manifest_has_retired_wait_for_their_grace() -> None:
    manifest = Manifest(
        *ORDERS,
        9,
        "w",
        0,
        "merge",
        Offset(0),
        Offset(0),
        retired=(Retired("a", 100), Retired("b", 200)),
        superseded=(Superseded(7, 100, "w"), Superseded(8, 200, "w")),
    )
    assert due_for_collection(manifest, grace_ms=50, now_ms=149) == ([], [])
    assert due_for_collection(manifest, grace_ms=50, now_ms=150) == (["a"], [7])
    assert collection_due(manifest, grace_ms=50, now_ms=150)
    assert not collection_due(with_collected(manifest, files={"a", "b"}, writer="w", now_ms=0), grace_ms=50, now_ms=10_000)
    assert [is_leftover_version(version, manifest) for version in (6, 7, 8, 9, 10)] == [True, False, False, False, False]


def test_the_fate_of_a_file_follows_from_the_newest_manifest_alone() -> None:
    def fate(version: int, newest: Manifest | None) -> str:
        key = parse_topic_key(history_file_key("t", ORDERS, history_file_name(Offset(0), Offset(1), version, "0" * 16)))
        assert key is not None
        assert key.history is not None
        return fate_of_file(key.history, newest)

    third = Manifest(*ORDERS, 3, "w", 0, "merge", Offset(0), Offset(2))
    assert [fate(version, third) for version in (2, 3, 4, 5)] == ["delete", "delete", "wait", "odd"]
    below_log_start = Manifest(*ORDERS, 3, "w", 0, "merge", Offset(2), Offset(0))
    assert [fate(version, below_log_start) for version in (2, 3, 4, 5)] == ["delete", "delete", "wait", "odd"]
    not_compacted = Manifest(*ORDERS, 3, "w", 0, "merge", Offset(0), Offset(1))
    assert [fate(version, not_compacted) for version in (2, 3, 4, 5)] == ["ahead", "ahead", "ahead", "odd"]
    assert [fate(version, None) for version in (1, 2)] == ["ahead", "odd"]
    retired = Manifest(
        *ORDERS, 3, "w", 0, "merge", Offset(0), Offset(0), retired=(Retired(f"{0:020d}-{1:020d}-2-{'0' * 16}.parquet", 0),)
    )
    assert fate(2, retired) == "named"
