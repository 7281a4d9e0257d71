"""Plans which Parquet files a query reads whole, which in part, and what it reads from segments. Pure.

    range      [ start ……………………………………………………………………………………… end )
    files    [ cut    ][ whole ][ whole ]│ compacted_to
    segments                             │ [ tail: from compacted_to on … end )

What is whole needs no filter, so that Spark reads it as fast as any other files. A partition with a record whose time is more than
Spark's reader takes is all tail. Invariant: whole files, the rows of cut ones that lie within the range, and the tail are the
records of the range, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple

import msgspec

from metadata.model import Offset, TopicPartition
from segments.bucket.layout import history_file_key
from segments.history.manifest import HistoryFile
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.scan_plan import OffsetRange
from spark.source.schema import TIMESTAMP_MS_MAX

# Partitions with cut files that one condition tells apart: Spark makes code of it, and tries it on each of their rows.
RANGES_AT_ONCE: Final = 64


class StoredFile(NamedTuple):
    """A Parquet file on the bucket."""

    key: str
    size_bytes: int


class CutFiles(NamedTuple):
    """Files of one topic, of which the rows within the ranges are wanted."""

    files: tuple[StoredFile, ...]
    # By partition: those that have files here.
    ranges: Mapping[int, OffsetRange]

    @property
    def condition(self) -> str:
        """Returns the condition in Spark's SQL. Spark pushes the offset bounds down to row groups and pages."""
        return " OR ".join(
            f"(partition = {partition} AND offset >= {offsets.start} AND offset < {offsets.end})"
            for partition, offsets in self.ranges.items()
        )


class NativePlan(NamedTuple):
    """A batch query split by reader: Parquet files for Spark's own reader, and the rest for the data source."""

    whole: tuple[StoredFile, ...]
    cut: tuple[CutFiles, ...]
    # Ranges by topic and partition that lie in segments, or that Spark's own reader can't read.
    tail: Mapping[str, Mapping[int, OffsetRange]]
    # Topic ids of the tail, by topic name.
    topic_ids: Mapping[str, str]

    def tail_options(self) -> dict[str, str]:
        """Returns the tail as options of the data source: exactly these offsets, wherever they lie when they are read."""

        def json(of: object) -> str:
            return msgspec.json.encode(of).decode()

        return {
            "topicIds": json(self.topic_ids),
            "assign": json({topic: list(ranges) for topic, ranges in self.tail.items()}),
            "startingOffsets": json({topic: {p: each.start for p, each in ranges.items()} for topic, ranges in self.tail.items()}),
            "endingOffsets": json({topic: {p: each.end for p, each in ranges.items()} for topic, ranges in self.tail.items()}),
        }


def plan_native(snapshots: Mapping[TopicPartition, PartitionSnapshot], ranges: Mapping[TopicPartition, OffsetRange]) -> NativePlan:
    """`ranges` lie within what the snapshots hold."""
    whole: list[StoredFile] = []
    cut: list[tuple[str, int, OffsetRange, StoredFile]] = []
    tail: dict[str, dict[int, OffsetRange]] = {}
    for where, snapshot in snapshots.items():
        offsets, compacted_to = ranges[where], snapshot.manifest.compacted_to
        if offsets.start >= offsets.end:
            continue
        files = [file for file in snapshot.manifest.files if _has_records(file, offsets)]
        if any(file.max_timestamp > TIMESTAMP_MS_MAX for file in files):  # at which Spark's reader fails
            files, compacted_to = [], Offset(0)
        for file in files:
            first, last = _records(file)
            stored = StoredFile(history_file_key(snapshot.topic, where, file.name), file.size_bytes)
            if first >= offsets.start and last < offsets.end:
                whole.append(stored)
            else:
                cut.append((snapshot.topic, where.partition, offsets, stored))
        if max(offsets.start, compacted_to) < offsets.end:
            tail.setdefault(snapshot.topic, {})[where.partition] = OffsetRange(max(offsets.start, compacted_to), offsets.end)
    ids = {snapshot.topic: str(where.topic_id) for where, snapshot in snapshots.items() if snapshot.topic in tail}
    return NativePlan(tuple(whole), tuple(_by_condition(cut)), tail, ids)


def _has_records(file: HistoryFile, offsets: OffsetRange) -> bool:
    first, last = _records(file)
    return last >= offsets.start and first < offsets.end


def _records(file: HistoryFile) -> tuple[int, int]:
    """Returns the offsets of the first and last record; after key compaction the file may stand for more offsets."""
    return file.row_groups[0].base_offset, file.row_groups[-1].last_offset


def _by_condition(cut: Sequence[tuple[str, int, OffsetRange, StoredFile]]) -> Iterator[CutFiles]:
    """`cut`: in the order of topics and partitions."""
    for _, of_topic in groupby(cut, key=lambda one: one[0]):
        partitions = (list(files) for _, files in groupby(of_topic, key=lambda one: one[1]))
        while some := list(islice(partitions, RANGES_AT_ONCE)):
            files = tuple(stored for of_partition in some for *_, stored in of_partition)
            yield CutFiles(files, {of_partition[0][1]: of_partition[0][2] for of_partition in some})
