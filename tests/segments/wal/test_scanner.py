"""What a scan of the WAL hands on, and what it costs: the bucket alone is asked."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from metadata.errors import Corrupt, NotFound, Unavailable
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import claim_key, segment_key, trimmed_key
from segments.object_store.interface import ObjectInfo
from segments.wal.known_sessions import HOLES_LATER_MS, HOLES_POLLED_MS, KnownSession
from segments.wal.scanner import WalScanner
from segments.wal.segment_file import SegmentFooter
from segments.wal.session import list_session
from segments.wal.session_listing import ListedSession
from segments.wal.session_reader import GONE_TRIES, read_committed, read_segment
from tests.kit.compaction.blows import StruckStore
from tests.kit.segments.batches import ORDERS, batch_of, segment_of, stamped_run
from tests.kit.segments.past_sessions import Bucket
from tests.simulation.virtual_loop import run

SEVEN = SessionId(7)


class Scene:
    """A bucket, and a scanner whose consumer keeps all that is handed on."""

    def __init__(self, *, sessions_at_once: int = 1) -> None:
        self.bucket = Bucket()
        self.store = StruckStore(self.bucket)
        self.scanner = WalScanner(self.store, self, reads_max=4, sessions_at_once=sessions_at_once)
        self.sessions: set[KnownSession] = set()
        self.found: list[tuple[int, int]] = []
        self.damaged: dict[tuple[int, int], Corrupt] = {}
        self.skipped: list[tuple[int, int, int]] = []
        self.now_ms = 1_000_000

    def listed(self, session: KnownSession, listed: ListedSession) -> None:
        self.sessions.add(session)

    def trimmed(self, session: KnownSession, to: SegmentSeq) -> None:
        if to > session.known_to:
            self.skipped.append((session.session, session.known_to, to))

    def take_in(self, session: KnownSession, info: ObjectInfo | None, footer: SegmentFooter | Corrupt) -> None:
        segment = session.session, session.known_to
        if isinstance(footer, Corrupt):
            self.damaged[segment] = footer
        else:
            assert segment == (footer.session, footer.seq)
            self.found.append(segment)

    async def poll(self, *, late: bool = True) -> list[str]:
        """Returns the kinds of the requests that it took."""
        self.store.calls.clear()
        await self.scanner.poll(now_ms=self.now_ms, late=late)
        return [kind for kind, _ in self.store.calls]

    def segments(self, session: int, count: int) -> list[str]:
        self.bucket.plant(claim_key(SessionId(session)), b"{}")
        return [self.bucket.segment(session, {ORDERS: [batch_of(b"v")]}) for _ in range(count)]

    def plant(self, session: int, seq: int, *, committed_to: int) -> None:
        body = segment_of(session, seq, [(ORDERS, stamped_run(seq, batch_of(b"v")))], committed_to=committed_to).body
        self.bucket.plant(segment_key(SessionId(session), SegmentSeq(seq)), b"".join(bytes(part) for part in body))


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    run(work)


@pytest.mark.parametrize("sessions_at_once", [1, 8])
def test_each_footer_is_read_once_however_often_it_is_polled(sessions_at_once: int) -> None:
    async def work() -> None:
        scene = Scene(sessions_at_once=sessions_at_once)
        scene.segments(6, 2)
        scene.bucket.seal(6)
        scene.segments(7, 3)
        await scene.poll()
        for _ in range(3):
            assert await scene.poll(late=False) == ["list", "list"], "what is new, and the open session"
        scene.segments(7, 2)
        assert await scene.poll(late=False) == ["list", "list", "tail", "tail"]
        assert sorted(scene.found) == [(6, 0), (6, 1), (7, 0), (7, 1), (7, 2), (7, 3), (7, 4)]
        assert len(scene.found) == len(set(scene.found))

    in_loop(work())


def test_new_sessions_are_listed_before_those_that_are_known() -> None:
    """So a partition that moves to a new session meanwhile shows no gap."""

    async def work() -> None:
        scene = Scene()
        scene.segments(6, 1)
        await scene.poll()
        scene.segments(7, 1)
        await scene.poll()
        listed = [key for kind, key in scene.store.calls if kind == "list"]
        assert listed[0] == "wal/"

    in_loop(work())


@pytest.mark.parametrize("after_ms", [0, HOLES_POLLED_MS, HOLES_LATER_MS + 1], ids=["soon", "later", "long after"])
def test_a_session_that_is_claimed_late_is_found(after_ms: int) -> None:
    """Brokers take their numbers in order, and claim them in any; one that can't reach the bucket does so hours later."""

    async def work() -> None:
        scene = Scene()
        scene.segments(2, 1)
        await scene.poll()
        scene.now_ms += after_ms
        scene.segments(1, 1)
        await scene.poll(late=False)
        assert scene.found == [(2, 0)], "holes were not asked for"
        await scene.poll()
        assert scene.found == [(2, 0), (1, 0)]

    in_loop(work())


