"""History is kept in shape: what expires goes, small files become large ones, keys are compacted, and nothing else changes."""

from __future__ import annotations

import logging

import msgspec
import pyarrow as pa
import pytest

from compaction.maintenance import key_pass, maintainer
from compaction.maintenance.key_compaction import plan_key_pass
from compaction.maintenance.key_pass import run_key_pass
from compaction.maintenance.merge import check_conserved
from compaction.maintenance.merge_plan import MergeBounds, plan_merge
from compaction.settings import CompactionSettings
from metadata.errors import Corrupt
from metadata.model import Offset, Partition, TopicPartition
from metadata.topics.settings import TopicSettings
from segments.bucket.layout import history_file_key, manifest_key
from segments.history.manifest import HistoryFile, KeyPass, Manifest, encode_manifest
from segments.history.manifest_edits import with_key_passes, with_log_start
from segments.history.manifest_store import commit_manifest
from segments.history.parquet_file import HistoryWriter
from tests.kit.compaction.compacting import Scene, on_a_bucket, plain
from tests.kit.compaction.kept import (
    GRACE_MS,
    SETTINGS,
    Keeper,
    Meanwhile,
    configure,
    configure_unheard,
    guarded_keeper,
    record,
    records_in,
    settle,
    small_files,
    some,
    unnamed,
    write_files,
)
from tests.kit.compaction.manifests import file_of
from tests.kit.segments.batches import ORDERS
from tests.simulation.virtual_loop import virtual_loop

# ── what each is for ──


def test_files_that_expire_go_and_their_objects_after_the_grace() -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, retention_ms="500000")
        await write_files(scene, some(0, 5, at_ms=now - 600_000), some(5, 5, at_ms=now - 499_000), some(10, 5, at_ms=now))
        keeper = guarded_keeper(scene)
        await keeper.tick()
        manifest = await scene.manifest()
        assert (manifest.log_start_offset, manifest.cause, len(manifest.files)) == (5, "retention", 2)
        assert len(scene.store.keys("topics/orders/" + ORDERS.topic_id + "/partition=0/")) == 3
        scene.ahead_ms += GRACE_MS + 1  # now the second file is past its time, too, and no notice has come
        await keeper.tick()
        assert len(scene.store.keys("topics/orders/" + ORDERS.topic_id + "/partition=0/")) == 2
        assert (await scene.manifest()).log_start_offset == 10
        assert [one[0] for one in await records_in(scene)] == [10, 11, 12, 13, 14]
        keeper.close()

    on_a_bucket(work)


def test_bytes_in_segments_count_for_retention_bytes() -> None:
    async def work(scene: Scene) -> None:
        manifest = await write_files(scene, some(0, 5, at_ms=0), some(5, 5, at_ms=0))
        kept = sum(file.size_bytes for file in manifest.files)
        await configure(scene, retention_ms="-1", retention_bytes=str(kept))
        keeper = Keeper(scene, pending_bytes=lambda partition, from_offset: 0)
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 0
        keeper.close()
        keeper = Keeper(scene, pending_bytes=lambda partition, from_offset: kept)
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 10
        keeper.close()

    on_a_bucket(work)


def test_files_that_retention_cannot_delete_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, retention_ms="1000")
        await write_files(scene, some(0, 2, at_ms=now + 10**9), some(2, 2, at_ms=0), some(4, 2, at_ms=now))
        keeper = Keeper(scene)
        await keeper.tick()
        scene.ahead_ms += 100_000
        await keeper.tick()
        keeper.close()
        assert (await scene.manifest()).log_start_offset == 0

    with caplog.at_level(logging.WARNING):
        on_a_bucket(work)
    reported = [text for text in caplog.messages if "retention held back" in text]
    assert len(reported) == 1
    assert "first_offset=0 last_offset=1 files_behind=1" in reported[0]


def test_settings_that_change_are_acted_on() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="-1")
        await write_files(scene, some(0, 2, at_ms=0), some(2, 2, at_ms=0))
        keeper = Keeper(scene)
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 0
        await configure(scene, retention_ms="1000")
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 4
        keeper.close()

    on_a_bucket(work)


