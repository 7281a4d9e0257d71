"""The newest committed batches of the partitions led here, in memory. Pure.

Fed at commit, so whatever it serves is committed. Bounded in bytes over all partitions; the oldest commit goes first, wherever
it belongs. Invariant: what a partition has here is a run of offsets without a gap, that ends at its high watermark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from metadata.model import Offset, TopicPartition
from segments.wal.segment_file import StampedBatch

# Memory of the objects around a batch, beside its bytes.
BATCH_MEMORY_BYTES = 512


class _Window:
    """The batches of one partition by base offset, oldest first. Offsets before `first` were evicted; they leave the list later."""

    __slots__ = ("base_offsets", "batches", "first")

    def __init__(self) -> None:
        self.base_offsets: list[Offset] = []
        self.batches: dict[Offset, StampedBatch] = {}
        self.first = 0

    def drop_first(self) -> StampedBatch:
        batch = self.batches.pop(self.base_offsets[self.first])
        self.first += 1
        if self.first > 64 and self.first * 2 > len(self.base_offsets):
            del self.base_offsets[: self.first]
            self.first = 0
        return batch


class HotBatches(NamedTuple):
    """Holds consecutive batches of the tail, and the offset behind them."""

    batches: list[StampedBatch]
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
            window = self._windows[partition] = _Window()
        place = (partition, window)
        for batch in batches:
            window.batches[batch.base_offset] = batch
            window.base_offsets.append(batch.base_offset)
            self._order.append(place)
            self.bytes_used += batch.size_bytes + BATCH_MEMORY_BYTES
        while self.bytes_used > self.bytes_max:
            self._evict_one()

    def start_offset(self, partition: TopicPartition) -> Offset | None:
        """Returns the lowest cached offset of a partition; None if it has none."""
        window = self._windows.get(partition)
        return window.base_offsets[window.first] if window is not None else None

    def read(self, partition: TopicPartition, offset: int, *, bytes_max: int) -> HotBatches | None:
        """Whole batches from the one that holds `offset` on, at least one, or None when `offset` is not held."""
        window = self._windows.get(partition)
        if window is None or offset < window.base_offsets[window.first]:
            return None
        at = bisect_right(window.base_offsets, offset, lo=window.first) - 1
        if offset > window.batches[window.base_offsets[at]].last_offset:
            return None
        taken: list[StampedBatch] = []
        for place in range(at, len(window.base_offsets)):
            batch = window.batches[window.base_offsets[place]]
            if taken and batch.size_bytes > bytes_max:
                break
            taken.append(batch)
            bytes_max -= batch.size_bytes
        return HotBatches(taken, Offset(taken[-1].last_offset + 1))

    def drop(self, partition: TopicPartition) -> None:
        """Forgets a partition that is no longer led here."""
        window = self._windows.pop(partition, None)
        if window is None:
            return
        self.bytes_used -= sum(batch.size_bytes + BATCH_MEMORY_BYTES for batch in window.batches.values())
        self._left_in_order += len(window.batches)
        window.batches.clear()
        if self._left_in_order * 2 > len(self._order):
            self._order = deque(entry for entry in self._order if entry[1].batches)
            self._left_in_order = 0

    def _evict_one(self) -> None:
        partition, window = self._order.popleft()
        if not window.batches:
            self._left_in_order -= 1
            return
        self.bytes_used -= window.drop_first().size_bytes + BATCH_MEMORY_BYTES
        if not window.batches:
            del self._windows[partition]
