"""Indexes the records of a partition in Parquet over its manifest. Pure.

    offsets   [ group ][ group ]····[ group ]······│ compacted_to: from here on, the runs in segments count (wal/run_index.py)
                                ▲           ▲
              gaps that key compaction left: the next group has what comes then, or nothing has, up to compacted_to

A row group is the unit of reading. Nothing is copied from the manifest, so that a history of a million row groups costs one search
in its files and one in their groups. Invariant: locations are in offset order and do not overlap, and lie below `compacted_to`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from metadata.model import LeaderEpoch, Offset
from segments.bucket.layout import history_file_key
from segments.history.manifest import EpochStart, HistoryFile, Manifest, RowGroup
from segments.wal.run_index import NO_EPOCH_END, EpochEnd

# Memory of a record beside its key, value and headers, as columns; as a batch it takes less.
RECORD_BYTES: Final = 40


class RowGroupLocation(NamedTuple):
    """Locates one row group of a Parquet file."""

    key: str
    # Number of the group in its file, from 0.
    number: int
    group: RowGroup
    file: HistoryFile
    # Epochs of the whole history: batches that are made of its records are stamped with them.
    epochs: tuple[EpochStart, ...]
    # Behind the gap that follows its records: where the next group begins, or the next leader epoch, or the history ends.
    end_offset: Offset

    @property
    def base_offset(self) -> Offset:
        return self.group.base_offset

    @property
    def last_offset(self) -> Offset:
        return self.group.last_offset

    @property
    def start(self) -> int:
        return self.group.start

    @property
    def end(self) -> int:
        return self.group.end

    @property
    def max_timestamp(self) -> int:
        return self.group.max_timestamp

    @property
    def identity(self) -> tuple[str, int]:
        """Identifies these bytes permanently: a file is never written twice."""
        return self.key, self.group.start

    @property
    def size_bytes(self) -> int:
        """Returns about what its records take in memory, as columns or as batches."""
        stored = self.file.row_groups[-1].end - self.file.row_groups[0].start  # they lie next to each other
        share = self.file.record_bytes * (self.group.end - self.group.start) // stored
        return share + self.group.record_count * RECORD_BYTES

    def __str__(self) -> str:
        return f"offsets {self.base_offset} to {self.last_offset} lie in row group {self.number} of {self.key}"


class HistoryIndex:
    """Finds the row groups of one partition by offset."""

    def __init__(self, manifest: Manifest, topic: str) -> None:
        """`topic`: its name, which the keys of its objects hold."""
        self.manifest = manifest
        self.topic = topic
        # Bytes of the Parquet files that the manifest names.
        self.size_bytes = sum(file.size_bytes for file in manifest.files)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def compacted_to(self) -> Offset:
        return self.manifest.compacted_to

    def find(self, offset: int) -> RowGroupLocation | None:
        """Returns the first row group with a record at or after `offset`; None if there is none below `compacted_to`."""
        files = self.manifest.files
        at = bisect_left(files, offset, key=_last_offset)
        if at == len(files):
            return None
        number = bisect_left(files[at].row_groups, offset, key=_last_offset)
        if number < len(files[at].row_groups):
            return self._location(at, number)
        return self._location(at + 1, 0) if at + 1 < len(files) else None  # the file says that it goes further than its records

    def between(self, offset: int, end_offset: int) -> Iterator[RowGroupLocation]:
        """Returns the row groups with a record in [offset, end_offset), in offset order."""
        files = self.manifest.files
        for at in range(bisect_left(files, offset, key=_last_offset), len(files)):
            file = files[at]
            if file.base_offset >= end_offset:
                return
            for number, group in enumerate(file.row_groups):
                if group.last_offset >= offset and group.base_offset < end_offset:
                    yield self._location(at, number)

    def from_timestamp(self, timestamp_ms: int, *, from_offset: int = 0) -> Iterator[RowGroupLocation]:
        """Yields the row groups with a record at or after `timestamp_ms`, in offset order, starting at the group that `find`
        returns.
        """
        files = self.manifest.files
        for at in range(bisect_left(files, from_offset, key=_last_offset), len(files)):
            if files[at].max_timestamp < timestamp_ms:
                continue
            for number, group in enumerate(files[at].row_groups):
                if group.max_timestamp >= timestamp_ms and group.last_offset >= from_offset:
                    yield self._location(at, number)

    def files_from(self, offset: int) -> Iterator[tuple[int, HistoryFile]]:
        """Yields the files that end at or above `offset`, in offset order, each with its number for `groups_in`."""
        files = self.manifest.files
        for at in range(bisect_left(files, offset, key=_last_offset), len(files)):
            yield at, files[at]

    def groups_in(self, at: int) -> Iterator[RowGroupLocation]:
        """Yields the row groups of the file with this number."""
        return (self._location(at, number) for number in range(len(self.manifest.files[at].row_groups)))

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Returns the epoch of the leader that wrote the record at this offset; -1 where the manifest does not say."""
        at = bisect_right(self.manifest.epochs, offset, key=_start_offset) - 1
        return self.manifest.epochs[at].leader_epoch if at >= 0 else LeaderEpoch(-1)

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Returns the largest leader epoch up to this one with records here, and the offset where the next one begins.

        If records were deleted, an epoch below all known ones ends where the first known one begins.
        """
        epochs = self.manifest.epochs
        at = bisect_right(epochs, leader_epoch, key=_leader_epoch) - 1
        if at < 0:
            were_deleted = bool(epochs) and epochs[0].start_offset > 0
            return EpochEnd(LeaderEpoch(leader_epoch), epochs[0].start_offset) if were_deleted else NO_EPOCH_END
        end = epochs[at + 1].start_offset if at + 1 < len(epochs) else self.compacted_to
        return EpochEnd(epochs[at].leader_epoch, end)

    def _location(self, at: int, number: int) -> RowGroupLocation:
        """Returns the row group `number` of the file `at`."""
        file, epochs = self.manifest.files[at], self.manifest.epochs
        key = history_file_key(self.topic, self.manifest.topic_partition, file.name)
        group = file.row_groups[number]
        end_offset = self._base_offset_behind(at, number)
        following = bisect_right(epochs, group.last_offset, key=_start_offset)
        if following < len(epochs):
            end_offset = min(end_offset, epochs[following].start_offset)
        return RowGroupLocation(key, number, group, file, epochs, end_offset)

    def _base_offset_behind(self, at: int, number: int) -> Offset:
        """Returns the offset at which the records behind this row group begin."""
        files = self.manifest.files
        if number + 1 < len(files[at].row_groups):
            return files[at].row_groups[number + 1].base_offset
        return files[at + 1].row_groups[0].base_offset if at + 1 < len(files) else self.manifest.compacted_to


def _last_offset(part: HistoryFile | RowGroup) -> Offset:
    return part.last_offset


def _start_offset(epoch: EpochStart) -> Offset:
    return epoch.start_offset


def _leader_epoch(epoch: EpochStart) -> LeaderEpoch:
    return epoch.leader_epoch