def test_a_hole_is_polled_seldom_when_it_is_old_however_many_sessions_came_since() -> None:
    async def work() -> None:
        scene = Scene()
        scene.segments(2, 1)
        await scene.poll()
        for session in range(3, 103):
            scene.segments(session, 1)
            scene.bucket.seal(session)
        await scene.poll()
        scene.now_ms += HOLES_POLLED_MS + 1
        assert len(await scene.poll()) == 2, "what is new, and the open session"
        scene.segments(1, 1)
        scene.now_ms += HOLES_LATER_MS
        await scene.poll()
        assert (1, 0) in scene.found

    in_loop(work())


def test_a_gap_in_a_session_that_is_known_is_asked_about_when_the_next_poll_shows_it_too() -> None:
    """It may be a PUT on its way. Where nothing but the listing was asked, it costs no more than a poll without a gap."""

    async def work() -> None:
        scene = Scene()
        for seq in range(2):
            scene.plant(7, seq, committed_to=seq)
        await scene.poll()
        for seq in (3, 4):
            scene.plant(7, seq, committed_to=seq)
        quiet = len(await scene.poll())
        assert (quiet, scene.found, scene.damaged) == (1 + 6 + 1, [(7, 0), (7, 1)], {}), "new ones, six holes, the session"
        await scene.poll()
        assert (scene.found[2:], list(scene.damaged)) == ([(7, 3), (7, 4)], [(7, 2)])

    in_loop(work())


def test_a_gap_costs_a_listing_of_what_is_not_known_and_not_of_the_whole_session() -> None:
    async def work() -> None:
        scene = Scene()
        for seq in range(30):
            scene.plant(7, seq, committed_to=seq)
        await scene.poll(late=False)
        scene.plant(7, 31, committed_to=30)
        listed = []

        async def hold(kind: str, key: str) -> None:
            listed.append((kind, key))

        scene.store.hold = hold
        await scene.poll(late=False)
        await scene.poll(late=False)
        last = segment_key(SEVEN, SegmentSeq(31))
        assert [kind for kind, key in listed] == ["list", "list", "list", "list", "tail"]
        assert listed[-1] == ("tail", last), "who might say that the missing one was committed"

    in_loop(work())


def test_a_segment_that_is_trimmed_before_it_was_read_is_reported_and_skipped() -> None:
    async def work() -> None:
        scene = Scene()
        scene.segments(7, 2)
        await scene.poll()
        keys = scene.segments(7, 3)
        scene.bucket.plant(trimmed_key(SEVEN, SegmentSeq(4)), b"{}")
        for key in keys[:2]:
            scene.bucket.remove(key)
        await scene.poll()
        assert (scene.skipped, scene.found[2:]) == ([(7, 2, 4)], [(7, 4)])

    in_loop(work())


def test_a_sealed_session_that_its_owner_knows_to_be_trimmed_is_not_listed_again() -> None:
    async def work() -> None:
        scene = Scene()
        scene.segments(7, 3)
        scene.bucket.seal(7)
        await scene.scanner.poll(now_ms=scene.now_ms, has_room=lambda: False)
        (session,) = scene.sessions
        scene.scanner.trimmed(session, SegmentSeq(3))
        assert scene.scanner.has_read_all
        assert (await scene.poll(late=False), scene.found) == (["list"], [])

    in_loop(work())


def test_segments_that_are_trimmed_while_a_gap_is_asked_about_are_passed_over() -> None:
    async def work() -> None:
        scene = Scene()
        for seq in (0, 2, 3, 4):
            scene.plant(7, seq, committed_to=seq)

        async def trim_meanwhile(kind: str, key: str) -> None:
            if kind == "tail":
                scene.bucket.plant(trimmed_key(SEVEN, SegmentSeq(3)), b"{}")
                scene.bucket.remove(segment_key(SEVEN, SegmentSeq(0)))
                scene.bucket.remove(segment_key(SEVEN, SegmentSeq(2)))

        scene.store.hold = trim_meanwhile
        await scene.poll()
        assert (scene.skipped, scene.found, scene.damaged) == ([(7, 0, 3)], [(7, 3), (7, 4)], {})

    in_loop(work())


