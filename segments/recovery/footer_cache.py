"""Caches the footers of sessions, so that each is read once for any number of batches of takeovers.

    requested        to its end            up to 90           up to 120          to its end, sealed     again
    read             [0, 80)               [80, 90)           [90, 120)          [120, 134)             nothing, no listing either

It decides and reads nothing: recover.py and takeover_prefetch.py do, one at a time for each session. Sessions that were not
requested in KEPT_S are dropped, and the least recently requested ones where all take too much memory.

Invariants: what is kept was committed, and the committed prefix of a session never changes; damage is never kept, so the next
reader looks again, and finds what was restored. Segments that a listing shows as trimmed are dropped: they are compacted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import claim_key, segment_key, session_prefix
from segments.wal.footer_index import IndexBlock
from segments.wal.segment_file import Run, SegmentFooter
from segments.wal.session_listing import SessionListing

_FIRST: Final = SegmentSeq(0)
# Longer than the pauses of a rolling restart.
KEPT_S: Final = 120.0
# Memory of a run of one batch (637, measured with tracemalloc).
RUN_BYTES: Final = 640
UNINDEXED_BYTES_MAX: Final = 16 << 20


class Damaged(NamedTuple):
    """Names a segment whose footer can't be read, with its error."""

    seq: SegmentSeq
    error: Corrupt


class SessionRuns:
    """Indexes the footers of a session's segments [first_seq, end_seq), by partition and leader epoch."""

    def __init__(self, session: SessionId, first_seq: SegmentSeq) -> None:
        self.session = session
        self.first_seq = self.end_seq = self.trimmed_to = first_seq
        # Whether nothing can come at or after `end_seq`.
        self.sealed = False
        self.count = 0
        # Memory of all batches but the first of each run.
        self._batch_bytes = 0
        self.damaged: list[Damaged] = []
        # Set where all objects of the session are gone, its claim included: what it wrote is unknown.
        self.missing: Corrupt | None = None
        self._runs: dict[TopicPartition, dict[LeaderEpoch, list[tuple[SegmentFooter, Run]]]] = {}

    @property
    def size_bytes(self) -> int:
        return self.count * RUN_BYTES + self._batch_bytes

    @property
    def is_known(self) -> bool:
        """Returns whether anything of the session was read."""
        return self.sealed or self.end_seq > self.first_seq

    def take_in(self, listing: SessionListing, footers: Sequence[SegmentFooter | Corrupt]) -> None:
        """Adds the footers behind those that are held, up to the end of the listing."""
        for seq, footer in enumerate(footers, start=listing.trimmed_to):
            if isinstance(footer, Corrupt):
                self.damaged.append(Damaged(SegmentSeq(seq), footer))
                continue
            self._add(footer)
        self.end_seq = max(self.end_seq, listing.end_seq)
        self.sealed = listing.sealed
        self.missing = _missing(listing) if listing.is_missing else None

    def trimmed(self, seq: SegmentSeq) -> SessionRuns:
        """Returns a copy without segments below `seq`; other readers may still use the original."""
        if seq <= self.trimmed_to:
            return self
        left = SessionRuns(self.session, self.first_seq)
        left.trimmed_to = seq
        if seq <= self.end_seq:
            left.end_seq, left.sealed = self.end_seq, self.sealed
            left.damaged = [damaged for damaged in self.damaged if damaged.seq >= seq]
            footers = {f.seq: f for epochs in self._runs.values() for found in epochs.values() for f, _ in found if f.seq >= seq}
            for _, footer in sorted(footers.items()):
                left._add(footer)
        return left

    def _add(self, footer: SegmentFooter) -> None:
        for run in footer.runs:
            self._runs.setdefault(run.partition, {}).setdefault(run.leader_epoch, []).append((footer, run))
        self.count += len(footer.runs)
        self._batch_bytes += (len(footer.batch_table) - len(footer.runs)) * footer.batch_table.itemsize

    def newest_epochs(self) -> dict[TopicPartition, LeaderEpoch]:
        """Returns each partition that the session has written to, with the last leader epoch in which it did."""
        return {partition: max(epochs) for partition, epochs in self._runs.items()}

    def of(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> Sequence[tuple[SegmentFooter, Run]]:
        return self._runs.get(partition, {}).get(leader_epoch, ())


def _missing(listing: SessionListing) -> Corrupt:
    key, first = claim_key(listing.session), segment_key(listing.session, _FIRST)
    return Corrupt(
        f"{key} is gone, and so are all segments of session {listing.session}: what it wrote is not known",
        hint=f"Restore {session_prefix(listing.session)} from a version or a backup of the bucket, then restart the broker. A seal "
        f"that was created at {first} since is to be written over.",
        key=key,
    )


class KeptSession:
    """Holds one session. The holder of its turn may read on, and replace `runs`."""

    def __init__(self, runs: SessionRuns) -> None:
        self.runs = runs
        self.turn = asyncio.Lock()
        self.askers = 0
        self.asked_s = 0.0


class FooterCache:
    """Holds the footers of recently requested sessions."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The least recently requested session is first.
        self._kept: dict[SessionId, KeptSession] = {}
        self._forgetting: asyncio.TimerHandle | None = None
        # Ends of sealed sessions that were read one by one, whose indexes are to be written.
        self.unindexed: deque[tuple[SessionId, IndexBlock]] = deque()

    @property
    def size_bytes(self) -> int:
        return sum(kept.runs.size_bytes for kept in self._kept.values())

    def known(self) -> list[SessionRuns]:
        """Returns what is known of each session now."""
        return [kept.runs for kept in self._kept.values()]

    def keep_unindexed(self, session: SessionId, tail: IndexBlock) -> None:
        """Queues an index to be written. It only saves reads: the oldest are dropped where none are written."""
        self.unindexed.append((session, tail))
        while sum(block.size_bytes for _, block in self.unindexed) > UNINDEXED_BYTES_MAX:
            self.unindexed.popleft()

    @asynccontextmanager
    async def session(self, session: SessionId, *, first_seq: SegmentSeq = _FIRST) -> AsyncIterator[KeptSession]:
        """Yields what is known of the session from `first_seq` on, maybe nothing; one caller at a time."""
        kept = self._kept.get(session)
        if kept is None:
            kept = self._kept[session] = KeptSession(SessionRuns(session, first_seq))
        kept.askers += 1
        try:
            async with kept.turn:
                if first_seq < kept.runs.first_seq:
                    kept.runs = SessionRuns(session, first_seq)
                yield kept
                if kept.runs.damaged or kept.runs.missing is not None:
                    kept.runs = SessionRuns(session, first_seq)
        finally:
            kept.askers -= 1
            self._settle(session, kept)

    def _settle(self, session: SessionId, kept: KeptSession) -> None:
        """Puts it behind all others, and forgets what there is no room for."""
        kept.asked_s = asyncio.get_running_loop().time()
        del self._kept[session]
        if kept.askers or (kept.runs.is_known and kept.runs.size_bytes <= self._bytes_max):
            self._kept[session] = kept
        excess_bytes = self.size_bytes - self._bytes_max
        for candidate, held in list(self._kept.items()):
            if held.askers == 0 and excess_bytes > 0:
                excess_bytes -= held.runs.size_bytes
                del self._kept[candidate]
        if self._kept and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._forget_the_old)

    def _forget_the_old(self) -> None:
        loop = asyncio.get_running_loop()
        for session, kept in list(self._kept.items()):
            if kept.askers == 0 and kept.asked_s + KEPT_S <= loop.time():
                del self._kept[session]
        self._forgetting = loop.call_later(KEPT_S, self._forget_the_old) if self._kept else None
