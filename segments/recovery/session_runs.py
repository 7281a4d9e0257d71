"""Assembles partitions from footers, by the stretches of leadership that the metadata record. Pure.

    spans of a partition   epoch 3: session 7, up to 120 │ epoch 4: session 9, to its end
    found                  runs of session 7 below 120   │ runs of session 9             ─▶ RecoveredPartition, or Corrupt

A footer that can't be read is no harm to a partition whose later runs continue without a gap: it had nothing there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import segment_key
from segments.recovery.footer_cache import Damaged, SessionRuns
from segments.recovery.missing_manifests import NewestFiles
from segments.recovery.recovered_partition import RecoveredPartition
from segments.wal.segment_file import Run, SegmentFooter

_FIRST = SegmentSeq(0)


class LeadershipSpan(Protocol):
    """Is one stretch of leadership in the metadata: in this epoch, this session, up to where it was released."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def session(self) -> SessionId: ...
    @property
    def released_at_seq(self) -> SegmentSeq | None: ...


@dataclass(slots=True)
class PrefetchedPartition:
    """Holds what was read of a partition before its leader released it."""

    recovered: RecoveredPartition
    # The last one is of the leader that was still at work.
    spans: tuple[LeadershipSpan, ...]
    # All segments of the last session below this one were read.
    read_to: SegmentSeq
    # The spans that were found to hold something of it.
    holding: set[tuple[SessionId, LeaderEpoch]]
    # The newest segment of the last session that does; -1 for none.
    last_seq: SegmentSeq
    # The newest Parquet files, listed before the manifest was read; None where there are none.
    files: NewestFiles | None = None

    def continues_in(self, spans: Sequence[LeadershipSpan]) -> bool:
        """Returns whether these spans hold what was read, and at most add to the last one beyond `read_to`."""
        released = {session_and_epoch(span): span.released_at_seq for span in self.spans}
        last = session_and_epoch(self.spans[-1])
        for span in spans:
            if session_and_epoch(span) == last:
                if not _is_in(self.last_seq, span):
                    return False
            elif released.get(session_and_epoch(span), -1) != span.released_at_seq:
                return False
        return self.holding <= {session_and_epoch(span) for span in spans}


def session_and_epoch(span: LeadershipSpan) -> tuple[SessionId, LeaderEpoch]:
    return span.session, span.leader_epoch


class RecoveredRuns:
    """Holds the runs of footers, by session and partition, up to the ends that were known when they were taken in."""

    def __init__(self) -> None:
        self.count = 0
        self._sessions: dict[SessionId, tuple[SessionRuns, SegmentSeq]] = {}

    def take_in(self, runs: SessionRuns) -> None:
        self._sessions[runs.session] = runs, runs.end_seq
        self.count += runs.count

    def end_seq(self, session: SessionId) -> SegmentSeq:
        return self._sessions[session][1]

    def of(
        self, partition: TopicPartition, span: LeadershipSpan, *, first_seq: SegmentSeq = _FIRST
    ) -> list[tuple[SegmentFooter, Run]]:
        """Returns the runs in order, without what others have read of the session since they were taken in."""
        runs, end_seq = self._of(span)
        return [found for found in runs.of(partition, span.leader_epoch) if first_seq <= found[0].seq < end_seq]

    def damaged(self, span: LeadershipSpan, *, first_seq: SegmentSeq = _FIRST) -> deque[Damaged]:
        runs, end_seq = self._of(span)
        return deque(found for found in runs.damaged if first_seq <= found.seq < end_seq)

    def missing(self, span: LeadershipSpan) -> Corrupt | None:
        """Returns the damage where what the session wrote of a partition can't be known.

        That is so where the whole session is gone, unless it released the partition before its first segment; or where it is sealed
        below the place at which it released the partition: all before that had been committed.
        """
        runs, _ = self._sessions[span.session]
        if runs.missing is not None and span.released_at_seq != 0:
            return runs.missing
        if span.released_at_seq is None or not runs.sealed or runs.end_seq >= span.released_at_seq:
            return None
        key = segment_key(span.session, runs.end_seq)
        return Corrupt(f"{key} is missing: a seal stands there, and the leader had committed up to {span.released_at_seq}", key=key)

    def is_damaged(self, session: SessionId) -> bool:
        return bool(self._sessions[session][0].damaged)

    def _of(self, span: LeadershipSpan) -> tuple[SessionRuns, int]:
        runs, end_seq = self._sessions[span.session]
        released = span.released_at_seq
        return runs, end_seq if released is None else min(end_seq, released)

    def rebuilt(
        self, recovered: RecoveredPartition, spans: Sequence[LeadershipSpan], begun: PrefetchedPartition | None = None
    ) -> RecoveredPartition | Corrupt:
        """`recovered`: what is known of the partition without these spans; it is used up. `begun`: what is known of the spans."""
        try:
            return _rebuild(recovered, spans, self, begun)
        except Corrupt as error:
            return error


def _rebuild(
    recovered: RecoveredPartition, spans: Sequence[LeadershipSpan], found_runs: RecoveredRuns, begun: PrefetchedPartition | None
) -> RecoveredPartition:
    suspect: Corrupt | None = None
    for span in spans:
        first = SegmentSeq(0)
        if begun is not None:
            if session_and_epoch(span) != session_and_epoch(begun.spans[-1]):
                continue
            first = begun.read_to
        unread = found_runs.damaged(span, first_seq=first)
        for footer, run in found_runs.of(recovered.partition, span, first_seq=first):
            while unread and unread[0].seq < footer.seq:
                suspect = unread.popleft().error
            if recovered.is_compacted(run):
                continue
            if suspect is not None and not recovered.is_next(run):
                raise suspect
            suspect = None
            recovered.take_in(footer, run)
        if unread:
            suspect = unread[-1].error
        suspect = found_runs.missing(span) or suspect
    if suspect is not None:
        raise suspect
    recovered.close_up()
    return recovered


def _is_in(seq: SegmentSeq, span: LeadershipSpan) -> bool:
    return span.released_at_seq is None or seq < span.released_at_seq