@pytest.mark.parametrize("settings", [{"retention_ms": "1000"}, {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}])
def test_nothing_is_let_go_by_settings_that_were_changed_unheard_of(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, **settings)
        scene.end()
        await configure_unheard(scene, retention_ms="-1")
        same_key = [record(offset, b"k", at_ms=0) for offset in range(4)]
        before = await write_files(scene, same_key[:2], same_key[2:])
        keeper = Keeper(scene)
        for _ in range(3):
            await keeper.tick()
            scene.ahead_ms += maintainer.AFTER_FAILURE_MS
        assert (await scene.manifest()).files == before.files
        keeper.close()

    with caplog.at_level(logging.WARNING):
        on_a_bucket(work)
    assert len([text for text in caplog.messages if "settings of topics not confirmed" in text]) == 3


def test_nothing_is_let_go_by_settings_of_metadata_of_which_another_copy_has_gone_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="1000")
        await write_files(scene, some(0, 2, at_ms=0), some(2, 2, at_ms=0))
        scene.is_overtaken = True
        keeper = Keeper(scene)
        await keeper.tick()
        assert (await scene.manifest()).log_start_offset == 0
        keeper.close()

    with caplog.at_level(logging.ERROR):
        on_a_bucket(work)
    assert [text for text in caplog.messages if "another copy of the metadata has appointed leaders" in text]


def test_a_watch_that_is_silent_delays_the_first_of_many_partitions_alone() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="1000")
        partitions = [TopicPartition(ORDERS.topic_id, Partition(number)) for number in range(5)]
        for partition in partitions:
            await write_files(scene, some(0, 2, at_ms=0), partition=partition)
        scene.end()
        await configure_unheard(scene, retention_ms="2000")
        keeper = Keeper(scene)
        began_s = virtual_loop().time()
        await keeper.tick()
        assert virtual_loop().time() - began_s < 2 * maintainer.CATCH_UP_S
        scene.follow()
        scene.ahead_ms += 2 * maintainer.AFTER_FAILURE_MS
        await keeper.tick()
        await keeper.tick()
        assert [(await scene.manifest(partition)).log_start_offset for partition in partitions] == [2] * 5
        keeper.close()

    on_a_bucket(work)


def test_small_files_become_one_with_the_same_records() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="-1")
        before = await write_files(scene, *(some(n * 20, 20, at_ms=n) for n in range(5)))
        records = await records_in(scene)
        keeper = guarded_keeper(scene)
        await keeper.tick()
        after = await scene.manifest()
        assert after.cause == "merge"
        (file,) = after.files
        assert (file.base_offset, file.last_offset, file.record_count) == (0, 99, 100)
        assert len(file.row_groups) > 1
        assert int(file.checksum, 16) == sum(int(one.checksum, 16) for one in before.files) % 2**64
        assert await records_in(scene) == records
        await keeper.until_quiet()
        assert unnamed(scene, [await scene.manifest()]) == []
        assert len(scene.store.keys("topics/orders/" + ORDERS.topic_id + "/partition=0/")) == 1
        keeper.close()

    on_a_bucket(work)


def test_a_file_that_is_damaged_is_not_merged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        other = TopicPartition(ORDERS.topic_id, Partition(ORDERS.partition + 1))
        manifest = await small_files(scene)
        await small_files(scene, partition=other)
        key = history_file_key("orders", ORDERS, manifest.files[2].name)
        body = bytearray(scene.store.content(key))
        body[manifest.files[2].row_groups[0].start + 3] ^= 1
        scene.store.plant(key, bytes(body))
        keeper = Keeper(scene)
        await keeper.tick()
        assert await scene.manifest() == manifest
        assert len((await scene.manifest(other)).files) == 1
        keeper.close()
        assert any(key in text for text in caplog.messages)

    on_a_bucket(work)


def test_an_unexpected_error_stops_maintenance_of_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scene: Scene) -> None:
        other = TopicPartition(ORDERS.topic_id, Partition(ORDERS.partition + 1))
        await small_files(scene)
        await small_files(scene, partition=other)

        def mistaken(manifest: Manifest, bounds: MergeBounds) -> tuple[HistoryFile, ...]:
            if manifest.topic_partition == ORDERS and is_broken:
                raise ValueError("a bug")
            return plan_merge(manifest, bounds)

        is_broken = True
        monkeypatch.setattr(maintainer, "plan_merge", mistaken)
        keeper = guarded_keeper(scene)
        with pytest.raises(ExceptionGroup) as raised:
            await keeper.tick()
        assert str(ORDERS) in raised.value.exceptions[0].__notes__[0]
        assert len((await scene.manifest(other)).files) == 1
        assert not await keeper.tick(), "it is left alone"
        is_broken = False
        scene.ahead_ms += maintainer.AFTER_DAMAGE_MS
        await keeper.tick()
        assert len((await scene.manifest()).files) == 1
        keeper.close()

    on_a_bucket(work)


