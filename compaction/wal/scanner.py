"""Follows the segments on the bucket, from the bucket alone: who writes them is not asked.

    start     LIST wal/, once ─▶ footers of all that is not trimmed, through indexes where there are any
    later     LIST of a number below the newest session's that nobody has claimed: its broker may be slow
    each look LIST for sessions that are new · LIST of each that is not sealed, from where it is known · their footers
    sealed    nothing, but for the markers of another compactor, while something waits there

So a look at an idle cluster costs a request for each broker and one more, whatever the number of partitions. Where there is much to
read, the session whose segments were written first is read on, and nothing more where `runs_max` runs wait: the rest stays on the
bucket until these are compacted. Nor is it kept in mind what lies there: a session is listed some thousand segments ahead.

A gap with something behind it may be a PUT on its way. One that is still there at the next look is asked about (`list_session`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from compaction.wal.state import SessionState, WalState
from metadata.errors import NotFound
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import WAL, end_of_session, index_prefix, parse_wal_key, session_prefix, trimmed_prefix
from segments.object_store.interface import ObjectInfo, ObjectStore, objects_under
from segments.wal.footer_index import IndexRange
from segments.wal.segment_file import SEAL_BYTES
from segments.wal.session import list_session, looked_at
from segments.wal.session_listing import SessionLook
from segments.wal.session_reader import read_footers

SEGMENTS_AT_ONCE: Final = 1024
"""Whose footers are read in one go."""
SEGMENTS_LISTED_MAX: Final = 4 * SEGMENTS_AT_ONCE
"""Of one session, that are listed and not read yet: 270 bytes each. Where more wait, it is listed on when these are read."""
RUNS_IN_A_ROW: Final = 2_000
"""Taken in before others get their turn on the loop."""
HOLES_BEHIND: Final = 64
"""Numbers below a new session that may belong to brokers which were slow to claim theirs."""
HOLES_MAX: Final = 256
HOLES_LOOKED_MS: Final = 600_000
"""For so long a number that nobody has claimed is looked for at each look,"""
HOLES_LATER_MS: Final = 3_600_000
"""and from then on so seldom: a broker that stood still may claim its own an hour later."""
MARKERS_LOOKED_MS: Final = 60_000

_FIRST: Final = SegmentSeq(0)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Hole:
    """A number that nobody has claimed."""

    since_ms: int
    looked_ms: int

    def is_due(self, now_ms: int) -> bool:
        return now_ms - self.since_ms <= HOLES_LOOKED_MS or now_ms - self.looked_ms >= HOLES_LATER_MS


@dataclass(slots=True)
class _Listed:
    look: SessionLook
    markers: set[SegmentSeq] = field(default_factory=set)
    oldest_seq: SegmentSeq | None = None

    def take_in(self, found: ObjectInfo) -> None:
        parsed = self.look.take_in(found)
        if parsed is None:
            return
        if parsed.trimmed_to is not None:
            self.markers.add(parsed.trimmed_to)
        elif parsed.seq is not None and self.oldest_seq is None and found.size != SEAL_BYTES:
            self.oldest_seq = parsed.seq


def _listed_of(session: SessionId, *, since: SegmentSeq = _FIRST) -> _Listed:
    return _Listed(SessionLook(session, since=since, places_max=SEGMENTS_LISTED_MAX))


class WalView:
    def __init__(self, store: ObjectStore, *, runs_max: int, reads_max: int) -> None:
        self._store = store
        self._runs_max = runs_max
        self._reads_max = reads_max
        self.state = WalState()
        self._begun = False
        self._last_session = SessionId(0)
        self._holes: dict[SessionId, _Hole] = {}
        self._markers_looked_ms = 0

    async def look(self, *, now_ms: int) -> None:
        """Raises what the store raises; what was found until then is kept."""
        if not self._begun:
            await self._list(WAL, now_ms=now_ms)
            self._note_holes(max(1, self._last_session - HOLES_BEHIND), self._last_session, now_ms)
            self._begun = True
            self._markers_looked_ms = now_ms
        else:
            await self._list(WAL, start_after=end_of_session(self._last_session), now_ms=now_ms)
            await self._list_late(now_ms)
            for state in list(self.state.sessions.values()):
                if not state.sealed and state.is_read:
                    await self._list_on(state)
            await self._look_at_markers(now_ms)
        await self._read_on()
        for state in [state for state in self.state.sessions.values() if state.is_over]:
            del self.state.sessions[state.session]

    def begin_anew(self) -> None:
        """The next look lists and reads everything, as the first one did: what was damaged may have been restored."""
        self.state.clear()
        self._begun = False
        self._last_session = SessionId(0)
        self._holes.clear()

    # ── what is listed ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list(self, prefix: str, *, start_after: str = "", now_ms: int) -> None:
        """Takes in sessions that were not known, whole."""
        listed: dict[SessionId, _Listed] = {}
        last: _Listed | None = None
        page_after = start_after
        while True:
            page = await self._store.list(prefix, start_after=page_after)
            for found in page.objects:
                parsed = parse_wal_key(found.key)
                if parsed is not None:
                    last = listed.setdefault(parsed.session, _listed_of(parsed.session))
                    last.take_in(found)
            if not page.more:
                break
            page_after = max(page.objects[-1].key, last.look.skip_to if last is not None else "")
        for session, one in listed.items():
            if session not in self.state.sessions:
                await self._found(session, one, now_ms)

    async def _found(self, session: SessionId, listed: _Listed, now_ms: int) -> None:
        first = listed.look.trimmed_to
        state = SessionState(session, first)
        state.oldest_seq = min(first, listed.oldest_seq if listed.oldest_seq is not None else first)
        await self._settle(state, listed, ask_about_gaps=True)
        self.state.sessions[session] = state
        self._holes.pop(session, None)
        if self._begun:
            self._note_holes(max(self._last_session + 1, session - HOLES_BEHIND), session, now_ms)
        self._last_session = max(self._last_session, session)

    def _note_holes(self, first: int, end: int, now_ms: int) -> None:
        for number in map(SessionId, range(first, end)):
            if number not in self.state.sessions:
                self._holes[number] = _Hole(now_ms, now_ms)
        while len(self._holes) > HOLES_MAX:
            del self._holes[next(iter(self._holes))]

    async def _list_late(self, now_ms: int) -> None:
        """Brokers take their numbers in order, but a slow one may claim its own after the next one did."""
        for session, hole in list(self._holes.items()):
            if hole.is_due(now_ms):
                await self._list(session_prefix(session), now_ms=now_ms)
                hole.looked_ms = now_ms

    async def _list_on(self, state: SessionState) -> None:
        listed = _listed_of(state.session, since=state.known_to)
        await looked_at(self._store, listed.look, take_in=listed.take_in)
        await self._settle(state, listed, ask_about_gaps=state.is_cut)  # what follows is of the first look, too

    async def _settle(self, state: SessionState, listed: _Listed, *, ask_about_gaps: bool) -> None:
        """What a listing from `known_to` on means for the session."""
        look = listed.look
        state.markers |= {marker: None for marker in listed.markers if marker not in state.markers}
        state.indexes |= set(look.indexes)
        self.state.trimmed(state, look.trimmed_to)
        listing = look.committed(SegmentSeq(0), "", since=state.known_to)
        behind = any(seq > listing.end_seq for seq in look.places)
        if behind and not listing.sealed and (ask_about_gaps or state.gap_at == listing.end_seq):
            whole = await list_session(self._store, state.session, since=state.known_to, places_max=SEGMENTS_LISTED_MAX)
            if whole.trimmed_to > state.known_to:  # else it is only from where on it was listed
                self.state.trimmed(state, whole.trimmed_to)
            listing = whole.since(state.known_to)
        if listing.sealed and look.cut_at is not None:  # late ones behind the seal filled it up: no other part shows the indexes
            state.indexes |= await self._indexes(state.session)
        state.is_cut = listing.is_cut
        state.gap_at = listing.end_seq if behind and not listing.sealed else None
        state.listed = listing if listing.segments else None
        state.sealed = listing.sealed

    async def _indexes(self, session: SessionId) -> set[IndexRange]:
        listed = [parse_wal_key(found.key) async for found in objects_under(self._store, index_prefix(session))]
        return {IndexRange(*parsed.indexed) for parsed in listed if parsed is not None and parsed.indexed is not None}

    async def _look_at_markers(self, now_ms: int) -> None:
        """Of sealed sessions in which something waits: it may be another compactor's, and done by now."""
        if now_ms - self._markers_looked_ms < MARKERS_LOOKED_MS:
            return
        self._markers_looked_ms = now_ms
        for state in list(self.state.sessions.values()):
            if state.sealed and state.is_read and state.done_to < state.known_to:
                await self.look_at_marker(state)

    async def look_at_marker(self, state: SessionState) -> None:
        async for found in objects_under(self._store, trimmed_prefix(state.session)):
            parsed = parse_wal_key(found.key)
            if parsed is not None and parsed.trimmed_to is not None:
                state.markers.setdefault(parsed.trimmed_to, None)
                self.state.trimmed(state, parsed.trimmed_to)

    # ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_on(self) -> None:
        while self.state.run_count < self._runs_max:
            unread = [state for state in self.state.sessions.values() if not state.is_read]
            if not unread:
                return
            state = min(unread, key=lambda state: (state.written_ms[-1] if state.written_ms else -1, state.session))
            try:
                await (self._list_on(state) if state.listed is None else self._read(state))
            except NotFound:  # trimmed since the listing, by another compactor
                state.listed = None
                await self.look_at_marker(state)
                await self._list_on(state)

    async def _read(self, state: SessionState) -> None:
        assert state.listed is not None
        part = state.listed.up_to(SegmentSeq(state.known_to + SEGMENTS_AT_ONCE))
        assert part.trimmed_to == state.known_to, "footers are taken in one after the other"
        footers = await read_footers(self._store, part, reads_max=self._reads_max)
        taken = 0
        for info, footer in zip(part.segments, footers, strict=True):
            taken += self.state.take_in(state, info, footer)
            if taken >= RUNS_IN_A_ROW:
                taken = 0
                await asyncio.sleep(0)
        rest = state.listed.since(state.known_to)
        state.listed = rest if rest.segments else None
