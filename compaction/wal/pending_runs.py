"""Keeps the runs of one partition that lie in segments and, as far as is known, in no Parquet file yet. Pure.

    compacted_to
        ▼
        [ run ][ run ][ run ]        [ run ]        in offset order, whatever the sessions and the order of their finding
                             ▲ a gap: its runs were not found yet, and those behind it wait

Six integers for each run (48 bytes), in columns: there are millions. Invariant: runs are in offset order and do not overlap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId
from segments.bucket.layout import segment_key

RUN_BYTES: Final = 48


class PendingRun(NamedTuple):
    """Locates one run."""

    base_offset: Offset
    last_offset: Offset
    session: SessionId
    seq: SegmentSeq
    # First byte in the segment.
    start: int
    size_bytes: int

    @property
    def key(self) -> str:
        return segment_key(self.session, self.seq)


class RunTable(NamedTuple):
    """Columns of consecutive runs."""

    base_offsets: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]
    sessions: npt.NDArray[np.int64]
    seqs: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


class PendingRuns:
    """Holds the runs of one partition in columns."""

    __slots__ = ("_columns", "bytes_pending")

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in PendingRun._fields)
        self.bytes_pending = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[PendingRun]:
        return (self._run(at) for at in range(len(self)))

    @property
    def first(self) -> PendingRun:
        return self._run(0)

    @property
    def base_offset(self) -> Offset:
        """Returns the base offset of the first run."""
        return Offset(self._columns[0][0])

    @property
    def first_segment(self) -> tuple[SessionId, SegmentSeq]:
        return SessionId(self._columns[2][0]), SegmentSeq(self._columns[3][0])

    def add(self, run: PendingRun) -> None:
        """Adds the run. Raises Corrupt, without adding it, where its offsets overlap another run's."""
        bases, lasts = self._columns[0], self._columns[1]
        at = len(bases) if not bases or run.base_offset > lasts[-1] else bisect_left(bases, run.base_offset)
        for beside in (at - 1, at):
            if 0 <= beside < len(bases) and bases[beside] <= run.last_offset and lasts[beside] >= run.base_offset:
                other = self._run(beside)
                raise Corrupt(
                    f"{run.key} holds offsets {run.base_offset} to {run.last_offset}, and {other.key} holds "
                    f"{other.base_offset} to {other.last_offset}: two leaders have written the same offsets",
                    key=run.key,
                    start=run.start,
                    end=run.start + run.size_bytes,
                )
        for column, value in zip(self._columns, run, strict=True):
            if at == len(column):
                column.append(value)
            else:
                column.insert(at, value)
        self.bytes_pending += run.size_bytes

    def bytes_from(self, offset: int) -> int:
        """Returns the bytes of the runs that do not end below `offset`."""
        return self.bytes_pending - sum(self._columns[5][: bisect_left(self._columns[1], offset)])

    def drop_below(self, offset: int) -> list[tuple[SessionId, SegmentSeq]]:
        """Drops the runs that end below `offset`, and returns their segments."""
        count = bisect_left(self._columns[1], offset)
        return self._drop(slice(0, count)) if count else []

    def drop_in(self, session: SessionId, below: SegmentSeq) -> list[tuple[SessionId, SegmentSeq]]:
        """Drops the runs in segments of the session before `below`, and returns their segments."""
        table = self.table()
        dropped = np.flatnonzero((table.sessions == session) & (table.seqs < below))
        del table  # otherwise the columns can't be shortened
        segments: list[tuple[SessionId, SegmentSeq]] = []
        stretches = np.split(dropped, np.flatnonzero(np.diff(dropped) > 1) + 1) if len(dropped) else []
        for stretch in reversed(stretches):
            segments += self._drop(slice(int(stretch[0]), int(stretch[-1]) + 1))
        return segments

    def table(self, count: int | None = None) -> RunTable:
        """Returns the first `count` runs without copying. Release it before runs are added or dropped."""
        return RunTable(*(np.frombuffer(column, np.int64, count=-1 if count is None else count) for column in self._columns))

    def count_without_gap(self, from_offset: int) -> int:
        """Counts the runs that follow each other, from `from_offset` on or from the run that holds it."""
        table = self.table()
        if not len(table.base_offsets) or table.base_offsets[0] > from_offset:
            return 0
        gaps = np.flatnonzero(table.base_offsets[1:] != table.last_offsets[:-1] + 1)
        return int(gaps[0]) + 1 if len(gaps) else len(table.base_offsets)

    def find(self, offset: int) -> PendingRun | None:
        at = bisect_right(self._columns[0], offset) - 1
        return self._run(at) if at >= 0 and offset <= self._columns[1][at] else None

    def _drop(self, part: slice) -> list[tuple[SessionId, SegmentSeq]]:
        _, _, sessions, seqs, _, sizes = (column[part] for column in self._columns)
        self.bytes_pending -= sum(sizes)
        for column in self._columns:
            del column[part]
        return [(SessionId(session), SegmentSeq(seq)) for session, seq in zip(sessions, seqs, strict=True)]

    def _run(self, at: int) -> PendingRun:
        return PendingRun(*(column[at] for column in self._columns))  # type: ignore[arg-type]  # the columns hold plain ints
