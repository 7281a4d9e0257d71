"""From segments to history: what is read, what is written, what is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from compaction.compactor import BLOCKED_MS, RESCAN_MS, Compactor
from compaction.context import CompactionContext
from compaction.conversion import convert_unit, partition_file
from compaction.conversion.partition_file import CompactedRuns
from compaction.conversion.scratch import ScratchFile, StoredRun
from compaction.conversion.unit_files import encoded
from compaction.service import CompactionService
from compaction.settings import CompactionSettings
from metadata.backup.restore_state import SkippedSessions, encode_skipped
from metadata.cluster.manifest_notice import ManifestNotice, decode_notices
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.errors import Corrupt, Denied, Unavailable
from metadata.model import Offset, SegmentSeq, SessionId, TopicPartition
from metadata.store.interface import Put
from metadata.topics.topic import Topic
from segments.bucket.layout import history_file_key, manifest_key, segment_key, topic_prefix, trimmed_key
from segments.history.manifest import Manifest, no_manifest
from segments.history.manifest_edits import with_log_start
from segments.history.manifest_store import commit_manifest
from segments.settings import SegmentSettings
from tests.kit.compaction.blows import StruckStore
from tests.kit.compaction.compacting import AT_ONCE, LAYOUT, Scene, expected, on_a_bucket, plain, values
from tests.kit.seeds import seeds
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, batch_of, partition_of, sequenced_batch


def test_segments_become_history_and_each_of_them_is_read_once() -> None:
    async def work(scene: Scene) -> None:
        for n in range(5):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))], PAYMENTS: [batch_of(b"p")]})
        store = StruckStore(scene.store)
        report = await scene.compactor(store=store).tick()
        assert report.manifests == 2
        assert await scene.history() == expected(0, 50)
        assert await scene.history(PAYMENTS) == [(n, b"p") for n in range(5)]
        assert (await scene.manifest()).compacted_to == 50
        assert store.count("get", "wal/") == 5
        assert store.count("create", "topics/") == 4, "a file and a manifest for each partition"
        assert not (await scene.compacted()).manifests

    on_a_bucket(work)


def test_brokers_are_notified_of_partitions_with_a_newer_manifest() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"p")]})
        await scene.compacted()
        (reported,) = (await scene.metadata.range(LAYOUT.compactions)).items
        assert [(notice.topic_partition, notice.version) for notice in decode_notices(reported)] == [(ORDERS, 1), (PAYMENTS, 1)]
        assert reported.lease, "it goes away by itself"

    on_a_bucket(work)


def test_sequences_and_leader_epochs_are_carried_from_manifest_to_manifest() -> None:
    async def work(scene: Scene) -> None:
        for n in range(3):
            scene.store.segment(7, {ORDERS: [sequenced_batch(5, n)]})
        await scene.compacted()
        for n in range(3, 7):
            scene.store.segment(8, {ORDERS: [sequenced_batch(5, n), sequenced_batch(6, n - 3)]}, epoch=EPOCH + 2)
        await scene.compacted()
        manifest = await scene.manifest()
        assert manifest.version == 2
        assert [(begun.leader_epoch, begun.start_offset) for begun in manifest.epochs] == [(EPOCH, 0), (EPOCH + 2, 3)]
        remembered = {one.producer_id: [batch.base_sequence for batch in one.batches] for one in manifest.producers}
        assert remembered == {5: [2, 3, 4, 5, 6], 6: [0, 1, 2, 3]}

    on_a_bucket(work)


def test_a_file_ends_where_it_is_large_enough_each_committed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_file, "DECODED_AT_ONCE", 2_000)
    settings = CompactionSettings(compaction_due_age_ms=1, history_file_bytes_max=1_000, row_group_bytes=1_000, merge_files_min=99)

    async def work(scene: Scene) -> None:
        for n in range(20):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10, size=200))]})
        report = await scene.compacted(settings)
        manifest = await scene.manifest()
        assert report.manifests == len(manifest.files) == manifest.version > 2
        assert await scene.history() == expected(0, 200, size=200)
        assert [file.base_offset for file in manifest.files[1:]] == [file.last_offset + 1 for file in manifest.files[:-1]]

    on_a_bucket(work)


def test_records_below_the_log_start_are_left_out_and_what_their_producers_sent_is_not() -> None:
    async def work(scene: Scene) -> None:
        for n in range(4):
            scene.store.segment(7, {ORDERS: [sequenced_batch(5, 2 * n, b"a", b"b")]})
        raised = with_log_start(no_manifest(ORDERS), Offset(3), writer="0" * 32, now_ms=0)
        assert await commit_manifest(plain(scene.store), "orders", raised)
        await scene.compacted()
        assert await scene.history() == [(3, b"b"), (4, b"a"), (5, b"b"), (6, b"a"), (7, b"b")]
        (file,) = (await scene.manifest()).files
        assert (file.base_offset, file.last_offset, file.record_count) == (3, 7, 5)
        (producer,) = (await scene.manifest()).producers
        assert [batch.base_sequence for batch in producer.batches] == [0, 2, 4, 6]

    on_a_bucket(work)


def test_where_all_records_are_below_the_log_start_no_file_is_written() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [sequenced_batch(5, 0, b"a", b"b")]})
        raised = with_log_start(no_manifest(ORDERS), Offset(2), writer="0" * 32, now_ms=0)
        assert await commit_manifest(plain(scene.store), "orders", raised)
        await scene.compacted(CompactionSettings())  # at once, though it is young
        manifest = await scene.manifest()
        assert (manifest.compacted_to, manifest.files, len(manifest.producers)) == (2, (), 1)

    on_a_bucket(work)


# ── what leaders delete ──


async def delete_records(scene: Scene, before_offset: int) -> ManifestNotice:
    """Deletes records as the leader does. Returns its notice."""
    raised = with_log_start(await scene.manifest(), Offset(before_offset), writer="0" * 32, now_ms=scene.now_ms())
    assert await commit_manifest(plain(scene.store), "orders", raised)
    return ManifestNotice(*ORDERS, raised.version, is_deletion=True)


def files_of_orders(scene: Scene) -> int:
    return len(scene.store.keys(f"topics/orders/{ORDERS.topic_id}/partition=0/"))


def test_files_of_deleted_records_leave_the_bucket_after_the_leaders_notice_and_the_grace() -> None:
    async def work(scene: Scene) -> None:
        compactor = scene.compactor(replace(AT_ONCE, merge_files_min=99))
        for n in range(2):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))]})
            await compactor.tick()
        notice = await delete_records(scene, 10)
        for _ in range(3):
            scene.ahead_ms += 1000
            await compactor.tick()
        assert files_of_orders(scene) == 2, "no notice has come"
        compactor.hear([notice])
        await compactor.tick()
        scene.ahead_ms += 1000
        await compactor.tick()
        assert files_of_orders(scene) == 1
        assert await scene.history() == expected(10, 10)

    on_a_bucket(work)


def test_segments_of_deleted_records_are_compacted_after_the_leaders_notice() -> None:
    async def work(scene: Scene) -> None:
        compactor = scene.compactor(CompactionSettings())
        scene.store.segment(7, {ORDERS: [sequenced_batch(5, 0, b"a", b"b")]})
        await compactor.tick()
        compactor.hear([await delete_records(scene, 2)])
        await compactor.tick()
        manifest = await scene.manifest()
        assert (manifest.compacted_to, manifest.files, len(manifest.producers)) == (2, (), 1)

    on_a_bucket(work)


def test_a_deletion_of_which_the_bucket_did_not_answer_and_that_lands_after_its_notice_is_seen_to() -> None:
    async def work(scene: Scene) -> None:
        compactor = scene.compactor(replace(AT_ONCE, merge_files_min=99))
        for n in range(2):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))]})
            await compactor.tick()
        compactor.hear([ManifestNotice(*ORDERS, (await scene.manifest()).version + 1, is_deletion=True)])
        await compactor.tick()
        await delete_records(scene, 10)
        for _ in range(2):
            scene.ahead_ms += 5000
            await compactor.tick()
        assert files_of_orders(scene) == 1

    on_a_bucket(work)


def test_nothing_is_read_where_others_look_after_it_where_it_is_known_and_for_what_other_compactors_did() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        await scene.compacted()
        notice = await delete_records(scene, 1)
        for is_mine, reported in (
            (False, notice),
            (True, notice),
            (True, msgspec.structs.replace(notice, version=99, is_deletion=False)),
        ):
            store = StruckStore(scene.store)
            compactor = scene.compactor(store=store, is_mine=lambda name, is_mine=is_mine: is_mine)  # type: ignore[misc]
            await compactor.tick()
            reads = store.count("get", "topics/")
            compactor.hear([reported])
            await compactor.tick()
            assert store.count("get", "topics/") == reads

    on_a_bucket(work)


# ── damage ──


def test_a_damaged_batch_holds_up_its_partition_alone_from_there_on() -> None:
    async def work(scene: Scene) -> None:
        keys = [scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"p")]}) for _ in range(3)]
        whole = scene.store.content(keys[1])
        at = whole.index(b"v")
        scene.store.plant(keys[1], whole[:at] + b"w" + whole[at + 1 :])
        compactor = scene.compactor()
        report = await compactor.tick()
        assert list(report.damaged) == [ORDERS]
        assert report.damaged[ORDERS].details["key"] == keys[1]
        start, end = (int(report.damaged[ORDERS].details[name]) for name in ("start", "end"))
        assert start <= at < end
        assert (await scene.manifest()).compacted_to == 1
        assert (await scene.manifest(PAYMENTS)).compacted_to == 3
        assert (await compactor.tick()).manifests == 0
        scene.store.plant(keys[1], whole)
        scene.ahead_ms += 3_600_000
        assert not (await compactor.tick()).damaged
        assert await scene.history() == [(n, b"v") for n in range(3)]

    on_a_bucket(work)


def test_a_segment_that_is_gone_or_unreadable_holds_up_those_that_have_records_in_it() -> None:
    async def work(scene: Scene) -> None:
        keys = [scene.store.segment(7, {ORDERS: [batch_of(b"v")]}) for _ in range(3)]
        keys += [scene.store.segment(7, {PAYMENTS: [batch_of(b"p")]}) for _ in range(3)]
        compactor = scene.compactor()
        await compactor.view.poll(now_ms=scene.now_ms())
        scene.store.remove(keys[1])
        scene.store.damage_footer(keys[4])
        report = await compactor.tick()
        assert {where: error.details["key"] for where, error in report.damaged.items()} == {ORDERS: keys[1], PAYMENTS: keys[4]}
        assert [(await scene.manifest(where)).compacted_to for where in (ORDERS, PAYMENTS)] == [1, 1]
        assert compactor.metrics.damaged == 2

    on_a_bucket(work)


def test_of_many_partitions_only_so_many_manifests_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 100,000 partitions would be more than memory holds."""

    async def work(scene: Scene) -> None:
        monkeypatch.setattr("compaction.compactor.FLOORS_AT_ONCE", 3)
        partitions = [partition_of(number) for number in range(8)]
        scene.store.segment(7, {where: [batch_of(b"v")] for where in partitions})
        compactor, together = scene.compactor(), list[int]()
        read = compactor._context.manifests.read

        async def counted(topics: Mapping[TopicPartition, str]) -> dict[TopicPartition, Manifest | Corrupt]:
            together.append(len(topics))
            return await read(topics)

        monkeypatch.setattr(compactor._context.manifests, "read", counted)
        report = await compactor.tick()
        assert report.manifests == 8
        assert together[:3] == [3, 3, 2]

    on_a_bucket(work)


