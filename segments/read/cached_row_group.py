"""Holds one row group of a Parquet file, read and converted to record batches. Pure.

    row group    rows 10 11 12 · · 15 16 · 18 ·      offsets that key compaction left
    batches      [ 10   to   14 ][15 to 17][18 19]   a batch covers the gap behind its records
    asked for    [ 10 to 12 ][ 13 to 16 ][ 17 18 ]   where a fetch begins in a gap, it gets the batch behind it

Invariant: it is whole, or damaged as a whole: then all readers get one Corrupt, which names the offset behind the row group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import Offset
from segments.history.index import RowGroupLocation
from segments.history.row_group_batches import HistoryBatch
from segments.object_store.interface import Buffer
from segments.read.cached_run import unreadable
from segments.records.batch import base_offset_of, parse_header
from segments.shared_errors import copy_of

# Bytes of one batch, about: a reader gets at least one batch, however few records it asks for.
GROUP_BATCH_BYTES: Final = 256 << 10
# Memory of a batch beside its bytes.
BATCH_MEMORY_BYTES: Final = 190


class GroupPart(NamedTuple):
    """Whole batches, each of which begins where the one before ends, and the offset behind them."""

    buffers: Sequence[Buffer]
    next_offset: Offset


class CachedRowGroup(NamedTuple):
    """Holds the batches of one row group, or its damage."""

    location: RowGroupLocation
    batches: list[bytes]
    # The offset of the last record of each batch.
    last_offsets: list[Offset]
    # The end of the gap that each batch covers.
    end_offsets: list[Offset]
    damage: Corrupt | None = None

    @property
    def damaged(self) -> bool:
        return self.damage is not None

    @property
    def memory_bytes(self) -> int:
        return sum(map(len, self.batches)) + (1 + len(self.batches)) * BATCH_MEMORY_BYTES

    @property
    def batch_count(self) -> int:
        """Returns the number of batches; a damaged group counts as one."""
        return len(self.batches) or 1

    def read(self, offset: int, *, bytes_max: int, high_watermark: Offset) -> GroupPart:
        """Returns batches from the first record at or after `offset` on, up to `bytes_max` bytes but at least one. Corrupt.

        A leader may hear of a compaction before it hears that its own PUT has succeeded: a batch that goes beyond the high
        watermark is left for then, and if it is the first, there is none. The part ends before a gap that no batch covers.
        """
        if self.damage is not None:
            raise copy_of(self.damage)
        first = end = self.index_of(offset)
        while end < len(self.batches) and self.end_offsets[end] <= high_watermark:
            if end > first and base_offset_of(self.batches[end]) != self.end_offsets[end - 1]:
                break
            bytes_max -= len(self.batches[end])
            if end > first and bytes_max < 0:
                break
            end += 1
        return GroupPart(self.batches[first:end], self.end_offsets[end - 1] if end > first else Offset(offset))

    def index_of(self, offset: int) -> int:
        """Returns the index of the batch with the first record at or after `offset`."""
        return 0 if self.damage is not None else bisect_left(self.last_offsets, offset)

    def batch(self, index: int) -> bytes:
        if self.damage is not None:
            raise copy_of(self.damage)
        return self.batches[index]

    def max_timestamp(self, index: int) -> int:
        return self.location.group.max_timestamp if self.damage is not None else parse_header(self.batches[index]).max_timestamp

    def last_offset(self, index: int) -> Offset:
        return self.location.last_offset if self.damage is not None else self.last_offsets[index]

    def corrupt(self, index: int, why: str) -> Corrupt:
        """Returns the error for readers that can't open this batch, which names the bytes of the whole group."""
        return unreadable(self.location, why)


def group_of(location: RowGroupLocation, batches: Sequence[HistoryBatch]) -> CachedRowGroup:
    """`batches`: of all records of the group, in order."""
    group = CachedRowGroup(
        location,
        [batch.body for batch in batches],
        [batch.last_offset for batch in batches],
        [batch.end_offset for batch in batches],
    )
    assert group.last_offsets[-1] == location.last_offset, f"{location}, but the last batch ends at {group.last_offsets[-1]}"
    return group


def damaged_group(location: RowGroupLocation, error: Corrupt) -> CachedRowGroup:
    """Returns a damaged group. `error` is of the row group, or of its file's footer; readers learn where the group ends."""
    next_offset = location.last_offset + 1
    if error.details.get("next_offset") != next_offset:
        own = copy_of(error)
        own.hint = f"Read on from offset {next_offset}, or restore the object from a version or a backup of the bucket."
        own.details["next_offset"] = next_offset
        error = own
    return CachedRowGroup(location, [], [], [], error)
