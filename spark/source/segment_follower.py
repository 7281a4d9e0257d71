"""Follows the committed segments on the bucket, from the bucket alone: a batch query looks once, a stream looks again and again.

    first look   LIST wal/ ─▶ footers of all that is not trimmed, through indexes where there are any
    later        LIST of what is new in wal/ · of each session that is not sealed, from where it is known · footers of these

So a look where nothing happened costs one request for each broker, and one more; no footer is read twice. New sessions are listed
before those that are known: a partition that moves to a new leader meanwhile is found without a gap.

Invariant: a footer is handed on once, when its segment is committed; those of a session in order, but for one that was damaged and
is sound by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from metadata.errors import Corrupt, NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import WAL, end_of_session, parse_wal_key, segment_key, session_prefix, trimmed_prefix
from segments.concurrency import all_of
from segments.object_store.interface import ObjectStore, objects_under
from segments.wal.segment_file import SegmentFooter
from segments.wal.session import list_session
from segments.wal.session_listing import SessionListing, SessionLook
from segments.wal.session_reader import read_footers

SESSIONS_AT_ONCE: Final = 8
READS_MAX: Final = 32
"""Footers of a session, at the same time."""
SEGMENTS_AT_ONCE: Final = 1024
"""Whose footers are in memory."""
HOLES_BEHIND: Final = 64
"""Numbers below a new session that may belong to brokers which were slow to claim theirs,"""
HOLE_LOOKS: Final = 100
"""and how often they are looked for at each look,"""
HOLE_LOOKS_LATER: Final = 360
"""and at which of the looks from then on: a broker that could not reach the bucket may claim its own hours later."""

Place = tuple[SessionId, SegmentSeq]


@dataclass(slots=True)
class _Followed:
    session: SessionId
    known_to: SegmentSeq
    sealed: bool = False


class SegmentFollower:
    def __init__(self, store: ObjectStore, take_in: Callable[[SegmentFooter], None]) -> None:
        self._store = store
        self._take_in = take_in
        self._sessions: dict[SessionId, _Followed] = {}
        self._newest = SessionId(0)
        self._holes: dict[SessionId, int] = {}
        """Numbers that nobody has claimed, and how many looks came to each."""
        self._begun = False
        self.damaged: dict[Place, Corrupt] = {}
        """Segments that are gone, or whose footer can't be read; they are looked at again at each look."""
        self.missed = False
        """Whether a segment was trimmed before it was read: then a newer manifest tells what it held."""

    async def look(self, *, late: bool = True) -> None:
        """Hands on what was committed since the last look; of sessions that were claimed late, only where `late` says so.

        Raises what the store raises; the next look goes on from there.
        """
        await self._look_again(tuple(self.damaged))
        looks = {look.session: look for look in await self._new_sessions(late=late)}
        for number in sorted(looks):
            self._keep(number)
        turns = asyncio.Semaphore(SESSIONS_AT_ONCE)

        async def follow(session: _Followed) -> None:
            async with turns:
                await self._settle(session, looks.get(session.session) or await self._look_on(session))

        await all_of(follow(session) for session in self._sessions.values() if not session.sealed)
        self._begun = True

    # ── what is listed ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _new_sessions(self, *, late: bool) -> list[SessionLook]:
        looks = await self._list(WAL, end_of_session(self._newest) if self._newest else "")
        for hole, count in tuple(self._holes.items()) if late else ():
            if count < HOLE_LOOKS or count % HOLE_LOOKS_LATER == 0:
                looks += await self._list(session_prefix(hole), "")
            self._holes[hole] = count + 1
        return looks

    async def _list(self, prefix: str, start_after: str) -> list[SessionLook]:
        looks: dict[SessionId, SessionLook] = {}
        while True:
            page = await self._store.list(prefix, start_after=start_after)
            for found in page.objects:
                parsed = parse_wal_key(found.key)
                if parsed is not None and parsed.session not in self._sessions:
                    looks.setdefault(parsed.session, SessionLook(parsed.session)).take_in(found)
            if not page.more:
                return list(looks.values())
            start_after = page.objects[-1].key

    async def _look_on(self, session: _Followed) -> SessionLook:
        look = SessionLook(session.session)
        start_after = segment_key(session.session, SegmentSeq(session.known_to - 1)) if session.known_to else ""
        while True:
            page = await self._store.list(session_prefix(session.session), start_after=start_after)
            for found in page.objects:
                look.take_in(found)
            if not page.more:
                return look
            start_after = page.objects[-1].key

    # ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _settle(self, session: _Followed, look: SessionLook) -> None:
        """What a listing from `known_to` on means: a gap with something behind it may be a PUT on its way, or damage."""
        listing = look.committed(SegmentSeq(0), "", since=session.known_to)
        if not listing.sealed and any(seq > listing.end_seq for seq in look.places):
            listing = await list_session(self._store, session.session)
        while not await self._read(session, listing):
            listing = await list_session(self._store, session.session)
        session.sealed = listing.sealed

    def _keep(self, number: SessionId) -> None:
        self._sessions[number] = _Followed(number, SegmentSeq(0))
        self._holes.pop(number, None)
        if number > self._newest:
            self._holes |= {SessionId(hole): 0 for hole in range(self._newest + 1, number)[-HOLES_BEHIND:]}
            self._newest = number
            self._holes = {hole: count for hole, count in self._holes.items() if hole >= number - HOLES_BEHIND}

    async def _read(self, session: _Followed, listing: SessionListing) -> bool:
        """False: something was trimmed since the listing."""
        if listing.trimmed_to > session.known_to:
            self.missed = self.missed or self._begun
            session.known_to = listing.trimmed_to
        while session.known_to < listing.end_seq:
            part = listing.since(session.known_to).up_to(SegmentSeq(session.known_to + SEGMENTS_AT_ONCE))
            try:
                footers = await read_footers(self._store, part, reads_max=READS_MAX)
            except NotFound:
                return False
            self._hand_on(session.session, session.known_to, footers)
            session.known_to = part.end_seq
        return True

    def _hand_on(self, session: SessionId, first: SegmentSeq, footers: Iterable[SegmentFooter | Corrupt]) -> None:
        for at, footer in enumerate(footers):
            place = (session, SegmentSeq(first + at))
            if isinstance(footer, Corrupt):
                self.damaged[place] = footer
            else:
                self.damaged.pop(place, None)
                self._take_in(footer)

    async def _look_again(self, places: Iterable[Place]) -> None:
        """At damage: it may have been restored, or compacted from a copy and trimmed."""
        for session, seq in places:
            markers = [parse_wal_key(found.key) async for found in objects_under(self._store, trimmed_prefix(session))]
            if any(marker is not None and (marker.trimmed_to or 0) > seq for marker in markers):
                del self.damaged[session, seq]
                self.missed = True
                continue
            start_after = segment_key(session, SegmentSeq(seq - 1)) if seq else ""
            page = await self._store.list(session_prefix(session), start_after=start_after, limit=1)
            there = [found for found in page.objects if found.key == segment_key(session, seq)]
            if there:
                try:
                    footers = await read_footers(self._store, SessionListing(session, seq, tuple(there), False), reads_max=1)
                except NotFound:
                    continue
                self._hand_on(session, seq, footers)
