"""Indexes the runs of a partition in the segments on the bucket. Pure.

One row of eight integers for each run (64 bytes), in columns, so that a partition whose history has not been compacted yet
costs little. Those that were compacted are dropped. Invariant: runs are in offset order, without overlap or gap, and their leader
epochs never fall; a run that breaks it is refused when it is taken in, also behind runs that were dropped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.bucket.layout import segment_key
from segments.wal.segment_file import Run


class RunLocation(NamedTuple):
    """Locates one run of batches: the bytes [start, end) of the segment that holds it."""

    base_offset: Offset
    last_offset: Offset
    session: SessionId
    seq: SegmentSeq
    start: int
    end: int
    leader_epoch: LeaderEpoch
    max_timestamp: int

    @property
    def key(self) -> str:
        return segment_key(self.session, self.seq)

    @property
    def identity(self) -> tuple[SessionId, SegmentSeq, int]:
        """Identifies these bytes permanently: a segment is never written twice."""
        return self.session, self.seq, self.start

    @property
    def end_offset(self) -> Offset:
        return Offset(self.last_offset + 1)

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"offsets {self.base_offset} to {self.last_offset} lie at [{self.start}, {self.end}) of {self.key}"


class EpochEnd(NamedTuple):
    """Holds where the records of a leader epoch end (KIP-101): later offsets belong to later leaders, or to none yet."""

    # The requested epoch, or else the largest below it that has records.
    leader_epoch: LeaderEpoch
    end_offset: Offset

    def diverges(self, *, last_fetched_epoch: int, fetch_offset: int) -> bool:
        """Returns whether a reader at `fetch_offset` holds records that are not in this log (KIP-595).

        `last_fetched_epoch` is the epoch of the reader's last batch, and `self` is where that epoch ends here. NO_EPOCH_END
        diverges from every reader.
        """
        return self.leader_epoch < last_fetched_epoch or self.end_offset < fetch_offset


# There is no record of that epoch, nor of an earlier one.
NO_EPOCH_END: Final = EpochEnd(LeaderEpoch(-1), Offset(-1))


class RunIndex:
    """Holds the runs of one partition in columns, in offset order."""

    def __init__(self, *, start_offset: Offset | None = None, leader_epoch: int = -1) -> None:
        """`start_offset`: where the first run must begin; `leader_epoch`: of the records before it, if any."""
        self._columns = tuple(array("q") for _ in RunLocation._fields)
        self._base_offsets, self._last_offsets = self._columns[0], self._columns[1]
        self._leader_epochs = self._columns[RunLocation._fields.index("leader_epoch")]
        # Bytes of the runs in the index.
        self.size_bytes = 0
        self._next_offset = start_offset
        self._last_epoch = leader_epoch

    def __len__(self) -> int:
        return len(self._base_offsets)

    @property
    def end_offset(self) -> Offset | None:
        """Returns where the next run begins; None before the first."""
        return self._next_offset

    @property
    def sessions(self) -> set[SessionId]:
        """Returns the sessions that hold the runs."""
        return {SessionId(session) for session in set(self._columns[RunLocation._fields.index("session")])}

    @property
    def start_offset(self) -> Offset | None:
        return Offset(self._base_offsets[0]) if self._base_offsets else None

    def add(self, run: Run, *, session: SessionId, seq: SegmentSeq) -> None:
        """Takes in the next run. Corrupt when it does not continue where the last one ended, or is of an earlier leader."""
        expected = self.end_offset
        wrong = ""
        if expected is not None and run.base_offset != expected:
            wrong = f"goes on at offset {run.base_offset}, but {expected} comes next"
        elif run.leader_epoch < self._last_epoch:
            wrong = f"goes on in leader epoch {run.leader_epoch}, behind records of epoch {self._last_epoch}"
        if wrong:
            key = segment_key(session, seq)
            raise Corrupt(f"{key}: {run.partition} {wrong}", key=key, start=run.start, end=run.end)
        base_offsets, last_offsets, sessions, seqs, starts, ends, leader_epochs, max_timestamps = self._columns
        base_offsets.append(run.base_offset)
        last_offsets.append(run.last_offset)
        sessions.append(session)
        seqs.append(seq)
        starts.append(run.start)
        ends.append(run.end)
        self.size_bytes += run.end - run.start
        leader_epochs.append(run.leader_epoch)
        max_timestamps.append(run.max_timestamp)
        self._next_offset = Offset(run.last_offset + 1)
        self._last_epoch = run.leader_epoch

    def drop_below(self, offset: int) -> None:
        """Drops the runs that end below `offset`: they were compacted, or deleted."""
        dropped = bisect_left(self._last_offsets, offset)
        starts, ends = self._columns[4], self._columns[5]
        self.size_bytes -= sum(ends[:dropped]) - sum(starts[:dropped])
        for column in self._columns:
            del column[:dropped]

    def find(self, offset: int) -> RunLocation | None:
        """Returns the run that holds `offset`."""
        at = bisect_right(self._base_offsets, offset) - 1
        return self._location(at) if at >= 0 and offset <= self._last_offsets[at] else None

    def following(self, offset: int, *, count_max: int) -> Iterator[RunLocation]:
        """Returns the run that holds `offset` and those behind it, `count_max` at most; none if no run holds it."""
        first = bisect_left(self._last_offsets, offset)
        if first == len(self) or offset < self._base_offsets[first]:
            return iter(())
        return map(RunLocation._make, zip(*(column[first : first + count_max] for column in self._columns), strict=True))

    def between(self, offset: int, end_offset: int) -> Iterator[RunLocation]:
        """Returns the runs with a record in [offset, end_offset), in offset order."""
        first, end = bisect_left(self._last_offsets, offset), bisect_left(self._base_offsets, end_offset)
        return map(RunLocation._make, zip(*(column[first:end] for column in self._columns), strict=True))

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Returns the largest leader epoch up to this one with records here, and its end offset; else NO_EPOCH_END."""
        at = bisect_right(self._leader_epochs, leader_epoch) - 1
        if at < 0:
            return NO_EPOCH_END
        return EpochEnd(LeaderEpoch(self._leader_epochs[at]), Offset(self._last_offsets[at] + 1))

    def from_timestamp(self, timestamp_ms: int, *, from_offset: int = 0) -> Iterator[RunLocation]:
        """Yields the runs with a record at or after `timestamp_ms`, in offset order, starting at the run of `from_offset`.

        The caller must use up the iterator before runs are added or dropped.
        """
        first, max_timestamps = bisect_left(self._last_offsets, from_offset), self._columns[7]
        return (self._location(at) for at in range(first, len(self)) if max_timestamps[at] >= timestamp_ms)

    def _location(self, at: int) -> RunLocation:
        return RunLocation._make([column[at] for column in self._columns])
