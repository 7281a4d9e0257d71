"""The newest committed batches of the partitions led here, in memory. Pure.

Fed at commit, so whatever it serves is committed. Bounded in bytes over all partitions; the oldest commit goes first, wherever
it belongs. Invariant: what a partition has here is a run of offsets without a gap, that ends at its high watermark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from metadata.model import Offset, TopicPartition
from segments.object_store.interface import Buffer
from segments.wal.segment_file import StampedBatch

# Memory of the objects around a batch, beside its bytes.
BATCH_MEMORY_BYTES = 512


class _Window:
    """The batches of one partition, oldest first. Those before `first` were evicted; the lists drop them later."""

    __slots__ = ("base_offsets", "buffers", "first", "next_offset", "positions")

    def __init__(self, next_offset: Offset) -> None:
        self.base_offsets: list[Offset] = []
        # Two of each batch: its stamp, and the rest.
        self.buffers: list[Buffer] = []
        # Where each batch begins if all that were ever added are counted, and where the last one ends.
        self.positions = [0]
        self.first = 0
        self.next_offset = next_offset

    @property
    def size_bytes(self) -> int:
        return self.positions[-1] - self.positions[self.first]

    @property
    def batch_count(self) -> int:
        return len(self.base_offsets) - self.first

    def add(self, batch: StampedBatch) -> int:
        """Returns the bytes of the batch."""
        size_bytes = batch.size_bytes
        self.base_offsets.append(batch.base_offset)
        self.buffers += (batch.stamp, batch.rest)
        self.positions.append(self.positions[-1] + size_bytes)
        self.next_offset = Offset(batch.last_offset + 1)
        return size_bytes

    def drop_first(self) -> int:
        """Returns the bytes of the batch that is dropped."""
        first = self.first
        self.buffers[2 * first] = self.buffers[2 * first + 1] = b""
        size_bytes = self.positions[first + 1] - self.positions[first]
        self.first = first = first + 1
        if first > 64 and first * 2 > len(self.base_offsets):
            del self.base_offsets[:first], self.buffers[: 2 * first], self.positions[:first]
            self.first = 0
        return size_bytes

    def clear(self) -> None:
        self.base_offsets.clear()
        self.buffers.clear()
        self.positions = [0]
        self.first = 0


class HotBatches(NamedTuple):
    """Holds consecutive batches of the tail: two buffers of each, its stamp and the rest."""

    buffers: list[Buffer]
    size_bytes: int
    base_offset: Offset
    next_offset: Offset


class TailCache:
    """Keeps the newest committed batches of led partitions in memory."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._windows: dict[TopicPartition, _Window] = {}
        # The window of each batch, in the order of the commits. Entries of a dropped window stay until they are half of all.
        self._order: deque[tuple[TopicPartition, _Window]] = deque()
        self._left_in_order = 0

    def add(self, partition: TopicPartition, batches: list[StampedBatch]) -> None:
        """Takes in the batches of a committed run, which continue the partition's window."""
        window = self._windows.get(partition)
        if window is None:
            window = self._windows[partition] = _Window(batches[0].base_offset)
        assert batches[0].base_offset == window.next_offset, f"{partition}: {batches[0].base_offset} behind {window.next_offset}"
        entry = (partition, window)
        for batch in batches:
            self.bytes_used += window.add(batch) + BATCH_MEMORY_BYTES
            self._order.append(entry)
        while self.bytes_used > self.bytes_max:
            self._evict_one()

    def start_offset(self, partition: TopicPartition) -> Offset | None:
        """Returns the lowest cached offset of a partition; None if it has none."""
        window = self._windows.get(partition)
        return window.base_offsets[window.first] if window is not None else None

    def read(self, partition: TopicPartition, offset: int, *, bytes_max: int) -> HotBatches | None:
        """Returns whole batches from the one that holds `offset` on, at least one, or None when `offset` is not held."""
        window = self._windows.get(partition)
        if window is None or not window.base_offsets[window.first] <= offset < window.next_offset:
            return None
        base_offsets, positions = window.base_offsets, window.positions
        at = bisect_right(base_offsets, offset, lo=window.first) - 1
        end = max(at + 1, bisect_right(positions, positions[at] + bytes_max, lo=at) - 1)
        next_offset = base_offsets[end] if end < len(base_offsets) else window.next_offset
        return HotBatches(window.buffers[2 * at : 2 * end], positions[end] - positions[at], base_offsets[at], next_offset)

    def drop(self, partition: TopicPartition) -> None:
        """Forgets a partition that is no longer led here."""
        window = self._windows.pop(partition, None)
        if window is None:
            return
        self.bytes_used -= window.size_bytes + window.batch_count * BATCH_MEMORY_BYTES
        self._left_in_order += window.batch_count
        window.clear()
        if self._left_in_order * 2 > len(self._order):
            self._order = deque(entry for entry in self._order if entry[1].batch_count)
            self._left_in_order = 0

    def _evict_one(self) -> None:
        partition, window = self._order.popleft()
        if not window.batch_count:
            self._left_in_order -= 1
            return
        self.bytes_used -= window.drop_first() + BATCH_MEMORY_BYTES
        if not window.batch_count:
            del self._windows[partition]