def test_segments_that_wait_behind_damage_do_not_take_the_room_of_others() -> None:
    async def work(scene: Scene) -> None:
        keys = [scene.store.segment(7, {ORDERS: [batch_of(b"v")]}) for _ in range(30)]
        sound = damage(scene, keys[0], at=60)
        compactor = scene.compactor(replace(AT_ONCE, pending_runs_max=20))
        await compactor.tick()
        for n in range(1, 4):
            keys.append(scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"p")]}))
            await compactor.tick()
            assert (await scene.manifest(PAYMENTS)).compacted_to == n
        assert (compactor.metrics.damaged, compactor.view.state.run_count) == (1, 0)
        assert all(scene.store.has(key) for key in keys)
        scene.store.plant(keys[0], sound)
        scene.ahead_ms += RESCAN_MS
        await compactor.tick()
        assert (await scene.manifest()).compacted_to == 33
        assert (await compactor.tick()).damaged == {}
        assert compactor.metrics.damaged == 0

    on_a_bucket(work)


def test_a_segment_whose_footer_was_restored_is_compacted_without_a_restart() -> None:
    async def work(scene: Scene) -> None:
        keys = [scene.store.segment(7, {ORDERS: [batch_of(b"v")]}) for _ in range(3)]
        sound = damage(scene, keys[1], at=-6)
        compactor = scene.compactor()
        for hours in (0, 1, 2):
            scene.ahead_ms += hours * RESCAN_MS
            await compactor.tick()
            assert ((await scene.manifest()).compacted_to, compactor.metrics.damaged) == (1, 1)
        scene.store.plant(keys[1], sound)
        scene.ahead_ms += 4 * RESCAN_MS
        await compactor.tick()
        assert ((await scene.manifest()).compacted_to, compactor.metrics.damaged) == (3, 0)

    on_a_bucket(work)


