"""From segments to history and on: records without a timestamp, and records that are dated in the future."""

from __future__ import annotations

from compaction.settings import CompactionSettings
from segments.history.manifest import UNKNOWN_MS
from tests.kit.compaction.compacting import Scene, on_a_bucket
from tests.kit.compaction.kept import GRACE_MS, SETTINGS, Keeper, configure, records_in, settle, small_files, write_files
from tests.kit.compaction.kept import record as dated
from tests.kit.segments.batches import ORDERS, batch_of

DUE = CompactionSettings(compaction_due_age_ms=1, delete_grace_ms=GRACE_MS, compaction_threads=1, merge_files_min=100)
DAY_MS = 86_400_000


def test_records_without_timestamps_expire_when_retention_is_over_since_their_append() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms=str(DAY_MS))
        scene.store.segment(1, {ORDERS: [batch_of(b"a", b"b", timestamps_ms=[-1, -1])]}, written_at_ms=scene.now_ms())
        compactor = scene.compactor(DUE)
        scene.ahead_ms += 1
        await compactor.tick()
        (file,) = (await scene.manifest()).files
        assert (file.max_timestamp, file.appended_by_ms) == (-1, scene.now_ms())
        scene.ahead_ms += DAY_MS
        await compactor.tick()
        assert (await scene.manifest()).log_start_offset == 0
        scene.ahead_ms += 1
        await compactor.tick()
        assert (await scene.manifest()).log_start_offset == 2

    on_a_bucket(work)


def test_merges_keep_the_latest_time_of_append() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="-1")
        for value in (b"a", b"b", b"c"):
            scene.store.segment(1, {ORDERS: [batch_of(value, timestamps_ms=[-1])]}, written_at_ms=scene.now_ms())
            scene.ahead_ms += 1000
            await scene.compacted(DUE)
        appended = [file.appended_by_ms for file in (await scene.manifest()).files]
        assert appended == [scene.now_ms() - 2000, scene.now_ms() - 1000, scene.now_ms()]
        latest = appended[-1]
        scene.ahead_ms += 5000
        await settle(scene)
        assert [file.appended_by_ms for file in (await scene.manifest()).files] == [latest]

    on_a_bucket(work)


def test_a_merge_of_files_without_a_time_of_append_counts_as_their_append() -> None:
    async def work(scene: Scene) -> None:
        manifest = await small_files(scene)
        assert {file.appended_by_ms for file in manifest.files} == {UNKNOWN_MS}
        scene.ahead_ms += 5000
        keeper = Keeper(scene)
        await keeper.tick()
        keeper.close()
        assert [file.appended_by_ms for file in (await scene.manifest()).files] == [scene.now_ms()]

    on_a_bucket(work)


def test_a_record_of_the_future_stops_key_compaction_for_the_lag_and_no_longer() -> None:
    async def work(scene: Scene) -> None:
        now, in_a_century = scene.now_ms(), scene.now_ms() + 36_500 * DAY_MS
        await configure(scene, cleanup_policy="compact", min_compaction_lag_ms="10000")
        manifest = await write_files(
            scene,
            [dated(0, b"a", b"1", at_ms=in_a_century), dated(1, b"a", b"2", at_ms=now)],
            [dated(2, b"a", b"3", at_ms=now), dated(3, b"b", b"4", at_ms=now)],
            appended_by_ms=now,
        )
        assert len(manifest.files) == 2
        keeper = Keeper(scene, SETTINGS)
        await keeper.tick()
        scene.ahead_ms += 9_999
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [0, 1, 2, 3]
        scene.ahead_ms += 1
        await keeper.tick()
        assert [one[0] for one in await records_in(scene)] == [2, 3]
        keeper.close()

    on_a_bucket(work)
