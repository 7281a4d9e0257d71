"""Knows the segments on the bucket: which runs of which partitions wait in them, and how far each session is done. Pure.

    session 7    first_seq                     known_to
                     ▼                            ▼
                 … [ 0 ][ 0 ][ 3 ][ 0 ][ 1 ][ 2 ]             runs of each segment that wait for compaction
                             ▲ done_to: no segment below is needed any more

An unreadable footer keeps its segment forever, and the partitions that had runs in it wait at the gap. So does a session that a
restore has not seen: its segments are neither compacted nor trimmed.

Invariant: a segment counts as done only when all its runs lie below `compacted_to` of the newest manifest of their partition, as it
was read from the bucket; when their topic is marked as deleted on the bucket; or when a trimmed marker stands behind it. Runs below
a log start that lies above `compacted_to` wait, too: their records are gone, but they hold the states of producers.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from compaction.wal.pending_runs import PendingRun, PendingRuns
from metadata.backup.restore_state import SkippedSessions
from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import segment_key, session_prefix
from segments.history.manifest import Manifest
from segments.object_store.interface import ObjectInfo
from segments.wal.footer_index import IndexRange
from segments.wal.known_sessions import KnownSession
from segments.wal.segment_file import SEAL_BYTES, SegmentFooter
from segments.wal.session_listing import ListedSession

_FIRST: Final = SegmentSeq(0)
_UNREADABLE: Final = -1

log = logging.getLogger(__name__)


class Floor(NamedTuple):
    """Holds offsets of the newest manifest that was read."""

    compacted_to: Offset
    log_start_offset: Offset


class SessionState:
    """Tracks one session: the columns are of its segments [first_seq, known_to)."""

    def __init__(self, listed: KnownSession, first_seq: SegmentSeq = _FIRST) -> None:
        self.session = listed.session
        # How far the session is listed and read.
        self.listed = listed
        self.first_seq = first_seq
        self.trimmed_to = first_seq
        # The first segment that is not deleted.
        self.oldest_seq = first_seq
        # Trimmed markers on the bucket, and when each was made; None before that is read.
        self.markers: dict[SegmentSeq, int | None] = {}
        self.indexes: set[IndexRange] = set()
        self.damaged: dict[SegmentSeq, Corrupt] = {}
        self.waiting = array("i")
        self.sizes = array("q")
        self.written_ms = array("q")

    @property
    def known_to(self) -> SegmentSeq:
        return SegmentSeq(self.first_seq + len(self.waiting))

    @property
    def is_ended(self) -> bool:
        """Returns whether the session is read to its seal."""
        return self.listed.sealed and self.listed.is_read

    @property
    def done_to(self) -> SegmentSeq:
        """Returns the first segment that is still needed, or `known_to`."""
        for at, waiting in enumerate(self.waiting):
            if waiting:
                return SegmentSeq(self.first_seq + at)
        return self.known_to

    @property
    def is_over(self) -> bool:
        """Returns whether no work is left: sealed, done and deleted, but for the names that stay."""
        return self.is_ended and self.oldest_seq >= self.known_to and len(self.markers) <= 1 and not self.indexes

    def at(self, seq: SegmentSeq) -> int:
        """Returns the segment's row in the columns."""
        return seq - self.first_seq

    def skip_to(self, seq: SegmentSeq) -> None:
        """Drops everything before `seq`, which is trimmed."""
        count = min(seq - self.first_seq, len(self.waiting))
        if count > 0:
            del self.waiting[:count], self.sizes[:count], self.written_ms[:count]
        self.first_seq = max(self.first_seq, seq)
        self.trimmed_to = max(self.trimmed_to, seq)
        self.damaged = {damaged: error for damaged, error in self.damaged.items() if damaged >= seq}


