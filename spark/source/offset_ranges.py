"""Resolves the requested positions to the offsets that a query reads. Pure; the caller passes in offsets looked up by time.

earliest, -2    the log start
latest, -1      the end of what is committed
a timestamp     the first record, in offset order, at or after it; none: an error, or the latest, as the strategy says
a number        itself; below the log start it was deleted: an error, or the log start, as failOnDataLoss says
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from metadata.errors import InvalidArgument, OutOfRange
from metadata.model import TopicPartition
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.options import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Position,
    SourceOptions,
    Unmatched,
)
from spark.source.scan_plan import OffsetRange

Warn = Callable[[str], None]
# The offset of the first record of a partition at or after a time in milliseconds, None where there is none.
FirstAt = Callable[[TopicPartition, int], int | None]


class TimeAsked(NamedTuple):
    """A timestamp whose offset has to be looked up in a partition."""

    partition: TopicPartition
    timestamp_ms: int


def times_asked(options: SourceOptions, snapshots: Mapping[TopicPartition, PartitionSnapshot]) -> set[TimeAsked]:
    """Returns the timestamps that have to be looked up before `offset_ranges`."""
    return {
        TimeAsked(partition, timestamp_ms)
        for position in (options.start, options.end)
        for partition, snapshot in snapshots.items()
        if (timestamp_ms := _timestamp_of(position, snapshot)) is not None
    }


def offset_ranges(
    options: SourceOptions, snapshots: Mapping[TopicPartition, PartitionSnapshot], first_at: FirstAt, warn: Warn
) -> dict[TopicPartition, OffsetRange]:
    """Returns the range of each partition, which may be empty. Raises InvalidArgument and OutOfRange, with the option and the
    limits."""
    starts = start_offsets(options, snapshots, first_at, warn)
    ends = end_offsets(options, snapshots, first_at)
    for partition, snapshot in snapshots.items():
        if snapshot.damage is not None and ends[partition] >= snapshot.end_offset:
            if options.fail_on_data_loss:
                raise snapshot.damage
            warn(f"{snapshot} is read up to offset {snapshot.end_offset}: {snapshot.damage.message}")
    return {partition: OffsetRange(start, max(start, ends[partition])) for partition, start in starts.items()}


def start_offsets(
    options: SourceOptions, snapshots: Mapping[TopicPartition, PartitionSnapshot], first_at: FirstAt, warn: Warn
) -> dict[TopicPartition, int]:
    """Raises as `offset_ranges`."""
    position = options.start or AtOffset(EARLIEST)
    _check_names("starting", position, snapshots)
    return {partition: _start(options, position, snapshot, first_at, warn) for partition, snapshot in snapshots.items()}


def end_offsets(
    options: SourceOptions, snapshots: Mapping[TopicPartition, PartitionSnapshot], first_at: FirstAt
) -> dict[TopicPartition, int]:
    """Raises as `offset_ranges`."""
    _check_names("ending", options.end, snapshots)
    ends = {partition: _end(options.end, snapshot, first_at) for partition, snapshot in snapshots.items()}
    for partition, snapshot in snapshots.items():
        if ends[partition] > snapshot.end_offset:
            raise OutOfRange(
                f"endingOffsets: {ends[partition]} for {snapshot} lies behind the last record: it ends at {snapshot.end_offset}",
                hint='Give "latest", or an offset up to this one.',
            )
    return ends


def _start(options: SourceOptions, position: Position, snapshot: PartitionSnapshot, first_at: FirstAt, warn: Warn) -> int:
    timestamp_ms = _timestamp_of(position, snapshot)
    if timestamp_ms is not None:
        found = first_at(snapshot.partition, timestamp_ms)
        if found is None and options.unmatched is Unmatched.ERROR:
            raise OutOfRange(
                f"{snapshot} has no record at or after the starting timestamp {timestamp_ms}",
                hint='Give an earlier one, or set startingOffsetsByTimestampStrategy to "latest".',
            )
        return snapshot.end_offset if found is None else found
    offset = _offset_of(position, snapshot, default=EARLIEST)
    if offset > snapshot.end_offset:
        raise OutOfRange(
            f"startingOffsets: {offset} for {snapshot} lies behind the last record: it ends at {snapshot.end_offset}",
            hint=f"Give an offset from {snapshot.start_offset} to {snapshot.end_offset}.",
        )
    if offset < snapshot.start_offset:
        lost = f"offsets {offset} to {snapshot.start_offset - 1} of {snapshot} were deleted, by retention or DeleteRecords"
        if options.fail_on_data_loss:
            raise OutOfRange(lost, hint="Start at the earliest, or set failOnDataLoss to false to go on from there.")
        warn(f"{lost}; it is read from {snapshot.start_offset} on")
    return max(offset, snapshot.start_offset)


def _end(position: Position, snapshot: PartitionSnapshot, first_at: FirstAt) -> int:
    timestamp_ms = _timestamp_of(position, snapshot)
    if timestamp_ms is None:
        return _offset_of(position, snapshot, default=LATEST)
    found = first_at(snapshot.partition, timestamp_ms)
    return snapshot.end_offset if found is None else found


def _timestamp_of(position: Position | None, snapshot: PartitionSnapshot) -> int | None:
    match position:
        case AtTimestamp(timestamp_ms):
            return timestamp_ms
        case AtTimestamps(timestamps_ms):
            return timestamps_ms.get(snapshot.topic, {}).get(snapshot.partition.partition)
        case _:
            return None


def _offset_of(position: Position, snapshot: PartitionSnapshot, *, default: int) -> int:
    match position:
        case AtOffset(offset):
            found = offset
        case AtOffsets(offsets):
            found = offsets.get(snapshot.topic, {}).get(snapshot.partition.partition, default)
        case _:
            found = default
    return {EARLIEST: snapshot.start_offset, LATEST: snapshot.end_offset}.get(found, found)


def _check_names(which: str, position: Position, snapshots: Mapping[TopicPartition, PartitionSnapshot]) -> None:
    """Raises InvalidArgument unless the position names exactly the partitions that are read, as Kafka's source demands."""
    match position:
        case AtOffsets(named):
            option = f"{which}Offsets"
        case AtTimestamps(named):
            option = f"{which}OffsetsByTimestamp"
        case _:
            return
    asked = {(topic, number) for topic, numbers in named.items() for number in numbers}
    there = {(snapshot.topic, int(snapshot.partition.partition)) for snapshot in snapshots.values()}
    for wrong, problem in ((asked - there, "names {}, which is not read"), (there - asked, "does not name {}, which is read")):
        if wrong:
            topic, number = min(wrong)
            raise InvalidArgument(
                f"option {option} {problem.format(f'{topic}/{number}')}",
                hint="Name each partition that is read, and no other: -2 stands for the earliest, -1 for the latest.",
            )
