"""Segments that are in Parquet go, when their time has come; what fences, and what explains, stays."""

from __future__ import annotations

import msgspec
import pytest

from compaction.gc.wal_trim import TrimRecord
from compaction.settings import CompactionSettings
from metadata.errors import Denied
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import claim_key, index_key, segment_key, trimmed_key
from segments.wal.session import list_session, trim_point
from tests.kit.compaction.blows import StruckStore
from tests.kit.compaction.compacting import Scene, on_a_bucket, plain
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of

GRACE_MS = 60_000
SETTINGS = CompactionSettings(compaction_due_age_ms=1, delete_grace_ms=GRACE_MS)
NOT_DUE = CompactionSettings(delete_grace_ms=GRACE_MS, compaction_due_age_ms=1e12)
SEVEN = SessionId(7)


def wal(scene: Scene, session: int = 7) -> list[str]:
    """The names of its objects."""
    return [key.rpartition("/")[2].lstrip("0") or "0" for key in scene.store.keys(f"wal/{session:016x}/")]


def key_of(seq: int) -> str:
    return segment_key(SEVEN, SegmentSeq(seq))


def test_compacted_segments_are_marked_and_go_after_the_grace_and_the_seal_stays() -> None:
    async def work(scene: Scene) -> None:
        scene.store.plant(claim_key(SEVEN), b"{}")
        for _ in range(3):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        scene.store.seal(7)
        scene.store.plant(index_key(SEVEN, SegmentSeq(0), SegmentSeq(2)), b"damaged, so not used")
        compactor = scene.compactor(SETTINGS)
        await compactor.tick()
        marker = trimmed_key(SEVEN, SegmentSeq(3)).rpartition("/")[2]
        assert wal(scene)[:4] == ["0", "1", "2", "3"]
        assert wal(scene)[-1] == marker
        scene.ahead_ms += GRACE_MS - 1
        await compactor.tick()
        assert wal(scene)[:4] == ["0", "1", "2", "3"]
        scene.ahead_ms += 1
        await compactor.tick()
        assert wal(scene) == ["3", "claim", marker]
        listing = await list_session(plain(scene.store), SEVEN)
        assert (listing.trimmed_to, listing.segments, listing.sealed) == (3, (), True)
        await compactor.tick()
        assert SEVEN not in compactor.view.state.sessions, "nothing is left to do there"
        assert compactor.metrics.bytes_pending == 0

    on_a_bucket(work)


def test_the_next_compactor_counts_the_grace_from_the_time_in_the_marker() -> None:
    async def work(scene: Scene) -> None:
        for _ in range(3):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        await scene.compacted(SETTINGS)
        scene.ahead_ms += GRACE_MS
        await scene.compacted(SETTINGS)
        assert not scene.store.has(key_of(2))

    on_a_bucket(work)


@pytest.mark.parametrize("by_another", [True, False])
def test_a_marker_counts_from_when_it_was_made(*, by_another: bool) -> None:
    """And not from when this compactor began to make it, which then was frozen, or had its request on the wire."""

    async def work(scene: Scene) -> None:
        for _ in range(3):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        store, marker, late_ms = StruckStore(scene.store), trimmed_key(SEVEN, SegmentSeq(3)), GRACE_MS // 2

        async def late(kind: str, key: str) -> None:
            if (kind, key) == ("create", marker):
                scene.ahead_ms += late_ms
                if by_another:
                    scene.store.plant(marker, msgspec.json.encode(TrimRecord(scene.now_ms())))

        store.hold = late
        compactor = scene.compactor(SETTINGS, store=store)
        await compactor.tick()
        assert scene.store.has(marker)
        scene.ahead_ms += GRACE_MS - late_ms
        await compactor.tick()
        assert scene.store.has(key_of(0)), "the marker on the bucket is younger than the grace"
        scene.ahead_ms += late_ms
        await compactor.tick()
        assert not scene.store.has(key_of(0))

    on_a_bucket(work)


def test_a_marker_dated_in_the_future_keeps_segments_only_for_the_grace_since_it_was_seen() -> None:
    async def work(scene: Scene) -> None:
        for _ in range(3):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        scene.ahead_ms += 1000 * GRACE_MS
        await scene.compacted(SETTINGS)
        scene.ahead_ms -= 1000 * GRACE_MS
        compactor = scene.compactor(SETTINGS)
        await compactor.tick()
        scene.ahead_ms += GRACE_MS - 1
        await compactor.tick()
        assert scene.store.has(key_of(0)), "it was seen less than the grace ago"
        scene.ahead_ms += 1
        await compactor.tick()
        assert not scene.store.has(key_of(0))

    on_a_bucket(work)