def damage(scene: Scene, key: str, *, at: int) -> bytes:
    """Changes one byte, and answers what was there."""
    sound = scene.store.content(key)
    body = bytearray(sound)
    body[at] ^= 1
    scene.store.plant(key, bytes(body))
    return sound


def test_a_session_that_a_restore_has_not_seen_is_neither_compacted_nor_trimmed(caplog: pytest.LogCaptureFixture) -> None:
    """The restored log has not reached the offsets of its records yet, and is about to give them to others."""

    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"a")]})
        scene.store.segment(8, {ORDERS: [batch_of(b"late")]})
        scene.store.segment(8, {PAYMENTS: [batch_of(b"late")]})
        compactor = scene.compactor()
        compactor.skip(SkippedSessions.between([SessionId(7)], SessionId(100)))
        report = await compactor.tick(everything=True)
        assert not report.failed
        assert await scene.history() == [(0, b"a")]
        assert (await scene.manifest()).compacted_to == 1
        assert not (await scene.manifest(PAYMENTS)).version
        assert compactor.metrics.damaged == 1
        scene.store.remove(segment_key(SessionId(8), SegmentSeq(0)))
        scene.store.remove(segment_key(SessionId(8), SegmentSeq(1)))
        scene.store.ends[ORDERS] = 1
        scene.store.segment(101, {ORDERS: [batch_of(b"b")]})
        scene.ahead_ms += RESCAN_MS + 1
        await compactor.tick(everything=True)
        assert await scene.history() == [(0, b"a"), (1, b"b")], "the log goes on, once an operator has moved the late objects away"
        assert compactor.metrics.damaged == 0

    on_a_bucket(work)
    assert sum("session not compacted session=8" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_compactor_learns_from_the_metadata_which_sessions_a_restore_has_not_seen(by_itself: bool) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"a")]})
        scene.store.segment(8, {ORDERS: [batch_of(b"late")]})
        unseen = SkippedSessions.between([SessionId(7)], SessionId(100))
        await scene.metadata.transact([], [Put(LAYOUT.skipped_sessions, encode_skipped(unseen))])
        service = CompactionService(
            plain(scene.store),
            scene.metadata,
            LAYOUT,
            scene.topics,
            ManifestNoticeCache(scene.metadata, LAYOUT),
            AT_ONCE,
            SegmentSettings(),
            compactor_id="c1",
            version="1",
            now_ms=scene.now_ms,
        )
        if by_itself:
            await service.once(everything=True)
        else:
            running = asyncio.create_task(service.run())
            await asyncio.sleep(600)  # of virtual time
            running.cancel()
        assert await scene.history() == [(0, b"a")]

    on_a_bucket(work)


