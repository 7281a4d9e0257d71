"""What is known of the segments on the bucket, and what it costs to know it."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.wal.scanner import WalBacklog
from metadata.errors import Unavailable
from metadata.model import Offset, SegmentSeq, SessionId
from segments.bucket.layout import claim_key, index_key, segment_key, trimmed_key
from segments.history.manifest import no_manifest
from segments.object_store.interface import ObjectInfo
from segments.wal.footer_index import IndexBlock, encode_index
from segments.wal.footer_reader import read_footer_bytes
from tests.kit.compaction.blows import StruckStore
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, seal_of, segment_of, stamped_run
from tests.kit.segments.past_sessions import Bucket
from tests.simulation.virtual_loop import run

NOW_MS = 1_000_000


class Watched:
    """A bucket, and a view of it."""

    def __init__(self, *, runs_max: int = 1_000_000) -> None:
        self.bucket = Bucket()
        self.store = StruckStore(self.bucket)
        self.view = WalBacklog(self.store, runs_max=runs_max, reads_max=4)
        self.state = self.view.state
        self.now_ms = NOW_MS

    async def poll(self) -> list[tuple[str, str]]:
        """The calls that it took."""
        self.store.calls.clear()
        await self.view.poll(now_ms=self.now_ms)
        return self.store.calls

    def segments(self, session: int, count: int) -> list[str]:
        self.bucket.plant(claim_key(SessionId(session)), b"{}")
        return [self.bucket.segment(session, {ORDERS: [batch_of(b"v")]}) for _ in range(count)]

    def plant(self, session: int, seq: int, *, committed_to: int) -> None:
        """A segment of one record, which has the number of its place as its offset."""
        body = segment_of(session, seq, [(ORDERS, stamped_run(seq, batch_of(b"v")))], committed_to=committed_to).body
        self.bucket.plant(segment_key(SessionId(session), SegmentSeq(seq)), b"".join(bytes(part) for part in body))

    def waiting(self) -> list[tuple[int, int, int]]:
        """Offset, session and place of each run that waits."""
        return [(one.base_offset, one.session, one.seq) for one in self.state.pending.get(ORDERS, ())]

    async def index(self, session: int, first: int, end: int) -> None:
        footers = []
        for seq in range(first, end):
            key = segment_key(SessionId(session), SegmentSeq(seq))
            footers.append(await read_footer_bytes(self.bucket, ObjectInfo(key, len(self.bucket.content(key)))))
        block = IndexBlock(SegmentSeq(first), SegmentSeq(end), tuple(footers))
        body = b"".join(bytes(part) for part in encode_index(SessionId(session), block))
        self.bucket.plant(index_key(SessionId(session), block.first, block.end), body)


def watched(work: Coroutine[Any, Any, None]) -> None:
    run(work)


def test_a_look_at_an_idle_bucket_costs_a_request_for_each_session_that_is_open_and_one_more() -> None:
    async def work() -> None:
        scene = Watched()
        for session in range(1, 30):
            scene.segments(session, 3)
            if session not in {28, 29}:
                scene.bucket.seal(session)
        await scene.poll()
        assert len(scene.waiting()) == 29 * 3
        assert [kind for kind, _ in await scene.poll()] == ["list"] * 3

    watched(work())


def test_footers_are_read_through_indexes_and_each_once() -> None:
    async def work() -> None:
        scene = Watched()
        scene.segments(1, 40)
        await scene.index(1, 0, 32)
        calls = await scene.poll()
        assert (sum(kind == "get" for kind, _ in calls), sum(kind == "tail" for kind, _ in calls)) == (1, 8)
        scene.segments(1, 3)
        calls = await scene.poll()
        assert [kind for kind, _ in calls] == ["list", "list", "tail", "tail", "tail"]
        assert len(scene.waiting()) == 43

    watched(work())


def test_two_sessions_follow_each_other_in_a_partition_whichever_is_found_first() -> None:
    async def work() -> None:
        scene = Watched()
        scene.segments(8, 2)
        scene.segments(3, 2)
        scene.segments(8, 1)
        await scene.poll()
        assert scene.waiting() == [(0, 8, 0), (1, 8, 1), (2, 3, 0), (3, 3, 1), (4, 8, 2)]

    watched(work())


def test_a_session_whose_number_was_claimed_late_is_found() -> None:
    async def work() -> None:
        scene = Watched()
        scene.segments(3, 1)
        await scene.poll()
        scene.segments(6, 1)
        await scene.poll()
        scene.segments(5, 1)
        await scene.poll()
        assert [session for _, session, _ in scene.waiting()] == [3, 6, 5]
        scene.now_ms += 10_000_000
        await scene.poll()
        assert len(await scene.poll()) == 4, "it is not likely that somebody claims number 4 now"
        scene.segments(4, 1)
        scene.now_ms += 3_600_000
        await scene.poll()
        assert [session for _, session, _ in scene.waiting()] == [3, 6, 5, 4]

    watched(work())


def test_a_session_that_is_claimed_while_the_view_begins_is_found() -> None:
    """As when brokers and a compactor are started together."""

    async def work() -> None:
        scene = Watched()
        scene.segments(2, 1)
        await scene.poll()
        scene.segments(1, 1)
        await scene.poll()
        assert [session for _, session, _ in scene.waiting()] == [2, 1]

    watched(work())


def test_a_gap_that_remains_at_the_second_poll_is_reported_as_damage() -> None:
    async def work() -> None:
        scene = Watched()
        scene.segments(7, 2)
        await scene.poll()
        bodies = []
        for seq in range(2, 5):  # as a writer does: each has how far it knew the session to be committed
            body = segment_of(7, seq, [(ORDERS, stamped_run(seq, batch_of(b"v")))], committed_to=seq).body
            bodies.append(b"".join(bytes(part) for part in body))
        for seq in (3, 4):
            scene.bucket.plant(segment_key(SessionId(7), SegmentSeq(seq)), bodies[seq - 2])
        await scene.poll()
        assert len(scene.waiting()) == 2, "it may be a PUT on its way"
        assert not scene.state.sessions[SessionId(7)].damaged
        await scene.poll()
        (damage,) = scene.state.sessions[SessionId(7)].damaged.values()
        assert damage.details["key"] == segment_key(SessionId(7), SegmentSeq(2))
        assert [seq for _, _, seq in scene.waiting()] == [0, 1, 3, 4]
        assert scene.state.pending[ORDERS].count_without_gap(0) == 2

    watched(work())


@pytest.mark.parametrize("gone", [4, 8, 10, 15, 28])
def test_a_missing_segment_far_from_the_start_is_found_by_the_first_poll(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with a single scan takes what waits then for all there is."""
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_AT_ONCE", 2)
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_LISTED_MAX", 4)

    async def work() -> None:
        scene = Watched()
        for seq in range(30):  # as a writer does: each has how far it knew the session to be committed
            scene.plant(7, seq, committed_to=seq)
        scene.bucket.remove(segment_key(SessionId(7), SegmentSeq(gone)))
        await scene.poll()
        state = scene.state.sessions[SessionId(7)]
        assert (state.known_to, state.listed.is_read, list(state.damaged)) == (30, True, [gone])
        assert [seq for _, _, seq in scene.waiting()] == [seq for seq in range(30) if seq != gone]

    watched(work())