def test_a_session_that_goes_on_keeps_its_newest_marker_alone() -> None:
    async def work(scene: Scene) -> None:
        compactor = scene.compactor(SETTINGS)
        for n in range(4):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
            await compactor.tick()
            scene.ahead_ms += GRACE_MS // 2
            assert await trim_point(plain(scene.store), SEVEN) == n + 1
        scene.ahead_ms += GRACE_MS
        await compactor.tick()
        assert wal(scene) == [trimmed_key(SEVEN, SegmentSeq(4)).rpartition("/")[2]]
        scene.store.segment(7, {ORDERS: [batch_of(b"w")]})
        await compactor.tick()
        assert [offset for offset, _ in await scene.history()] == list(range(5))

    on_a_bucket(work)


def test_a_segment_stays_while_one_of_its_runs_waits_and_so_do_those_behind_it() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        scene.store.segment(8, {PAYMENTS: [batch_of(b"first")]})
        scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"later")]})
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        first = scene.store.content(segment_key(SessionId(8), SegmentSeq(0)))
        scene.store.remove(segment_key(SessionId(8), SegmentSeq(0)))
        compactor = scene.compactor(SETTINGS)
        for _ in range(2):
            await compactor.tick()
            scene.ahead_ms += GRACE_MS
        assert wal(scene)[:2] == ["1", "2"], "payments begin in a session that was not seen yet"
        scene.store.plant(segment_key(SessionId(8), SegmentSeq(0)), first)
        for _ in range(2):
            await compactor.tick()
            scene.ahead_ms += GRACE_MS
        assert wal(scene)[:1] == [trimmed_key(SEVEN, SegmentSeq(3)).rpartition("/")[2]]
        assert await scene.history(PAYMENTS) == [(0, b"first"), (1, b"later")]

    on_a_bucket(work)


def test_an_unreadable_segment_is_never_trimmed() -> None:
    async def work(scene: Scene) -> None:
        keys = [scene.store.segment(7, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"v")]}) for _ in range(3)]
        scene.store.damage_footer(keys[1])
        compactor = scene.compactor(SETTINGS)
        for _ in range(3):
            await compactor.tick()
            scene.ahead_ms += GRACE_MS
        assert wal(scene)[:2] == ["1", "2"]

    on_a_bucket(work)


def test_segments_are_deleted_first_ones_first() -> None:
    async def work(scene: Scene) -> None:
        for _ in range(40):
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        store = StruckStore(scene.store)
        compactor = scene.compactor(SETTINGS, store=store)
        await compactor.tick()
        scene.ahead_ms += GRACE_MS
        await compactor.tick()
        assert [key for kind, key in store.calls if kind == "delete" and key.startswith("wal/")] == [key_of(n) for n in range(40)]

    on_a_bucket(work)


def test_a_bucket_that_denies_deletes_is_logged_once_and_compaction_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        store = StruckStore(scene.store)

        async def deny(kind: str, key: str) -> None:
            if kind == "delete" and denied:
                raise Denied("AccessDenied")

        denied = True
        store.hold = deny
        compactor = scene.compactor(SETTINGS, store=store)
        for n in range(1, 4):
            report = await compactor.tick()
            assert not report.failed
            scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
            scene.ahead_ms += GRACE_MS
            assert len(await scene.history()) == n
        assert wal(scene)[0] == "0"
        assert sum("s3:DeleteObject" in record.getMessage() for record in caplog.records) == 1
        denied = False
        scene.ahead_ms += 3_600_000
        await compactor.tick()
        assert wal(scene)[0] != "0"

    on_a_bucket(work)


def test_nothing_is_trimmed_by_what_was_only_planned() -> None:
    async def work(scene: Scene) -> None:
        scene.store.segment(7, {ORDERS: [batch_of(b"v")]})
        compactor = scene.compactor(NOT_DUE)
        for _ in range(3):
            await compactor.tick()
            scene.ahead_ms += GRACE_MS
        assert wal(scene) == ["0"]

    on_a_bucket(work)