def test_partitions_of_a_topic_that_is_deleted_are_forgotten() -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)
        keeper = guarded_keeper(scene)
        await keeper.until_quiet()
        assert list(keeper.keeping._known) == [ORDERS]
        await scene.delete_topic("orders", ORDERS.topic_id)
        await keeper.tick()
        assert not keeper.keeping._known
        keeper.close()

    on_a_bucket(work)


def test_keys_are_compacted_and_tombstones_go_when_their_time_is_over() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact", delete_retention_ms="100000")
        await write_files(
            scene,
            [record(0, b"a"), record(1, b"b"), record(2, None), record(3, b"a")],
            [record(4, b"c"), record(5, b"b", None)],
            [record(6, b"c"), record(7, b"d")],
        )
        keeper = guarded_keeper(scene)
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [2, 3, 5, 6, 7]
        manifest = await scene.manifest()
        assert (manifest.files[0].base_offset, manifest.files[-1].last_offset) == (0, 7)
        assert [(one.end_offset, one.tombstones) for one in manifest.key_passes] == [(8, 1)]
        seen_ms = manifest.key_passes[0].at_ms
        keeper.close()
        keeper = guarded_keeper(scene)  # the next compactor knows of the deadline
        await keeper.tick()
        scene.ahead_ms += seen_ms + 99_000 - scene.now_ms()
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [2, 3, 5, 6, 7]
        scene.ahead_ms += 2_000
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [2, 3, 6, 7]
        await keeper.until_quiet()
        assert unnamed(scene, [await scene.manifest()]) == []
        keeper.close()

    on_a_bucket(work)


def test_files_of_which_no_record_goes_are_read_and_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[pa.RecordBatch] = []

    class Watched(HistoryWriter):
        def append(self, columns: pa.RecordBatch, *, checksum: int | None = None) -> None:
            encoded.append(columns)
            super().append(columns, checksum=checksum)

    monkeypatch.setattr(key_pass, "HistoryWriter", Watched)

    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact", delete_retention_ms="100000")
        before = await write_files(scene, [record(n, b"%d" % n) for n in range(20)] + [record(20, b"20", None)])
        keeper = guarded_keeper(scene)
        await keeper.tick()
        after = await scene.manifest()
        assert [file.name for file in after.files] == [file.name for file in before.files]
        assert [(one.end_offset, one.tombstones) for one in after.key_passes] == [(21, 1)]
        assert encoded == []
        keeper.close()

    on_a_bucket(work)


def test_a_pass_for_tombstones_alone_leaves_what_is_too_young_though_it_shares_their_row_group() -> None:
    """As when memory ended the pass before in the middle of a file, and that file was merged with younger ones since."""

    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, cleanup_policy="compact", delete_retention_ms="1000", min_compaction_lag_ms="500000")
        young = [record(2, b"c", at_ms=now), record(3, b"c", at_ms=now), record(4, b"a", at_ms=now)]
        manifest = await write_files(scene, [record(0, b"a"), record(1, b"b", None), *young])
        passed = with_key_passes(manifest, passes=[KeyPass(Offset(2), now - 2000, tombstones=1)], writer="test", now_ms=now)
        await commit_manifest(plain(scene.store), "orders", passed)
        keeper = guarded_keeper(scene)
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [0, 2, 3, 4]
        scene.ahead_ms += 600_000
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [3, 4]
        keeper.close()

    on_a_bucket(work)


def test_tombstones_that_retention_has_taken_are_forgotten() -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, cleanup_policy="compact,delete", delete_retention_ms="100000", retention_ms="50000")
        await write_files(scene, [record(0, b"a", at_ms=now), record(1, b"b", None, at_ms=now)])
        await write_files(scene, [record(2, b"c", at_ms=now + 10**6)])
        keeper = guarded_keeper(scene)
        await keeper.tick()
        assert [one.tombstones for one in (await scene.manifest()).key_passes] == [1]
        scene.ahead_ms += 101_000
        await keeper.tick()
        manifest = await scene.manifest()
        assert [one.tombstones for one in manifest.key_passes] == [0]
        assert manifest.log_start_offset in {0, 2}
        calls = manifest.version
        await keeper.tick()
        assert (await scene.manifest()).version <= calls + 1
        keeper.close()

    on_a_bucket(work)


