"""A compactor whose clock is wrong: by the store's own clock it expires, forgets and deletes nothing, and goes on compacting."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from compaction.compactor import Compactor
from compaction.gc.wal_trim import TrimRecord
from compaction.metrics import times
from compaction.settings import CompactionSettings
from segments.bucket.layout import parse_wal_key
from segments.object_store.store_clock import StoreClock
from tests.kit.compaction.compacting import Scene, on_a_bucket, values
from tests.kit.compaction.kept import GRACE_MS, configure, record, records_in, write_files
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, sequenced_batch
from tests.simulation.virtual_loop import virtual_loop

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
SETTINGS = CompactionSettings(compaction_due_age_ms=1, delete_grace_ms=GRACE_MS, compaction_threads=1, merge_files_min=100)


def clock_of(scene: Scene, *, heard: bool = True) -> StoreClock:
    """The clock of a compactor whose store has reported the right time, or none."""
    clock = StoreClock(scene.now_ms, steady=virtual_loop().time)
    if heard:
        hear(scene, clock)
    return clock


def hear(scene: Scene, clock: StoreClock, *, off_ms: int = 0) -> None:
    """An answer of the store, while the clock of this compactor is wrong by `off_ms`."""
    clock.heard(scene.now_ms() - off_ms, asked_s=virtual_loop().time())


def segments_in(scene: Scene) -> list[str]:
    return [key for key in scene.store.keys("wal/") if (parsed := parse_wal_key(key)) and parsed.seq is not None]


def files_in(scene: Scene, topic: str = "orders") -> list[str]:
    return [key for key in scene.store.keys(f"topics/{topic}/") if key.endswith(".parquet")]


def sequenced(scene: Scene, base_sequence: int) -> None:
    scene.store.segment(1, {ORDERS: [sequenced_batch(77, base_sequence, b"x")]}, written_at_ms=scene.now_ms() - 1000)


@pytest.mark.parametrize("heard", [True, False], ids=["the store reports its time", "the store reports no time"])
def test_a_clock_that_is_a_week_ahead_takes_nothing_from_a_topic_of_default_settings(heard: bool) -> None:
    async def work(scene: Scene) -> None:
        await configure(scene)
        clock = clock_of(scene, heard=heard)
        compactor = scene.compactor(SETTINGS, clock=clock)
        sequenced(scene, 0)
        scene.store.segment(1, {ORDERS: [batch_of(b"y", timestamps_ms=[scene.now_ms()])]}, written_at_ms=scene.now_ms() - 1000)
        await tick(compactor)
        scene.store.segment(1, {ORDERS: [batch_of(b"z", timestamps_ms=[scene.now_ms()])]}, written_at_ms=scene.now_ms() - 1000)
        scene.ahead_ms += WEEK_MS + DAY_MS
        await tick(compactor)
        await tick(compactor)
        manifest = await scene.manifest()
        assert manifest.compacted_to == 3, "compaction goes on"
        kept = manifest.log_start_offset, len(manifest.producers), len(segments_in(scene))
        assert kept == ((0, 1, 3) if heard else (3, 0, 1)), "nothing shows the other one that it is wrong"

    on_a_bucket(work)


async def tick(compactor: Compactor) -> None:
    report = await compactor.tick()
    assert not report.failed
    assert not report.damaged


def test_everything_that_waited_is_done_once_the_clock_is_right_again() -> None:
    async def work(scene: Scene) -> None:
        await configure(scene, retention_ms="1000")
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        scene.store.segment(1, {ORDERS: [batch_of(b"y", timestamps_ms=[scene.now_ms()])]}, written_at_ms=scene.now_ms() - 1000)
        await tick(compactor)
        scene.ahead_ms += DAY_MS
        await tick(compactor)
        assert ((await scene.manifest()).log_start_offset, len(segments_in(scene))) == (0, 1)
        scene.ahead_ms -= DAY_MS
        await asyncio.sleep(70)  # it looks again each minute
        await tick(compactor)
        assert ((await scene.manifest()).log_start_offset, len(segments_in(scene))) == (1, 0)

    on_a_bucket(work)


def test_keys_and_tombstones_wait_as_well() -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, cleanup_policy="compact", min_compaction_lag_ms=str(DAY_MS), delete_retention_ms="0")
        await write_files(
            scene, [record(0, b"a", at_ms=now), record(1, b"a", None, at_ms=now), record(2, b"b", at_ms=now)], appended_by_ms=now
        )
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        await tick(compactor)
        scene.ahead_ms += WEEK_MS
        await tick(compactor)
        await tick(compactor)
        assert len(await records_in(scene)) == 3
        hear(scene, clock)
        await asyncio.sleep(61)
        await tick(compactor)
        assert [one[0] for one in await records_in(scene)] == [2]

    on_a_bucket(work)


def test_a_topic_that_was_deleted_keeps_its_grace() -> None:
    async def work(scene: Scene) -> None:
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        scene.store.segment(1, {PAYMENTS: [batch_of(*values(0, 3))]}, written_at_ms=scene.now_ms() - 1000)
        await tick(compactor)
        await scene.delete_topic("payments", PAYMENTS.topic_id)
        await tick(compactor)
        files = files_in(scene, "payments")
        scene.ahead_ms += DAY_MS
        await tick(compactor)
        assert files_in(scene, "payments") == files != []
        scene.ahead_ms -= DAY_MS
        await asyncio.sleep(GRACE_MS / 1000 + 0.001)
        await tick(compactor)
        assert not files_in(scene, "payments")

    on_a_bucket(work)


@pytest.mark.parametrize("off_ms", [DAY_MS, -DAY_MS], ids=["ahead", "behind"])
def test_nothing_goes_though_its_time_is_over_by_the_clock_of_the_store_as_well(off_ms: int) -> None:
    """One of the two clocks is wrong, and which is not known."""

    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, retention_ms="100000")
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        await write_files(scene, [record(0, at_ms=now - 200_000)], [record(1, at_ms=now)], appended_by_ms=now)
        await tick(compactor)
        await tick(compactor)
        assert ((await scene.manifest()).log_start_offset, len(files_in(scene))) == (1, 2)
        scene.ahead_ms += off_ms
        await asyncio.sleep(200)
        await tick(compactor)
        assert ((await scene.manifest()).log_start_offset, len(files_in(scene))) == (1, 2), "neither expires nor is collected"
        scene.ahead_ms -= off_ms
        await asyncio.sleep(61)
        await tick(compactor)
        await asyncio.sleep(2)
        await tick(compactor)
        assert ((await scene.manifest()).log_start_offset, len(files_in(scene))) == (2, 0)

    on_a_bucket(work)


def test_keys_are_not_compacted_though_their_lag_is_over_by_the_clock_of_the_store_as_well() -> None:
    async def work(scene: Scene) -> None:
        now = scene.now_ms()
        await configure(scene, cleanup_policy="compact", min_compaction_lag_ms="100000")
        await write_files(scene, [record(0, b"a", at_ms=now), record(1, b"a", at_ms=now)], appended_by_ms=now)
        compactor = scene.compactor(SETTINGS, clock=clock_of(scene))
        await tick(compactor)
        scene.ahead_ms += DAY_MS
        await asyncio.sleep(200)
        await tick(compactor)
        await tick(compactor)
        assert len(await records_in(scene)) == 2
        scene.ahead_ms -= DAY_MS
        await asyncio.sleep(61)
        await tick(compactor)
        assert len(await records_in(scene)) == 1

    on_a_bucket(work)


def test_producers_are_remembered_though_they_were_silent_for_long_enough_by_the_clock_of_the_store_as_well() -> None:
    async def work(scene: Scene) -> None:
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        sequenced(scene, 0)
        await tick(compactor)
        await asyncio.sleep(8 * DAY_MS / 1000)
        hear(scene, clock)
        scene.ahead_ms += DAY_MS
        scene.store.segment(1, {ORDERS: [batch_of(b"z")]}, written_at_ms=scene.now_ms() - 2 * DAY_MS)
        await tick(compactor)
        manifest = await scene.manifest()
        assert (manifest.compacted_to, [one.producer_id for one in manifest.producers]) == (2, [77])
        scene.ahead_ms -= DAY_MS
        scene.store.segment(1, {ORDERS: [batch_of(b"z")]}, written_at_ms=scene.now_ms() - 1000)
        await tick(compactor)
        assert (await scene.manifest()).producers == ()

    on_a_bucket(work)


def test_the_grace_of_a_deleted_topic_is_not_counted_by_a_clock_that_is_behind() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(1, {PAYMENTS: [batch_of(*values(0, 3))]}, written_at_ms=scene.now_ms() - 1000)
        await tick(scene.compactor(SETTINGS))
        await scene.delete_topic("payments", PAYMENTS.topic_id)
        compactor = scene.compactor(SETTINGS, clock=clock_of(scene))
        scene.ahead_ms -= DAY_MS
        await tick(compactor)
        await tick(compactor)
        scene.ahead_ms += DAY_MS
        await tick(compactor)
        assert files_in(scene, "payments")
        await asyncio.sleep(GRACE_MS / 1000 + 0.001)
        await tick(compactor)
        assert not files_in(scene, "payments")

    on_a_bucket(work)


def test_the_files_of_a_deleted_topic_are_not_swept_while_the_clock_is_in_doubt() -> None:
    async def work(scene: Scene) -> None:
        compactor = scene.compactor(SETTINGS, clock=clock_of(scene))
        scene.store.segment(1, {PAYMENTS: [batch_of(*values(0, 3))]}, written_at_ms=scene.now_ms() - 1000)
        await tick(compactor)
        await scene.delete_topic("payments", PAYMENTS.topic_id)
        await tick(compactor)
        scene.ahead_ms += DAY_MS
        await asyncio.sleep(2 * GRACE_MS / 1000)
        await tick(compactor)
        assert files_in(scene, "payments")
        context = scene.context(SETTINGS, clock=clock_of(scene))
        scene.ahead_ms += DAY_MS
        assert await context.deletions.delete(files_in(scene, "payments")) == set(), "by any caller"
        assert files_in(scene, "payments")

    on_a_bucket(work)


def test_objects_of_a_clock_that_is_behind_keep_their_grace_for_compactors_whose_clocks_are_right() -> None:
    async def work(scene: Scene) -> None:
        clock = clock_of(scene)
        scene.ahead_ms -= DAY_MS
        scene.store.segment(1, {ORDERS: [batch_of(*values(0, 3))]}, written_at_ms=scene.now_ms() - 1000)
        await tick(scene.compactor(SETTINGS, clock=clock))
        scene.ahead_ms += DAY_MS
        now = scene.now_ms()
        (marker,) = (key for key in scene.store.keys("wal/") if (parsed := parse_wal_key(key)) and parsed.trimmed_to is not None)
        assert now <= msgspec.json.decode(scene.store.content(marker), type=TrimRecord).trimmed_at_ms <= now + 1000
        manifest = await scene.manifest()
        assert now <= min(manifest.written_at_ms, *(file.appended_by_ms for file in manifest.files)) <= now + 1000
        await tick(scene.compactor(SETTINGS))
        assert len(segments_in(scene)) == 1
        scene.ahead_ms += GRACE_MS + 1000
        await tick(scene.compactor(SETTINGS))
        assert segments_in(scene) == []

    on_a_bucket(work)


def test_the_age_of_a_marker_is_not_taken_in_by_a_clock_that_is_behind() -> None:
    """Else its grace would seem to be over when the clock is set right."""

    async def work(scene: Scene) -> None:
        scene.store.segment(1, {ORDERS: [batch_of(*values(0, 3))]}, written_at_ms=scene.now_ms() - 1000)
        await tick(scene.compactor(SETTINGS))
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)
        scene.ahead_ms -= DAY_MS
        await tick(compactor)
        scene.ahead_ms += DAY_MS
        await tick(compactor)
        assert len(segments_in(scene)) == 1

    on_a_bucket(work)


def test_a_clock_in_doubt_is_logged_with_both_times_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        clock = clock_of(scene)
        compactor = scene.compactor(SETTINGS, clock=clock)

        def difference_s() -> float:
            return times(compactor.metrics, clock).clock_difference_s

        await tick(compactor)
        assert (difference_s(), caplog.messages) == (0, [])
        scene.ahead_ms += DAY_MS
        await tick(compactor)
        await tick(compactor)
        assert difference_s() == pytest.approx(86_400, abs=2)
        (reported,) = caplog.messages
        assert "clock in doubt: this machine says 20" in reported
        assert "86,399 s earlier. Nothing expires and nothing is deleted until they agree within 300 s" in reported
        scene.ahead_ms -= DAY_MS
        await tick(compactor)
        assert "clock agrees again" in caplog.messages[-1]

    with caplog.at_level(logging.WARNING):
        on_a_bucket(work)
