"""The bytes of one run, read back from the bucket: which of its batches are as they were written. Pure.

    run        [ batch ][ batch ][ damaged ][ damaged ][ batch ]
    offsets      0  1     2  3      4  5       6  7      8  9        at 4 to 7: Corrupt, which names offset 8; all others are read

Each batch's length leads to the next one, until one is damaged; those behind it are found by the segment's footer, or not at all
where that is damaged too. Invariant: what is answered has a right CRC-32C, and the offsets and the epoch that the footer gave,
which no CRC of a batch covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from metadata.errors import Corrupt, InvalidRecord
from metadata.model import Offset
from segments.history.index import RowGroupLocation
from segments.object_store.interface import Buffer
from segments.records.batch import corrupt_range, parse_header, parse_whole
from segments.records.batch_kernel import sound_batches
from segments.records.header import BatchHeader
from segments.wal.run_index import RunLocation
from segments.wal.segment_file import BatchEntry

# Memory of the two positions of a batch, beside its bytes.
BATCH_INDEX_BYTES: Final = 80


class RunDamage(NamedTuple):
    """Describes a damaged batch."""

    why: str
    # Newest timestamp of its records, by the footer.
    max_timestamp: int


class RunPart(NamedTuple):
    """Holds consecutive whole batches, and the offset behind them."""

    body: Buffer
    next_offset: Offset


class CachedRun(NamedTuple):
    """Holds one run in memory, with the positions of its batches."""

    location: RunLocation
    body: memoryview
    # Base offsets of its batches, in order. Adjacent damaged ones without known positions count as one.
    base_offsets: list[Offset]
    # Where each batch begins in `body`, and where the last one ends.
    starts: list[int]
    # Damage by the batch's index.
    damaged: dict[int, RunDamage]

    @property
    def memory_bytes(self) -> int:
        return len(self.body) + len(self.starts) * BATCH_INDEX_BYTES

    @property
    def batch_count(self) -> int:
        return len(self.base_offsets)

    def read(self, offset: int, *, bytes_max: int) -> RunPart:
        """Returns the undamaged batches from the one that holds `offset` on, up to `bytes_max` bytes but at least one.

        Raises Corrupt when that one is damaged. A small part of a large run is a copy, so that an answer holds no more than twice
        its own bytes in memory, however long its reader takes.
        """
        first = self.index_of(offset)
        if first in self.damaged:
            raise self.damage_at(first)
        end = max(first + 1, bisect_right(self.starts, self.starts[first] + bytes_max) - 1)
        end = min((index for index in self.damaged if first < index < end), default=end)
        part = self.body[self.starts[first] : self.starts[end]]
        return RunPart(part if 2 * len(part) >= len(self.body) else bytes(part), self._offset_of(end))

    def index_of(self, offset: int) -> int:
        """Returns the index of the batch that holds `offset`."""
        return bisect_right(self.base_offsets, offset) - 1

    def batch(self, index: int) -> memoryview:
        """Raises Corrupt where it is damaged."""
        if index in self.damaged:
            raise self.damage_at(index)
        return self.body[self.starts[index] : self.starts[index + 1]]

    def max_timestamp(self, index: int) -> int:
        damage = self.damaged.get(index)
        return parse_header(self.body, self.starts[index]).max_timestamp if damage is None else damage.max_timestamp

    def last_offset(self, index: int) -> Offset:
        return Offset(self._offset_of(index + 1) - 1)

    def damage_at(self, index: int) -> Corrupt:
        """Tells of the damaged batch and of those that follow it up to the next sound one, where a reader may go on."""
        end = index + 1
        while end in self.damaged:
            end += 1
        return self.corrupt(index, self.damaged[index].why, end=end)

    def corrupt(self, index: int, why: str, *, end: int | None = None) -> Corrupt:
        """Returns the error for readers of this batch, or of those up to the batch `end`. `details`: see corrupt_range."""
        end = index + 1 if end is None else end
        offsets = range(self.base_offsets[index], self._offset_of(end))
        start = self.location.start
        return corrupt_range(self.location.key, offsets, range(start + self.starts[index], start + self.starts[end]), why)

    def _offset_of(self, index: int) -> Offset:
        return self.base_offsets[index] if index < len(self.base_offsets) else Offset(self.location.last_offset + 1)


def unreadable(location: RunLocation | RowGroupLocation, why: str) -> Corrupt:
    """Returns the error for readers of the run, or of the row group. `details`: see corrupt_range."""
    return corrupt_range(
        location.key, range(location.base_offset, location.last_offset + 1), range(location.start, location.end), why
    )


def open_run(body: bytes, location: RunLocation) -> CachedRun:
    """Opens a run by the headers of its batches. From the first damaged batch on the run is one hole; see `open_by_footer`."""
    base_offsets, starts = sound_batches(body, location.base_offset, location.last_offset, location.leader_epoch)
    run = CachedRun(location, memoryview(body), cast(list[Offset], base_offsets), starts, {})
    at = starts[-1]
    expected = location.base_offset if not base_offsets else Offset(parse_header(body, starts[-2]).last_offset + 1)
    try:  # there is nothing left of a sound run
        while expected <= location.last_offset:
            header = _sound(run.body[at : at + parse_header(run.body, at).size], location, expected)
            run.base_offsets.append(expected)
            at += header.size
            run.starts.append(at)
            expected = Offset(header.last_offset + 1)
    except InvalidRecord as error:
        run.damaged[len(run.base_offsets)] = RunDamage(error.message, location.max_timestamp)
        run.base_offsets.append(expected)
        run.starts.append(location.end - location.start)
    return run


def open_by_footer(body: bytes, location: RunLocation, entries: Sequence[BatchEntry]) -> CachedRun:
    """Opens a run by the batches that the segment's footer lists, so that each batch is sound or damaged by itself.

    Raises Corrupt if the footer lists other batches than those of this run.
    """
    if not _fill(entries, location):
        raise unreadable(location, "the footer does not tell of this run")
    run = CachedRun(location, memoryview(body), [], [0], {})
    for index, entry in enumerate(entries):
        start, end = entry.start - location.start, entry.start - location.start + entry.size_bytes
        try:
            header = _sound(run.body[start:end], location, entry.base_offset)
            if (header.last_offset, header.crc) != (entry.last_offset, entry.crc):
                raise InvalidRecord("there is another batch than the footer tells of")
        except InvalidRecord as error:
            run.damaged[index] = RunDamage(error.message, entry.max_timestamp)
        run.base_offsets.append(entry.base_offset)
        run.starts.append(end)
    return run


def _fill(entries: Sequence[BatchEntry], location: RunLocation) -> bool:
    """Returns whether these batches fill the run from its beginning to its end, in bytes and in offsets."""
    at, offset = location.start, location.base_offset
    for entry in entries:
        if (entry.start, entry.base_offset) != (at, offset) or entry.last_offset < entry.base_offset:
            return False
        at, offset = at + entry.size_bytes, Offset(entry.last_offset + 1)
    return (at, offset) == (location.end, location.last_offset + 1)


def _sound(batch: memoryview, location: RunLocation, base_offset: Offset) -> BatchHeader:
    """Returns the header of a batch that is as it was written; InvalidRecord otherwise."""
    header = parse_whole(batch)
    if header.base_offset != base_offset:
        raise InvalidRecord(f"the batch says offset {header.base_offset} where {base_offset} comes next")
    if not base_offset <= header.last_offset <= location.last_offset:
        raise InvalidRecord(f"the batch goes to offset {header.last_offset}, beyond its run")
    if header.leader_epoch != location.leader_epoch:
        raise InvalidRecord(f"the batch says leader epoch {header.leader_epoch}, its run {location.leader_epoch}")
    return header