def test_a_put_on_its_way_is_no_gap_when_it_has_landed() -> None:
    async def work() -> None:
        scene = Watched()
        keys = scene.segments(7, 4)
        late = scene.bucket.content(keys[2])
        scene.bucket.remove(keys[2])
        await scene.poll()
        assert len(scene.waiting()) == 2
        scene.bucket.plant(keys[2], late)
        await scene.poll()
        assert len(scene.waiting()) == 4

    watched(work())


def test_segments_that_were_trimmed_are_not_read_and_those_that_another_trims_are_forgotten() -> None:
    async def work() -> None:
        scene = Watched()
        keys = scene.segments(7, 6)
        scene.bucket.seal(7)
        scene.bucket.plant(trimmed_key(SessionId(7), SegmentSeq(2)), b'{"trimmed_at_ms": 5}')
        scene.bucket.remove(keys[0])
        calls = await scene.poll()
        assert sum(kind == "tail" for kind, _ in calls) == 4
        state = scene.state.sessions[SessionId(7)]
        assert (state.first_seq, state.oldest_seq, state.done_to, state.known_to) == (2, 1, 2, 6)
        scene.state.advance(no_manifest(ORDERS))
        scene.bucket.plant(trimmed_key(SessionId(7), SegmentSeq(5)), b'{"trimmed_at_ms": 6}')
        scene.now_ms += 60_000
        await scene.poll()
        assert scene.waiting() == [(5, 7, 5)]
        assert scene.state.without_floor() == [ORDERS], "there is a newer manifest"
        assert set(state.markers) == {2, 5}

    watched(work())