def test_keys_that_do_not_fit_into_the_map_take_more_passes() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact")
        keys = [b"%d" % (n * 7 % 30) for n in range(120)]
        await write_files(scene, *([record(at, keys[at]) for at in range(n * 12, n * 12 + 12)] for n in range(10)))
        small = CompactionSettings(
            **{name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | {"key_map_bytes_max": 2000, "dirty_ratio_min": 0.01}
        )
        keeper = Keeper(scene, small)
        await keeper.until_quiet(rounds=40)
        assert keeper.context.counters.key_passes > 3
        last = {key: offset for offset, key in enumerate(keys)}
        assert [one[0] for one in await records_in(scene)] == sorted(last.values())
        keeper.close()

    on_a_bucket(work)


def test_a_file_of_which_nothing_is_left_goes_and_the_offsets_stay() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact")
        await write_files(scene, [record(0, b"a"), record(1, b"a")], [record(2, b"a")])
        settings = CompactionSettings(
            **{name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | {"merge_bytes_min": 1, "merge_bytes_max": 1}
        )
        keeper = Keeper(scene, settings)
        await keeper.tick()
        manifest = await scene.manifest()
        assert [(file.base_offset, file.last_offset) for file in manifest.files] == [(2, 2)]
        assert (manifest.log_start_offset, manifest.compacted_to) == (0, 3)
        keeper.close()

    on_a_bucket(work)


def test_a_manifest_that_another_deletes_records_with_stops_nothing() -> None:
    async def work(scene: Scene) -> None:
        await small_files(scene)
        keeper = Keeper(scene)
        manifest = await keeper.context.manifests.newest("orders", ORDERS)
        raised = with_log_start(manifest, Offset(3), writer="test", now_ms=scene.now_ms())
        assert await keeper.context.manifests.commit("orders", raised)
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [3, 4, 5, 6, 7]
        assert len((await scene.manifest()).files) == 1
        keeper.close()

    on_a_bucket(work)


def test_a_merge_that_does_not_hold_what_the_manifest_says_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        manifest = await small_files(scene)
        wrong = msgspec.structs.replace(manifest.files[1], checksum=f"{1:016x}")
        lying = msgspec.structs.replace(manifest, files=(manifest.files[0], wrong, *manifest.files[2:]))
        scene.store.plant(manifest_key("orders", ORDERS, 1), encode_manifest(lying))
        await settle(scene)
        assert await scene.manifest() == lying
        assert unnamed(scene, [lying]) == []

    on_a_bucket(work)
    assert any("They stay as they are" in text for text in caplog.messages)


def test_records_that_are_left_out_on_purpose_count_as_conserved() -> None:
    old = [file_of(0, 9), file_of(10, 19)]
    check_conserved(old, None, key="k", removed_records=20, removed_checksum=0)
    with pytest.raises(Corrupt, match="hold 19 records"):
        check_conserved(old, None, key="k", removed_records=19)
    with pytest.raises(Corrupt, match="checksum 0000000000000001"):
        check_conserved(old, None, key="k", removed_records=20, removed_checksum=1)


@pytest.mark.parametrize("removes", [True, False])
def test_a_pass_does_not_overwrite_what_another_has_finished_meanwhile(removes: bool) -> None:
    """Else the tombstones that the other one counted would be forgotten."""

    async def work(scene: Scene) -> None:
        await configure(scene, cleanup_policy="compact")
        manifest = await write_files(scene, [record(0, b"a"), record(1, b"a" if removes else b"b")])
        others = KeyPass(Offset(2), scene.now_ms(), tombstones=7)

        async def another_finishes() -> None:
            passed = with_key_passes(manifest, passes=[others], writer="other", now_ms=scene.now_ms())
            await commit_manifest(plain(scene.store), "orders", passed)

        context = scene.context(SETTINGS, store=Meanwhile(scene, "get file", another_finishes))
        plan = plan_key_pass(manifest, TopicSettings(cleanup_policy="compact"), dirty_ratio_min=0.0, now_ms=scene.now_ms())
        assert plan is not None
        outcome = await run_key_pass(context, "orders", ORDERS, manifest, plan)
        assert not outcome.is_over
        assert (await scene.manifest()).key_passes == (others,)

    on_a_bucket(work)
