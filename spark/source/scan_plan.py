"""Cuts offset ranges of partitions into what Spark's tasks read. Pure.

    range      [ start ………………………………………………………………… end )
    history        [ file a: groups 3, 4 ][ file b: groups 0 … 9 ]│
    segments                                                      │[ run ][ run ][ run ]
    tasks      [        1        ][       2       ][     3        ][      4      ]      each about as large as the others, in order

A part is a row group or a run, the least that is read. Invariant: the tasks of a partition are in offset order, do not overlap, and
cover the range; gaps that key compaction left belong to the task before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata.model import TopicPartition
from segments.history.index import RowGroupLocation
from segments.history.manifest import HistoryFile
from segments.wal.run_index import RunLocation
from spark.source.log_snapshot import PartitionSnapshot

# That a task reads about, as columns in memory: what Spark gives a task of its own readers.
TASK_BYTES: Final = 128 << 20


class FilePart(NamedTuple):
    """Row groups [first, end) of a Parquet file."""

    key: str
    file: HistoryFile
    first: int
    end: int


class RunGroup(NamedTuple):
    """Runs that follow each other."""

    runs: tuple[RunLocation, ...]


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Task:
    """The reads of one Spark partition, in the form in which an executor receives them."""

    topic: str
    partition: TopicPartition
    # Records of `parts` outside of this range are skipped.
    offsets: OffsetRange
    parts: tuple[FilePart | RunGroup, ...]
    # About what its records take as columns.
    size_bytes: int


class RowFilter(NamedTuple):
    """Which rows are wanted at all, as far as filters on columns tell: parts that hold none of them are not read."""

    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_max: int = 2**63 - 1
    timestamp_min_ms: int = -(2**63)

    def wants(self, location: RowGroupLocation | RunLocation) -> bool:
        newest = location.group.max_timestamp if isinstance(location, RowGroupLocation) else location.max_timestamp
        return (
            newest >= self.timestamp_min_ms and location.last_offset >= self.offset_min and location.base_offset <= self.offset_max
        )


ALL_ROWS: Final = RowFilter()


def plan_tasks(
    snapshot: PartitionSnapshot,
    offsets: OffsetRange,
    *,
    task_bytes: int = TASK_BYTES,
    task_records: int = 0,
    rows: RowFilter = ALL_ROWS,
) -> list[Task]:
    """`task_records`: at most so many offsets for a task; 0: as many as there are."""
    tasks = []
    for part in _cut(offsets, task_records):
        locations = [location for location in locations_in(snapshot, part) if rows.wants(location)]
        groups = _grouped(locations, task_bytes)
        bounds = [part.start, *(group[0].base_offset for group in groups[1:]), part.end]
        for at, group in enumerate(groups):
            covered = OffsetRange(max(bounds[at], part.start), min(bounds[at + 1], part.end))
            size_bytes = sum(location.size_bytes for location in group)
            tasks.append(Task(snapshot.topic, snapshot.partition, covered, tuple(_joined(group)), size_bytes))
    return tasks


def locations_in(snapshot: PartitionSnapshot, offsets: OffsetRange) -> Iterator[RowGroupLocation | RunLocation]:
    """Yields the row groups and runs that hold records of the range, in offset order."""
    start, end = max(offsets.start, snapshot.start_offset), min(offsets.end, snapshot.end_offset)
    yield from snapshot.history.between(start, end)
    yield from snapshot.runs.between(max(start, snapshot.manifest.compacted_to), end)


def _cut(offsets: OffsetRange, task_records: int) -> list[OffsetRange]:
    if not task_records:
        return [offsets]
    starts = range(offsets.start, offsets.end, task_records)
    return [OffsetRange(start, min(start + task_records, offsets.end)) for start in starts]


def _grouped(locations: Sequence[RowGroupLocation | RunLocation], task_bytes: int) -> list[list[RowGroupLocation | RunLocation]]:
    groups: list[list[RowGroupLocation | RunLocation]] = []
    size_bytes = 0
    for location in locations:
        if not groups or size_bytes + location.size_bytes > task_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(location)
        size_bytes += location.size_bytes
    return groups


def _joined(locations: Iterable[RowGroupLocation | RunLocation]) -> Iterator[FilePart | RunGroup]:
    """Joins adjacent row groups of a file to one part, and adjacent runs as well: each file is named once."""
    held: FilePart | RunGroup | None = None
    for location in locations:
        if isinstance(location, RowGroupLocation):
            if isinstance(held, FilePart) and held.key == location.key and held.end == location.number:
                held = held._replace(end=location.number + 1)
                continue
            following: FilePart | RunGroup = FilePart(location.key, location.file, location.number, location.number + 1)
        elif isinstance(held, RunGroup):
            held = RunGroup((*held.runs, location))
            continue
        else:
            following = RunGroup((location,))
        if held is not None:
            yield held
        held = following
    if held is not None:
        yield held
