"""Follows the committed segments on the bucket, from the bucket alone: a compactor and a stream poll again and again, a query once.

    first poll   LIST wal/ ─▶ footers of all that is not trimmed, through indexes where there are any
    later        LIST of what is new in wal/ · of holes that are due · of each session without a seal ─▶ footers of what is new

A poll of an idle cluster costs a request for each broker, and one more. New sessions are listed before those that are known, so
that a partition which moves to a new leader meanwhile is found without a gap. What is known, and what is to be listed and read
next, is decided in known_sessions.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from metadata.errors import Corrupt, NotFound, Unavailable
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import WAL, session_prefix
from segments.concurrency import gather_all
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.wal import known_sessions
from segments.wal.known_sessions import KnownSession, KnownSessions, sort_in
from segments.wal.segment_file import SegmentFooter
from segments.wal.session import committed_in, list_objects
from segments.wal.session_listing import ListedSession
from segments.wal.session_reader import GONE_TRIES, read_footers

# Runs that are handed on before others get their turn on the loop.
RUNS_IN_A_ROW: Final = 2_000


class SegmentConsumer(Protocol):
    """Receives what a scanner finds."""

    def listed(self, session: KnownSession, listed: ListedSession) -> None:
        """Takes in what a listing of the session shows; the first of them tells that there is such a session."""
        ...

    def trimmed(self, session: KnownSession, to: SegmentSeq) -> None:
        """Hears of a trim marker. Segments in [session.known_to, to) are not handed on: they are in Parquet."""
        ...

    def take_in(self, session: KnownSession, info: ObjectInfo | None, footer: SegmentFooter | Corrupt) -> None:
        """Takes in the committed segment at `session.known_to`: Corrupt where it is gone (`info` is None) or damaged."""
        ...


class WalScanner:
    """Scans the WAL for new segments. Its owner calls `poll` from time to time, one call at a time."""

    def __init__(self, store: ObjectStore, consumer: SegmentConsumer, *, reads_max: int, sessions_at_once: int = 1) -> None:
        """`reads_max`: reads of a session at the same time."""
        self._store = store
        self._consumer = consumer
        self._reads_max = reads_max
        self._sessions_at_once = sessions_at_once
        self._known = KnownSessions()

    @property
    def has_read_all(self) -> bool:
        """Returns whether nothing is left that a listing has shown."""
        return all(session.is_read for session in self._known.open.values())

    async def poll(self, *, now_ms: int, late: bool = True, has_room: Callable[[], bool] = lambda: True) -> None:
        """Hands on what was committed since the last poll.

        `late`: lists holes as well. No footers are read while `has_room` returns False. Raises what the store raises; what was
        handed on stays, and the next poll goes on from there.
        """
        holes = self._known.begin_poll(now_ms)
        await self._find(WAL, start_after=self._known.start_after, now_ms=now_ms)
        for hole in holes if late else ():
            await self._find(session_prefix(hole), now_ms=now_ms)
            self._known.hole_listed(hole, now_ms)
        await gather_all(self._read_on(has_room) for _ in range(self._sessions_at_once))

    def trimmed(self, session: KnownSession, to: SegmentSeq) -> None:
        """Takes in a trim marker of the session, also one that its owner found."""
        self._consumer.trimmed(session, to)
        session.trimmed(to)
        self._known.drop_if_over(session)

    async def _find(self, prefix: str, *, start_after: str = "", now_ms: int) -> None:
        """Takes in sessions that were not known."""
        sessions: dict[SessionId, ListedSession] = {}
        last: ListedSession | None = None
        while True:
            page = await self._store.list(prefix, start_after=start_after)
            for found in page.objects:
                last = sort_in(sessions, found, objects_max=known_sessions.SEGMENTS_LISTED_MAX) or last
            if not page.more:
                break
            start_after = max(page.objects[-1].key, last.skip_to if last is not None else "")
        new = {number: listed for number, listed in sessions.items() if number not in self._known.open}
        for session in self._known.found(new.keys(), now_ms):
            await self._settle(session, new[session.session])

    async def _read_on(self, has_room: Callable[[], bool]) -> None:
        while (session := self._known.next_session(may_read=has_room())) is not None:
            session.is_busy = True
            try:
                if session.is_due or session.listed is None:
                    await self._settle(session, await list_objects(self._store, session.next_listing()))
                else:
                    await self._read(session)
            finally:
                session.is_busy = False

    async def _settle(self, session: KnownSession, listed: ListedSession) -> None:
        self._consumer.listed(session, listed)
        self.trimmed(session, listed.trimmed_to)
        listing = listed.committed()
        if session.has_doubtful_gap(listed, listing):
            listing = await committed_in(self._store, listed)
            if listing.trimmed_to > session.known_to:  # else it is only from where on it was listed
                self.trimmed(session, listing.trimmed_to)
        if listing.sealed and listed.cut_at is not None:  # late segments filled it up: no other listing shows the indexes
            self._consumer.listed(session, await list_objects(self._store, ListedSession(session.session, since=session.known_to)))
        session.take_listing(listed, listing)
        self._known.drop_if_over(session)

    async def _read(self, session: KnownSession) -> None:
        part = session.next_part()
        try:
            footers = await read_footers(self._store, part, reads_max=self._reads_max)
        except NotFound as error:  # trimmed since the listing, or deleted by hand: another listing tells
            session.was_gone()
            if session.gone_count >= GONE_TRIES:
                raise Unavailable(
                    f"session {session.session}: a segment that is listed was gone {GONE_TRIES} times in a row: {error.message}"
                ) from error
            return
        runs = 0
        for info, footer in zip(part.segments, footers, strict=True):
            self._consumer.take_in(session, info, footer)
            session.handed_on(footer)
            runs += len(footer.runs) if isinstance(footer, SegmentFooter) else 0
            if runs >= RUNS_IN_A_ROW:
                runs = 0
                await asyncio.sleep(0)
        self._known.drop_if_over(session)
