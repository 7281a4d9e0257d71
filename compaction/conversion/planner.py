"""Plans what is compacted next: which partitions, how far, and which segments are read for it. Pure.

    due      a partition has `due_bytes` in segments · its oldest batch there is `due_age_ms` old · records below its log start
             wait · all that may be compacted now is more than there is room for
    along    a quarter of these bytes, or half of this age, in a session that is read anyway: so segments can be trimmed sooner,
             and a small partition does not get a file of its own each time another one is due

Runs are taken whole, in offset order, without a gap, from `compacted_to` on; runs behind a gap wait, unless it lies below the log
start: after a restore from an older bucket, records there may be in no segment.
Where a unit would not fit the scratch space, it takes the segments that were written first.

Invariants: of each partition a unit takes the runs [base_offset, end_offset), none twice and none skipped; `base_offset` is
`compacted_to` of its manifest, or lies between that and the log start; every segment that holds one of them is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from compaction.wal.pending_runs import PendingRuns
from compaction.wal.state import Floor, WalState
from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId, TopicPartition
from segments.history.manifest import may_follow

# A partition goes along from this fraction of the due bytes on,
_ALONG_BYTES: Final = 4
# or from this fraction of the due age on.
_ALONG_AGE: Final = 2
_BEHIND_ALL: Final = np.iinfo(np.int64).max

SegmentSeqs = dict[SessionId, npt.NDArray[np.int64]]


class UnitPartition(NamedTuple):
    """Names the runs of a partition that a unit compacts."""

    partition: TopicPartition
    base_offset: Offset
    end_offset: Offset


class UnitSegment(NamedTuple):
    """Names a segment that a unit reads."""

    session: SessionId
    seq: SegmentSeq
    # The first byte that is needed; the footer at its end is needed as well.
    start: int
    size_bytes: int


class CompactionUnit(NamedTuple):
    """Holds the partitions that are compacted together, and the segments that are read for them."""

    partitions: tuple[UnitPartition, ...]
    # In the order of their writing.
    segments: tuple[UnitSegment, ...]
    # Bytes of the runs.
    size_bytes: int


class CompactionTrigger(NamedTuple):
    """Bounds what may wait before it is due."""

    due_bytes: int
    due_age_ms: float
    scratch_bytes_max: int
    runs_max: int


def plan_unit(
    state: WalState,
    rule: CompactionTrigger,
    *,
    now_ms: int,
    may: Callable[[TopicPartition, SessionId], bool],
    blocked: Collection[TopicPartition] = (),
    everything: bool = False,
) -> CompactionUnit | None:
    """Returns the next unit; None where nothing is due.

    `may`: whether this compactor owns the partition, whose first run lies in that session; `everything`: all that waits is due.
    """
    candidates: dict[TopicPartition, tuple[PendingRuns, Floor]] = {}
    for where, runs in state.pending.items():
        if where in blocked or where in state.damaged or not (floor := state.floors.get(where)):
            continue
        if _may_follow(state, runs, floor, is_late=everything, rule=rule, now_ms=now_ms) and may(where, runs.first_segment[0]):
            candidates[where] = runs, floor
    bytes_pending = sum(runs.bytes_pending for runs, _ in candidates.values())  # bytes behind damage make no other partition due
    everything = everything or bytes_pending >= rule.scratch_bytes_max or state.run_count >= rule.runs_max
    due: dict[TopicPartition, int] = {}
    along: dict[TopicPartition, int] = {}
    for where, (runs, floor) in candidates.items():
        age_ms = now_ms - state.oldest_ms(runs)
        if (
            everything
            or runs.bytes_pending >= rule.due_bytes
            or age_ms >= rule.due_age_ms
            or floor.log_start_offset > runs.base_offset
        ):
            due[where] = runs.count_without_gap(runs.base_offset)
        elif runs.bytes_pending >= rule.due_bytes // _ALONG_BYTES or age_ms >= rule.due_age_ms / _ALONG_AGE:
            along[where] = runs.count_without_gap(runs.base_offset)
    if not due:
        return None
    sessions = {session for where, count in due.items() for session in _sessions(state.pending[where], count)}
    due |= {where: count for where, count in along.items() if sessions & _sessions(state.pending[where], count)}
    return _unit(state, _within(state, due, rule.scratch_bytes_max))


def _may_follow(state: WalState, runs: PendingRuns, floor: Floor, *, is_late: bool, rule: CompactionTrigger, now_ms: int) -> bool:
    """Returns whether the first run may be compacted now.

    A gap below the log start is skipped only once the run has waited as long as any run may. The missing runs may still be found:
    their records are deleted, but they hold states of producers.
    """
    if runs.base_offset == floor.compacted_to:
        return True
    is_late = is_late or now_ms - state.oldest_ms(runs) >= rule.due_age_ms
    return is_late and may_follow(runs.base_offset, compacted_to=floor.compacted_to, log_start_offset=floor.log_start_offset)


def straddling(state: WalState) -> Iterable[tuple[TopicPartition, Corrupt]]:
    """Yields partitions with a run that is compacted in part, which no compactor does."""
    for where, runs in state.pending.items():
        floor = state.floors.get(where)
        if floor is not None and runs.base_offset < floor.compacted_to:
            first = runs.first
            error = Corrupt(
                f"{first.key} holds offsets {first.base_offset} to {first.last_offset} of {where}, and its newest manifest "
                f"says that it was compacted to {floor.compacted_to}, in the middle",
                key=first.key,
                start=first.start,
                end=first.start + first.size_bytes,
            )
            yield where, error


def _sessions(runs: PendingRuns, count: int) -> set[SessionId]:
    sessions = runs.table(count).sessions
    if sessions[0] == sessions[-1] and (sessions == sessions[0]).all():
        return {SessionId(int(sessions[0]))}
    return {SessionId(session) for session in np.unique(sessions).tolist()}


def _within(state: WalState, counts: dict[TopicPartition, int], bytes_max: int) -> dict[TopicPartition, int]:
    """Returns how many runs of each partition fit: those in the segments that were written first."""
    wanted: SegmentSeqs = {}
    for where, count in counts.items():
        table = state.pending[where].table(count)
        for session, rows in _by_session(table.sessions):
            if (column := wanted.get(session)) is None:
                column = wanted[session] = np.zeros(len(state.sessions[session].waiting), np.int64)
            np.add.at(column, table.seqs[rows] - state.sessions[session].first_seq, table.sizes[rows])
    if sum(int(column.sum()) for column in wanted.values()) <= bytes_max:
        return counts
    taken = _written_first(state, wanted, bytes_max)
    fitting: dict[TopicPartition, int] = {}
    for where, count in counts.items():
        table = state.pending[where].table(count)
        fits = np.zeros(count, bool)
        for session, rows in _by_session(table.sessions):
            fits[rows] = taken[session][table.seqs[rows] - state.sessions[session].first_seq]
        left_out = np.flatnonzero(~fits)
        if kept := int(left_out[0]) if len(left_out) else count:
            fitting[where] = kept
    return fitting


def _written_first(state: WalState, wanted: SegmentSeqs, bytes_max: int) -> dict[SessionId, npt.NDArray[np.bool_]]:
    """Returns the segments that fit, at least one, in the order of their writing; within a session, in that of their places."""
    order = [
        (np.maximum.accumulate(np.frombuffer(state.sessions[session].written_ms, np.int64)), np.full(len(column), session), column)
        for session, column in sorted(wanted.items())
    ]
    written_ms, sessions, sizes = (np.concatenate(columns) for columns in zip(*order, strict=True))
    rank = np.argsort(written_ms, kind="stable")
    fits = np.empty(len(rank), bool)
    fits[rank] = np.cumsum(sizes[rank]) <= bytes_max
    needed = np.flatnonzero(sizes[rank] > 0)
    fits[rank[: needed[0] + 1]] = True
    return {session: fits[sessions == session] for session in wanted}


def _unit(state: WalState, counts: dict[TopicPartition, int]) -> CompactionUnit:
    starts: SegmentSeqs = {}
    partitions: list[UnitPartition] = []
    size_bytes = 0
    for where, count in sorted(counts.items()):
        table = state.pending[where].table(count)
        partitions.append(UnitPartition(where, Offset(int(table.base_offsets[0])), Offset(int(table.last_offsets[-1]) + 1)))
        size_bytes += int(table.sizes.sum())
        for session, rows in _by_session(table.sessions):
            if (column := starts.get(session)) is None:
                column = starts[session] = np.full(len(state.sessions[session].waiting), _BEHIND_ALL)
            np.minimum.at(column, table.seqs[rows] - state.sessions[session].first_seq, table.starts[rows])
    segments: list[tuple[int, UnitSegment]] = []
    for session, column in sorted(starts.items()):
        held = state.sessions[session]
        for at in np.flatnonzero(column != _BEHIND_ALL).tolist():
            segment = UnitSegment(session, SegmentSeq(held.first_seq + at), int(column[at]), held.sizes[at])
            segments.append((held.written_ms[at], segment))
    segments.sort()
    return CompactionUnit(tuple(partitions), tuple(segment for _, segment in segments), size_bytes)


def _by_session(sessions: npt.NDArray[np.int64]) -> list[tuple[SessionId, slice | npt.NDArray[np.bool_]]]:
    if sessions[0] == sessions[-1] and (sessions == sessions[0]).all():
        return [(SessionId(int(sessions[0])), slice(None))]
    return [(SessionId(session), sessions == session) for session in np.unique(sessions).tolist()]
