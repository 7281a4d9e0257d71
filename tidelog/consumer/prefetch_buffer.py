"""Buffers fetched answers for their reader, whole and in the order of arrival, within a bound of bytes.

    room ──▶ a fetch is under way ──▶ put ──▶ take, batch after batch ──▶ the answer's bytes are free
       ╰──────────────── counted against bytes_max ────────────────╯

Invariant: bytes are counted as long as they are in memory. That is until the last batch of an answer was taken, since its batches
are views of it; and there are no objects of batches before they are taken, so that small batches cost no more than large ones. What
is counted passes `bytes_max` only by what an answer has above the room that was asked for it: a batch that alone is larger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from metadata.groups.assignors import TopicPartitionName
from segments.records.batch import parse_header


class Fetched(NamedTuple):
    """A batch to be decoded. Records below `start_offset`, or from `end_offset` on, were not asked for."""

    partition: TopicPartitionName
    batch: memoryview
    start_offset: int
    end_offset: int | None


class FetchedBatches:
    """The batches of one partition from one answer, of which some may be taken already."""

    def __init__(self, partition: TopicPartitionName, batches: bytes, *, start_offset: int, end_offset: int | None) -> None:
        """Holds whole batches, joined; at least one of them holds records of [start_offset, end_offset)."""
        self.partition = partition
        self._batches = memoryview(batches)
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._taken_bytes = 0

    @property
    def size_bytes(self) -> int:
        return len(self._batches)

    @property
    def is_spent(self) -> bool:
        return self._taken_bytes == len(self._batches)

    def take(self) -> Fetched:
        start = self._taken_bytes
        self._taken_bytes += parse_header(self._batches, start).size
        return Fetched(self.partition, self._batches[start : self._taken_bytes], self._start_offset, self._end_offset)


class PrefetchBuffer:
    """A bounded buffer of fetched answers."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._answers: deque[FetchedBatches] = deque()
        self._bytes_held = 0
        # Bytes reserved for fetches in flight.
        self._bytes_expected = 0
        self._arrived = asyncio.Event()
        self._freed = asyncio.Event()
        self._is_over = False
        self._error: Exception | None = None

    @property
    def bytes_counted(self) -> int:
        return self._bytes_held + self._bytes_expected

    @asynccontextmanager
    async def room(self, bytes_count: int) -> AsyncIterator[None]:
        """Waits until there is room for an answer of so many bytes, and keeps it for the block that fetches and puts it."""
        while self.bytes_counted and self.bytes_counted + bytes_count > self._bytes_max:
            self._freed.clear()
            await self._freed.wait()
        self._bytes_expected += bytes_count
        try:
            yield
        finally:
            self._bytes_expected -= bytes_count
            self._freed.set()

    def put(self, answer: FetchedBatches) -> None:
        self._answers.append(answer)
        self._bytes_held += answer.size_bytes
        self._arrived.set()

    async def take(self) -> Fetched | None:
        """Takes the next batch; None at the end. Raises the error of the fetching, after what arrived before it."""
        while not self._answers:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._is_over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        answer = self._answers[0]
        fetched = answer.take()
        if answer.is_spent:
            self._answers.popleft()
            self._free(answer)
        return fetched

    def drop(self, partition: TopicPartitionName) -> None:
        """Forgets what waits of a partition: it is not read any further, or from elsewhere."""
        for answer in [answer for answer in self._answers if answer.partition == partition]:
            self._answers.remove(answer)
            self._free(answer)

    def end(self, error: Exception | None) -> None:
        """Ends the buffer. Only the first call counts."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._arrived.set()

    def _free(self, answer: FetchedBatches) -> None:
        self._bytes_held -= answer.size_bytes
        self._freed.set()