class WalState:
    """Tracks all sessions and the runs that wait in them."""

    def __init__(self) -> None:
        self.sessions: dict[SessionId, SessionState] = {}
        self.pending: dict[TopicPartition, PendingRuns] = {}
        self.floors: dict[TopicPartition, Floor] = {}
        self.deleted_topics: set[TopicId] = set()
        # Partitions whose runs contradict each other.
        self.damaged: dict[TopicPartition, Corrupt] = {}
        # Partitions that wait behind damage, and whose runs are dropped from memory. Their segments stay.
        self.put_aside: set[TopicPartition] = set()
        self.run_count = 0
        # Sessions that the metadata did not see when they were restored. Their segments stay, and are not compacted: the log has
        # other records at their offsets, or will have.
        self.skipped = SkippedSessions()

    def clear(self) -> None:
        """Drops all that can be found again on the bucket."""
        self.sessions.clear()
        self.pending.clear()
        self.floors.clear()
        self.damaged.clear()
        self.put_aside.clear()
        self.run_count = 0

    # ── what is found ───────────────────────────────────────────────────────────────────────────────────────────────────

    def listed(self, session: KnownSession, listed: ListedSession) -> None:
        """Takes in the trim markers and indexes that a listing shows."""
        state = self.sessions.get(session.session)
        if state is None:
            state = self.sessions[session.session] = SessionState(session, listed.trimmed_to)
            oldest = next((seq for seq, found in listed.objects.items() if found.size != SEAL_BYTES), listed.trimmed_to)
            state.oldest_seq = min(oldest, listed.trimmed_to)
        for marker in listed.markers:
            state.markers.setdefault(marker, None)
        state.indexes |= set(listed.indexes)

    def take_in(self, session: KnownSession, info: ObjectInfo | None, footer: SegmentFooter | Corrupt) -> None:
        """Takes in the footer of the segment at `known_to`; `info` None: it is missing."""
        state, seq = self.sessions[session.session], session.known_to
        assert seq == state.known_to, "footers are taken in one after the other"
        state.sizes.append(info.size if info is not None else 0)
        if state.session in self.skipped:
            self._keep_late(state, seq)
            return
        if isinstance(footer, Corrupt):
            log.error("segment damaged: %s; it stays, and partitions with records in it are not compacted", footer)
            state.damaged[seq] = footer
            state.waiting.append(_UNREADABLE)
            state.written_ms.append(state.written_ms[-1] if state.written_ms else 0)
            return
        state.waiting.append(0)
        state.written_ms.append(footer.written_at_ms)
        state.waiting[-1] = self._take_in_runs(footer)

    def _keep_late(self, state: SessionState, seq: SegmentSeq) -> None:
        """Keeps a segment that has arrived since the metadata were restored without it. Reports the first one of the session."""
        if not state.damaged:
            key = segment_key(state.session, seq)
            state.damaged[seq] = Corrupt(
                f"{key} has arrived since the metadata were restored: the bucket was a copy that was not complete, or a replica",
                hint=f"End the replication into this bucket. Move the objects below {session_prefix(state.session)} out of it: the "
                "restored log does not have their records.",
                key=key,
            )
            log.error("session not compacted session=%s: %s", state.session, state.damaged[seq])
        state.waiting.append(_UNREADABLE)
        state.written_ms.append(state.written_ms[-1] if state.written_ms else 0)

    def _take_in_runs(self, footer: SegmentFooter) -> int:
        waiting = 0
        for run in footer.runs:
            where = run.partition
            floor = self.floors.get(where)
            if where.topic_id in self.deleted_topics or (floor is not None and run.last_offset < floor.compacted_to):
                continue
            waiting += 1
            if where in self.put_aside:
                continue
            runs = self.pending.get(where)
            if runs is None:
                runs = self.pending[where] = PendingRuns()
            size = run.end - run.start
            try:
                runs.add(PendingRun(run.base_offset, run.last_offset, footer.session, footer.seq, run.start, size))
            except Corrupt as error:
                log.error("partition not compacted partition=%s: %s", where, error)
                self.damaged[where] = error  # the segment stays, for an operator to examine
                continue
            self.run_count += 1
        return waiting

    # ── what is done ────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, manifest: Manifest) -> None:
        """Takes in the newest manifest of a partition, as it was read from the bucket."""
        where = manifest.topic_partition
        held = self.floors.get(where, Floor(Offset(0), Offset(0)))
        floor = Floor(max(held.compacted_to, manifest.compacted_to), max(held.log_start_offset, manifest.log_start_offset))
        self.floors[where] = floor
        runs = self.pending.get(where)
        if runs is not None:
            self._done(where, runs, runs.drop_below(floor.compacted_to))

    def forget_topic(self, topic_id: TopicId) -> None:
        """Drops a topic that is marked as deleted on the bucket."""
        self.deleted_topics.add(topic_id)
        for where in [where for where in self.pending if where.topic_id == topic_id]:
            runs = self.pending[where]
            self._done(where, runs, runs.drop_below(runs.table().last_offsets[-1] + 1))
        for where in [where for where in self.floors if where.topic_id == topic_id]:
            del self.floors[where]

    def trimmed(self, session: KnownSession, to: SegmentSeq) -> None:
        """Takes in a marker on the bucket: its writer, maybe another compactor, found all before it done."""
        state = self.sessions[session.session]
        if to > state.first_seq:
            behind = [where for where, runs in self.pending.items() if self._reaches_below(runs, state.session, to)]
            for where in behind:
                runs = self.pending[where]
                self._done(where, runs, runs.drop_in(state.session, to))
                self.floors.pop(where, None)  # there is a newer manifest than the one that was read
            state.skip_to(to)
        state.trimmed_to = max(state.trimmed_to, to)

    @staticmethod
    def _reaches_below(runs: PendingRuns, session: SessionId, to: SegmentSeq) -> bool:
        table = runs.table()
        return bool(((table.sessions == session) & (table.seqs < to)).any())

    def drop_sessions_that_are_over(self) -> None:
        self.sessions = {session: state for session, state in self.sessions.items() if not state.is_over}

    def put_runs_aside(self, where: TopicPartition) -> int:
        """Drops the runs of a partition from memory; returns how many. They stay on the bucket."""
        runs = self.pending.pop(where)
        self.put_aside.add(where)
        self.run_count -= len(runs)
        return len(runs)

    def _done(self, where: TopicPartition, runs: PendingRuns, segments: Iterable[tuple[SessionId, SegmentSeq]]) -> None:
        for session, seq in segments:
            self.run_count -= 1
            state = self.sessions.get(session)
            if state is not None and state.first_seq <= seq < state.known_to:
                state.waiting[state.at(seq)] -= 1
        if not runs:
            del self.pending[where]

    # ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bytes_pending(self) -> int:
        return sum(runs.bytes_pending for runs in self.pending.values())

    @property
    def has_damage(self) -> bool:
        """Returns whether there is damage that an operator may repair."""
        return bool(self.put_aside or any(state.damaged for state in self.sessions.values()))

    def waits_at_gap(self, where: TopicPartition) -> bool:
        """Returns whether records are missing before the first known run, apart from deleted ones."""
        floor = self.floors.get(where)
        return floor is not None and self.pending[where].base_offset > max(floor)

    def without_floor(self) -> list[TopicPartition]:
        """Returns partitions whose manifest was not read since they were found, or since another compactor continued."""
        return [where for where in self.pending if where not in self.floors]

    def oldest_ms(self, runs: PendingRuns) -> int:
        """Returns when the segment with the first of the runs was written."""
        session, seq = runs.first_segment
        state = self.sessions[session]
        return state.written_ms[state.at(seq)]

    def unreadable(self) -> Iterator[Corrupt]:
        """Yields the errors of segments that are gone, or whose footer is damaged."""
        for state in self.sessions.values():
            yield from state.damaged.values()