def test_a_segment_that_is_listed_and_never_there_ends_the_poll_and_not_in_a_circle() -> None:
    async def work() -> None:
        scene = Scene()
        scene.segments(7, 2)
        gone = segment_key(SEVEN, SegmentSeq(1))

        async def hold(kind: str, key: str) -> None:
            if (kind, key) == ("tail", gone):
                raise NotFound(f"{gone} is not there")

        scene.store.hold = hold
        with pytest.raises(Unavailable, match="listed was gone 5 times"):
            await scene.poll()
        assert scene.store.count("tail", gone) == GONE_TRIES
        scene.store.hold = None
        await scene.poll()
        assert scene.found == [(7, 0), (7, 1)]

    in_loop(work())


def test_a_session_whose_listing_failed_is_listed_at_the_next_poll() -> None:
    async def work() -> None:
        calls = 0
        for at in range(1, 30):
            scene = Scene()
            scene.plant(7, 0, committed_to=0)
            scene.plant(7, 2, committed_to=0)  # asked about at once, since the listing is the first
            scene.plant(8, 0, committed_to=0)
            scene.store = StruckStore(scene.bucket, at=at)
            scene.scanner = WalScanner(scene.store, scene, reads_max=1)
            try:
                await scene.scanner.poll(now_ms=1)
            except Unavailable:
                calls += 1
            else:
                break
            await scene.scanner.poll(now_ms=1)
            assert sorted(scene.found) == [(7, 0), (8, 0)]
        assert calls >= 4

    in_loop(work())


# ── one session, and one segment ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_is_read_in_parts_and_goes_on_behind_what_is_trimmed_meanwhile() -> None:
    async def work() -> None:
        scene = Scene()
        keys = scene.segments(7, 6)
        listed = ListedSession(SEVEN)
        for key in keys:
            listed.take_in(ObjectInfo(key, len(scene.bucket.content(key))))
        found = []
        async for part, footers in read_committed(scene.store, listed.committed(), reads_max=1, segments_max=2):
            found.append((part.trimmed_to, len(footers)))
            if part.trimmed_to == 0:
                scene.bucket.plant(trimmed_key(SEVEN, SegmentSeq(5)), b"{}")
                for key in keys[:5]:
                    scene.bucket.remove(key)
        assert found == [(0, 2), (5, 1)]

    in_loop(work())


def test_a_session_of_which_a_segment_is_deleted_while_it_is_read_is_not_read_from_its_start_again() -> None:
    async def work() -> None:
        scene = Scene()
        for seq in range(6):
            scene.plant(7, seq, committed_to=seq)
        parts = read_committed(scene.store, await list_session(scene.store, SEVEN), reads_max=1, segments_max=2)
        found: list[int | str] = []
        async for part, footers in parts:
            found += ["gone" if isinstance(footer, Corrupt) else footer.seq for footer in footers]
            if part.trimmed_to == 0:
                scene.bucket.remove(segment_key(SEVEN, SegmentSeq(3)))
        assert found == [0, 1, 2, "gone", 4, 5]

    in_loop(work())


def test_a_damaged_segment_that_is_read_again_is_sound_gone_damaged_or_trimmed() -> None:
    async def work() -> None:
        scene = Scene()
        (key,) = scene.segments(7, 1)
        body = scene.bucket.content(key)
        footer = await read_segment(scene.store, SEVEN, SegmentSeq(0))
        assert footer is not None
        assert footer.seq == 0
        scene.bucket.damage_footer(key)
        with pytest.raises(Corrupt):
            await read_segment(scene.store, SEVEN, SegmentSeq(0))
        scene.bucket.remove(key)
        with pytest.raises(NotFound):
            await read_segment(scene.store, SEVEN, SegmentSeq(0))
        scene.bucket.plant(trimmed_key(SEVEN, SegmentSeq(1)), b"{}")
        assert await read_segment(scene.store, SEVEN, SegmentSeq(0)) is None
        scene.bucket.plant(key, body[:-5])
        assert await read_segment(scene.store, SEVEN, SegmentSeq(0)) is None, "it was compacted from a copy"

    in_loop(work())
