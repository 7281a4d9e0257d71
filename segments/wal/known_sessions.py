"""Tracks what a scan of the WAL knows of each session, and what it has to list and read next. Pure: the caller brings the time.

    wal/ behind the newest session     at each poll: sessions that are new; the unclaimed numbers between them are holes
    a hole                             at each poll for HOLES_POLLED_MS, then once in HOLES_LATER_MS: its broker may be slow
    a session without a seal           at each poll: from `known_to` on
    a session with a seal              never again once it is read

    session 7                known_to      end of what was listed
                                ▼             ▼
              [ handed on       )[ listed     )[ is_cut: not listed yet, since there was no room for it

A gap with something behind it may be a PUT on its way. It is asked about where the listing is the first of the session, and where
the poll before has shown the same gap.

Invariant: footers of a session are handed on in order, each once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import end_of_session, parse_wal_key
from segments.object_store.interface import ObjectInfo
from segments.wal.segment_file import SegmentFooter
from segments.wal.session_listing import ListedSession, SessionListing

# Segments of a session whose footers are read in one go.
SEGMENTS_AT_ONCE: Final = 1024
# Segments of a session that are listed and not read yet, 270 bytes each. The rest is listed when these are read.
SEGMENTS_LISTED_MAX: Final = 4 * SEGMENTS_AT_ONCE
# Numbers below a new session that may belong to brokers which were slow to claim theirs.
HOLES_BEHIND: Final = 64
HOLES_MAX: Final = 256
# Each poll lists an unclaimed number for this time.
HOLES_POLLED_MS: Final = 600_000
# Pause between two listings of such a number afterwards: a broker that stood still may claim its own an hour later.
HOLES_LATER_MS: Final = 3_600_000

_FIRST: Final = SegmentSeq(0)


@dataclass(slots=True)
class _Hole:
    """Holds a number that no broker has claimed."""

    since_ms: int
    listed_ms: int

    def is_due(self, now_ms: int) -> bool:
        return now_ms - self.since_ms <= HOLES_POLLED_MS or now_ms - self.listed_ms >= HOLES_LATER_MS


@dataclass(slots=True, eq=False)
class KnownSession:
    """Tracks how far one session was listed and read."""

    session: SessionId
    # All segments before it were delivered, or were trimmed.
    known_to: SegmentSeq = _FIRST
    # Whether nothing comes behind what was listed.
    sealed: bool = False
    # Segments that were listed and are not read yet.
    listed: SessionListing | None = None
    # Whether more may be there that the first listing did not show.
    is_cut: bool = True
    # Whether it is to be listed before anything is read.
    is_due: bool = False
    # Whether it is being listed or read.
    is_busy: bool = False
    # Where the last listing showed a gap before further objects.
    gap_at: SegmentSeq | None = None
    # When the last segment that was read had been written.
    written_ms: int = -1
    # How often in a row a listed segment was gone.
    gone_count: int = 0

    @property
    def is_read(self) -> bool:
        return self.listed is None and not self.is_cut

    def next_listing(self) -> ListedSession:
        return ListedSession(self.session, since=self.known_to, objects_max=SEGMENTS_LISTED_MAX)

    def has_doubtful_gap(self, listed: ListedSession, listing: SessionListing) -> bool:
        """Returns whether the gap that the listed objects show behind the listing is to be asked about."""
        return has_gap(listed, listing) and (self.is_cut or self.gap_at == listing.end_seq)

    def take_listing(self, listed: ListedSession, listing: SessionListing) -> None:
        """Takes in what the listing means: its committed segments from `known_to` on."""
        listing = listing.since(self.known_to)
        self.gap_at = listing.end_seq if has_gap(listed, listing) else None
        self.is_cut, self.sealed, self.is_due = listing.is_cut, listing.sealed, False
        self.listed = listing if listing.segments else None

    def next_part(self) -> SessionListing:
        """Returns the listed segments that are to be read next."""
        assert self.listed is not None
        assert self.listed.trimmed_to <= self.known_to, "footers are handed on one after the other"
        return self.listed.since(self.known_to).up_to(SegmentSeq(self.known_to + SEGMENTS_AT_ONCE))

    def handed_on(self, footer: SegmentFooter | Corrupt) -> None:
        """Takes note that the footer of the segment at `known_to` was handed on."""
        if isinstance(footer, SegmentFooter):
            self.written_ms = footer.written_at_ms
        self._go_on_from(SegmentSeq(self.known_to + 1))

    def trimmed(self, to: SegmentSeq) -> None:
        """Takes note of a trim marker."""
        if to > self.known_to:
            self._go_on_from(to)

    def was_gone(self) -> None:
        """Takes note that a listed segment is gone: the session is listed again."""
        self.listed, self.is_cut = None, True
        self.gone_count += 1

    def _go_on_from(self, seq: SegmentSeq) -> None:
        self.known_to, self.gone_count = seq, 0
        if self.listed is not None and self.listed.end_seq <= self.known_to:
            self.listed = None


def sort_in(sessions: dict[SessionId, ListedSession], found: ObjectInfo, *, objects_max: int | None = None) -> ListedSession | None:
    """Takes the next object of a listing of `wal/` into the listing of its session. Returns None where Tidelog did not write it."""
    parsed = parse_wal_key(found.key)
    if parsed is None:
        return None
    if (listed := sessions.get(parsed.session)) is None:
        listed = sessions[parsed.session] = ListedSession(parsed.session, objects_max=objects_max)
    listed.take_in(found)
    return listed


class KnownSessions:
    """Tracks the sessions that are not read to their seal, and the unclaimed numbers."""

    def __init__(self) -> None:
        self.open: dict[SessionId, KnownSession] = {}
        self._newest: SessionId | None = None
        self._holes: dict[SessionId, _Hole] = {}

    @property
    def start_after(self) -> str:
        """Returns the key after which new sessions are listed."""
        return end_of_session(self._newest) if self._newest else ""

    def begin_poll(self, now_ms: int) -> list[SessionId]:
        """Marks the sessions that are to be listed again. Returns the holes that are."""
        for session in self.open.values():
            session.is_due = session.is_read
        return [number for number, hole in self._holes.items() if hole.is_due(now_ms)]

    def hole_listed(self, number: SessionId, now_ms: int) -> None:
        if (hole := self._holes.get(number)) is not None:
            hole.listed_ms = now_ms

    def found(self, sessions: Collection[SessionId], now_ms: int) -> Iterator[KnownSession]:
        """Takes in sessions that were not known, in ascending order, all of them before the first is returned."""
        numbers = sorted(sessions)
        if self._newest is None:
            self._newest = SessionId(max(0, numbers[-1] - HOLES_BEHIND - 1)) if numbers else SessionId(0)
        for number in numbers:
            self._holes.pop(number, None)
            self.open[number] = KnownSession(number)
            for hole in range(max(self._newest + 1, number - HOLES_BEHIND), number):
                self._holes[SessionId(hole)] = _Hole(now_ms, now_ms)
            self._newest = max(self._newest, number)
        while len(self._holes) > HOLES_MAX:
            del self._holes[next(iter(self._holes))]
        return (self.open[number] for number in numbers)

    def next_session(self, *, may_read: bool) -> KnownSession | None:
        """Returns the session to go on with: those that are to be listed first, then that whose segments were written first."""
        idle = (session for session in self.open.values() if not session.is_busy)
        waiting = [session for session in idle if session.is_due or (may_read and not session.is_read)]
        return min(waiting, key=lambda one: (not one.is_due, one.written_ms, one.session), default=None)

    def drop_if_over(self, session: KnownSession) -> None:
        if session.sealed and session.is_read:
            self.open.pop(session.session, None)


def has_gap(listed: ListedSession, listing: SessionListing) -> bool:
    """Returns whether the listed objects show something behind the end of what is committed, where no seal stands."""
    return not listing.sealed and any(seq > listing.end_seq for seq in listed.objects)