def test_a_damaged_manifest_refuses_its_partition_alone() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"p")]})
        scene.store.plant(manifest_key("orders", ORDERS, 1), b"{")
        report = await scene.compacted()
        assert isinstance(report.damaged[ORDERS], Corrupt)
        assert (await scene.manifest(PAYMENTS)).compacted_to == 1

    on_a_bucket(work)


# ── topics ──


def test_a_topic_that_is_deleted_in_the_middle_leaves_no_file() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        store = StruckStore(scene.store)

        async def delete_meanwhile(kind: str, key: str) -> None:
            if kind == "create" and key.endswith(".parquet"):
                await scene.delete_topic("orders", ORDERS.topic_id)

        store.hold = delete_meanwhile
        compactor = scene.compactor(store=store)
        await compactor.tick()
        assert not [key for key in scene.store.keys("topics/") if not key.endswith("_log/deleted-" + key[-20:])]
        for _ in range(2):
            scene.ahead_ms += 1_000
            await compactor.tick()
        assert not scene.store.has(segment_key(SessionId(7), SegmentSeq(0))), "its segments are not needed"

    on_a_bucket(work)


def test_records_of_an_unknown_topic_stay_in_their_segments() -> None:
    async def work(scene: Scene) -> None:
        unknown = partition_of(0, topic=9)
        key = scene.store.segment(7, {unknown: [batch_of(b"v")], ORDERS: [batch_of(b"v")]})
        compactor = scene.compactor()
        for _ in range(3):
            scene.ahead_ms += 10_000
            await compactor.tick()
        assert scene.store.has(key)
        assert (await scene.manifest()).compacted_to == 1
        await scene.delete_topic("gone", unknown.topic_id)
        for _ in range(2):
            scene.ahead_ms += 3_600_000
            await compactor.tick()
        assert not scene.store.has(key), "its mirror says now that it was deleted"

    on_a_bucket(work)