def test_segments_that_are_trimmed_and_deleted_while_they_are_read_are_passed_over() -> None:
    async def work() -> None:
        scene = Watched()
        keys = scene.segments(7, 4)

        async def trim_meanwhile(kind: str, key: str) -> None:
            if kind == "tail":
                scene.bucket.plant(trimmed_key(SessionId(7), SegmentSeq(3)), b"{}")
                for gone in keys[:3]:
                    scene.bucket.remove(gone)

        scene.store.hold = trim_meanwhile
        await scene.poll()
        assert scene.waiting() == [(3, 7, 3)]

    watched(work())


def test_no_more_is_kept_in_mind_than_there_is_room_for_and_those_written_first_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_AT_ONCE", 1)

    async def work() -> None:
        scene = Watched(runs_max=4)
        for n in range(6):
            session = 7 + n % 2
            scene.bucket.segment(session, {ORDERS: [batch_of(b"v")], PAYMENTS: [batch_of(b"v")]}, written_at_ms=1_000 * n)
        scene.bucket.plant(claim_key(SessionId(7)), b"{}")
        await scene.poll()
        assert scene.waiting() == [(0, 7, 0), (1, 8, 0)]
        for partition in (ORDERS, PAYMENTS):
            scene.state.advance(msgspec.structs.replace(no_manifest(partition), compacted_to=Offset(2)))
        await scene.poll()
        assert scene.waiting() == [(2, 7, 1), (3, 8, 1)]

    watched(work())


def test_a_long_session_is_listed_only_as_far_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_AT_ONCE", 2)
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_LISTED_MAX", 4)

    async def work() -> None:
        scene = Watched(runs_max=6)
        keys = scene.segments(7, 30)
        await scene.index(7, 0, 8)
        await scene.index(7, 8, 16)
        scene.bucket.seal(7)
        state = None
        for done in range(0, 30, 2):
            await scene.poll()
            state = scene.state.sessions[SessionId(7)]
            assert len(state.listed.listed.segments if state.listed.listed is not None else ()) <= 4
            assert state.listed.is_read == (done + 6 >= 30)
            assert scene.waiting() == [(n, 7, n) for n in range(done, min(done + 6, 30))]
            scene.state.advance(msgspec.structs.replace(no_manifest(ORDERS), compacted_to=Offset(done + 2)))
        assert state is not None
        assert (state.is_ended, state.listed.is_cut, state.done_to) == (True, False, len(keys))
        assert {index.end for index in state.indexes} == {8, 16}

    watched(work())