def test_a_topic_counts_as_deleted_by_a_marker_alone_and_not_by_an_object_of_a_similar_name() -> None:
    async def work(scene: Scene) -> None:
        unknown = partition_of(0, topic=9)
        key = scene.store.segment(7, {unknown: [batch_of(b"v")]})
        scene.store.plant(f"{topic_prefix('gone', unknown.topic_id)}_log/deleted-by-hand-some-day", b"")
        compactor = scene.compactor()
        for _ in range(4):
            scene.ahead_ms += 3_600_000
            await compactor.tick()
        assert scene.store.has(key)

    on_a_bucket(work)


# ── several at once ──


@pytest.mark.parametrize("seed", seeds(range(1, 13), quick=3))
def test_of_compactors_that_race_for_the_same_runs_each_run_becomes_history_once(seed: int) -> None:
    async def work(scene: Scene) -> None:
        for n in range(6):
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))], PAYMENTS: [batch_of(b"p")]})
        compactors = [scene.compactor() for _ in range(3)]
        for _ in range(2):
            scene.ahead_ms += 1_000
            reports = await asyncio.gather(*(compactor.tick() for compactor in compactors))
            assert not [report.failed for report in reports if report.failed]
        assert await scene.history() == expected(0, 60)
        assert await scene.history(PAYMENTS) == [(n, b"p") for n in range(6)]
        assert not scene.orphans([await scene.manifest(), await scene.manifest(PAYMENTS)])

    on_a_bucket(work, seed=seed)


async def nothing() -> None:
    """In the place of what would tidy up."""


async def stalled_at_its_manifest(
    scene: Scene, *, may_delete: bool = True
) -> tuple[Compactor, asyncio.Task[object], asyncio.Event]:
    """A compactor that has written its file, and wants to name it now."""
    store = StruckStore(scene.store)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def stall(kind: str, key: str) -> None:
        if kind == "create" and "/_log/" in key:
            reached.set()
            await go_on.wait()
        if kind == "delete" and not may_delete:
            raise Denied("AccessDenied")

    store.hold = stall
    compactor = scene.compactor(store=store)
    tick: asyncio.Task[object] = asyncio.create_task(compactor.tick())
    await reached.wait()
    return compactor, tick, go_on


@pytest.mark.parametrize("collected", [True, False])
def test_a_compactor_that_stalls_before_its_commit_loses_to_another_and_nothing_is_left_of_it(
    collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        _, tick, go_on = await stalled_at_its_manifest(scene)
        scene.store.segment(7, {ORDERS: [batch_of(*values(10, 10))]})
        other = scene.compactor()
        if not collected:
            monkeypatch.setattr(other, "_collect", nothing)
        await other.tick()
        assert bool(scene.orphans([await scene.manifest()])) is not collected
        go_on.set()
        await tick
        assert await scene.history() == expected(0, 20)
        assert not scene.orphans([await scene.manifest()])

    on_a_bucket(work)


def test_a_loser_that_may_not_delete_its_file_logs_the_missing_permission(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        _, tick, go_on = await stalled_at_its_manifest(scene, may_delete=False)
        other = scene.compactor()
        monkeypatch.setattr(other, "_collect", nothing)
        await other.tick()
        go_on.set()
        await tick
        assert await scene.history() == expected(0, 10)

    on_a_bucket(work)
    assert sum("s3:DeleteObject" in record.getMessage() for record in caplog.records) == 1


def test_a_compactor_that_stalls_until_its_plan_is_outdated_changes_nothing() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        stalled, tick, go_on = await stalled_at_its_manifest(scene)
        other = scene.compactor()
        for n in range(1, 4):
            scene.ahead_ms += 3 * 86_400_000
            scene.store.segment(7, {ORDERS: [batch_of(*values(10 * n, 10))]})
            assert not (await other.tick()).failed
        for _ in range(4):
            scene.ahead_ms += 86_400_000
            await other.tick()
        go_on.set()
        await tick
        assert await scene.history() == expected(0, 40)
        await stalled.tick()
        await other.tick()
        assert await scene.history() == expected(0, 40)

    on_a_bucket(work)


# ── what fails ──


def test_a_bucket_that_is_away_is_waited_for() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        store = StruckStore(scene.store)

        async def away(kind: str, key: str) -> None:
            if kind == "create" and key.endswith(".parquet") and asyncio.get_running_loop().time() < 60:
                raise Unavailable("503")

        store.hold = away
        report = await scene.compactor(store=store).tick()
        assert not report.failed
        assert await scene.history() == expected(0, 10)
        assert 60 <= asyncio.get_running_loop().time() < 90

    on_a_bucket(work)


def test_an_unexpected_error_stops_only_its_own_step_of_the_compactor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        compactor = scene.compactor()

        async def mistaken() -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(compactor, "_keep", mistaken)
        with pytest.raises(ExceptionGroup) as raised:
            await compactor.tick()
        assert [str(error) for error in raised.value.exceptions] == ["a bug"]
        assert await scene.history() == [(0, b"v")]
        assert scene.store.has(trimmed_key(SessionId(7), SegmentSeq(1)))
        assert (await scene.metadata.range(LAYOUT.compactions)).items, "brokers are notified"

    on_a_bucket(work)


def test_an_unexpected_error_keeps_only_its_partition_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"w")]})
        compactor = scene.compactor()

        async def mistaken(
            context: CompactionContext, scratch: ScratchFile, topic: Topic, manifest: Manifest, runs: list[StoredRun]
        ) -> CompactedRuns:
            if topic.name == "orders":
                raise ValueError("a bug")
            return await encoded(context, scratch, topic, manifest, runs)

        with monkeypatch.context() as patch:
            patch.setattr(convert_unit, "encoded", mistaken)
            with pytest.raises(ExceptionGroup) as raised:
                await compactor.tick()
        assert raised.value.subgroup(ValueError) is not None
        assert await scene.history(PAYMENTS) == [(0, b"w")]
        assert list(compactor.damaged) == [ORDERS]
        scene.ahead_ms += BLOCKED_MS
        await compactor.tick()
        assert await scene.history() == [(0, b"v")]

    on_a_bucket(work)