@pytest.mark.parametrize("late", [0, 3])
def test_all_indexes_of_a_long_session_are_found_though_its_seal_takes_the_last_place_of_a_listing(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one before it, and what a zombie wrote behind the seal those after it. No other would delete them."""
    monkeypatch.setattr("segments.wal.known_sessions.SEGMENTS_LISTED_MAX", 4)
    monkeypatch.setattr("segments.wal.session_listing._INDEX_REACH", 6)

    async def work() -> None:
        scene = Watched()
        scene.segments(7, 19)
        for first in range(0, 18, 2):
            await scene.index(7, first, first + 2)
        scene.bucket.seal(7)
        for seq in range(20, 20 + late):
            scene.plant(7, seq, committed_to=19)
        scene.bucket.plant(trimmed_key(SessionId(7), SegmentSeq(17 if late else 16)), b"{}")
        monkeypatch.setattr(scene.store, "list", partial(scene.store.list, limit=3))
        await scene.poll()
        state = scene.state.sessions[SessionId(7)]
        assert (state.is_ended, state.known_to) == (True, 19)
        assert {index.first for index in state.indexes} == set(range(0, 18, 2))

    watched(work())


@pytest.mark.slow
@pytest.mark.parametrize("listed_max", [1, 2, 3, 5])
@given(data=st.data())
def test_however_few_are_listed_at_a_time_the_same_is_found_in_the_end(listed_max: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20), label="segments")
    missing = data.draw(st.sets(st.integers(0, count - 1), max_size=3), label="missing")
    trimmed = data.draw(st.integers(0, count), label="trimmed below")
    gone_below = data.draw(st.integers(0, trimmed), label="deleted below")
    sealed = data.draw(st.booleans(), label="sealed")
    late = data.draw(st.sets(st.integers(count + 1, count + 8), max_size=5 if sealed else 0), label="of a zombie")
    indexed = data.draw(st.sets(st.sampled_from([(0, 3), (3, 6), (2, 8), (8, 12), (12, 16), (13, 18)])), label="indexes")
    page_max = data.draw(st.integers(1, 5), label="objects to a page")

    async def found(limit: int) -> object:
        scene = Watched()
        for seq in range(count):  # as a writer does: each has how far it knew the session to be committed
            scene.plant(7, seq, committed_to=seq)
        for seq in late:
            scene.plant(7, seq, committed_to=count)
        for first, end in indexed:
            if end <= count and not missing & set(range(first, end)):  # else the footer of a missing one may be found there
                await scene.index(7, first, end)
        if sealed:
            scene.bucket.plant(segment_key(SessionId(7), SegmentSeq(count)), seal_of(7, count))
        if trimmed:
            scene.bucket.plant(trimmed_key(SessionId(7), SegmentSeq(trimmed)), b"{}")
        for seq in missing | set(range(gone_below)):
            scene.bucket.remove(segment_key(SessionId(7), SegmentSeq(seq)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("segments.wal.known_sessions.SEGMENTS_LISTED_MAX", limit)
            patch.setattr("segments.wal.session_listing._INDEX_REACH", 6)
            patch.setattr(scene.store, "list", partial(scene.store.list, limit=page_max))
            for _ in range(2 * len(missing) + 2):
                await scene.poll()
        state = scene.state.sessions.get(SessionId(7))
        if state is None:
            return scene.waiting()
        assert not state.listed.is_cut
        of_session = (state.first_seq, state.oldest_seq, state.known_to, state.listed.sealed, set(state.damaged), state.indexes)
        return scene.waiting(), of_session

    async def work() -> None:
        assert await found(listed_max) == await found(1_000)

    watched(work())


def test_a_read_that_fails_is_tried_again() -> None:
    async def work() -> None:
        scene = Watched()
        scene.segments(7, 4)
        calls = len(await scene.poll())
        for at in range(1, calls + 1):
            again = Watched()
            again.segments(7, 4)
            again.store = StruckStore(again.bucket, at=at)
            again.view = WalBacklog(again.store, runs_max=100, reads_max=1)
            again.state = again.view.state
            with pytest.raises(Unavailable):
                await again.view.poll(now_ms=NOW_MS)
            await again.view.poll(now_ms=NOW_MS)
            assert len(again.waiting()) == 4

    watched(work())