def test_an_outage_of_the_bucket_is_reported_and_the_next_pass_catches_up() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        compactor = scene.compactor()
        scene.store.outage = Unavailable("503")
        report = await compactor.tick()
        assert report.failed
        scene.store.heal()
        assert (await compactor.tick()).manifests == 1

    on_a_bucket(work)


def test_a_missing_scratch_directory_is_reported_and_a_usable_one_is_left_empty(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        nowhere = CompactionSettings(compaction_due_age_ms=1, scratch_dir=str(tmp_path / "missing"))
        report = await scene.compactor(nowhere).tick()
        (error,) = report.failed
        assert "scratch_dir" in error.hint
        here = CompactionSettings(compaction_due_age_ms=1, scratch_dir=str(tmp_path))
        await scene.compacted(here)
        assert os.listdir(tmp_path) == []

    on_a_bucket(work)


def test_a_file_that_is_not_what_was_written_is_never_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_records(body: object, file: object, *, key: str = "") -> None:
        raise Corrupt("it holds other records", key=key)

    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        monkeypatch.setattr(partition_file, "verify_history", other_records)
        report = await scene.compactor().tick()
        assert list(report.damaged) == [ORDERS]
        assert not scene.store.keys("topics/")

    on_a_bucket(work)


def test_the_loop_of_the_compactor_continues_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        compactor = scene.compactor()
        poll = compactor.view.poll
        failing = [RuntimeError("a mistake of ours")]

        async def fails_once(*, now_ms: int) -> None:
            if failing:
                raise failing.pop()
            await poll(now_ms=now_ms)

        monkeypatch.setattr(compactor.view, "poll", fails_once)
        running = asyncio.create_task(compactor.run())
        await asyncio.sleep(AT_ONCE.compaction_interval_ms / 1000 + 1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert await scene.history() == expected(0, 10)

    on_a_bucket(work)


def test_a_file_lies_where_its_manifest_says() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(*values(0, 10))]})
        await scene.compacted()
        (file,) = (await scene.manifest()).files
        assert scene.store.keys("topics/orders/") == sorted(
            [history_file_key("orders", ORDERS, file.name), manifest_key("orders", ORDERS, 1)]
        )
        assert file.name.split("-")[2] == "1", "the version that is to name it first"

    on_a_bucket(work)


@pytest.mark.slow
def test_a_cluster_at_rest_costs_a_request_for_each_open_session_and_one_more_however_many_partitions_it_has() -> None:
    async def work(scene: Scene) -> None:
        partitions = [partition_of(number) for number in range(300)]
        scene.store.segment(1, {partition: [batch_of(b"v")] for partition in partitions})
        store = StruckStore(scene.store)
        compactor = scene.compactor(store=store)
        for _ in range(4):
            scene.ahead_ms += 1_000
            assert not (await compactor.tick()).failed
        assert store.count("create", "topics/") == 2 * 300
        store.calls.clear()
        scene.ahead_ms += 10_000
        await compactor.tick()
        assert store.calls == [("list", "wal/"), ("list", "wal/0000000000000001/")]

    on_a_bucket(work)
