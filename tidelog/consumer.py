"""Hands out the records of a topic: one batch decoded at a time, in the order of the offsets of each partition.

Invariant: each record from where it begins is handed out once. `positions` says how far, by what was handed out, not by what was
fetched ahead.

Consumer groups will stand on the same reader: what they add is which partitions, and where it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from segments.record_columns import iterate_records
from tidelog.fetching import Fetched, Fetching
from tidelog.owned_tasks import OwnedTasks
from tidelog.records import Record
from tidelog.settings import MIB

DECOMPRESSED_BYTES_MAX = 64 * MIB
"""Of one batch: the broker's own bound."""


class Consumer:
    """What `log.consume` answers: iterate it, or take `chunk` after `chunk`. Leaving the loop ends the reading."""

    def __init__(self, fetching: Fetching, tasks: OwnedTasks, *, topic: str) -> None:
        self.topic = topic
        self.positions: dict[int, int] = {}
        """By partition: the offset behind the last record that was handed out."""
        self._fetching = fetching
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        try:
            while records := await self.chunk():
                for record in records:
                    self.positions[record.partition] = record.offset + 1
                    yield record
        finally:
            await self.aclose()

    async def chunk(self) -> list[Record]:
        """The next records of one partition, at least one; empty at the end. Raises what ended the reading."""
        if self._task is None:
            self._task = self._tasks.start(self._fetching.run(), name=f"fetching for a consumer of {self.topic}")
        while (fetched := await self._fetching.take()) is not None:
            if records := self._decode(fetched):
                self.positions[fetched.partition] = records[-1].offset + 1
                return records
        return []

    async def aclose(self) -> None:
        """Stops reading ahead. No harm in calling it twice."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _decode(self, fetched: Fetched) -> list[Record]:
        topic, partition, start = self.topic, fetched.partition, fetched.start_offset
        rows = iterate_records(fetched.batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        if fetched.end_offset is not None:
            rows = [row for row in rows if row[0] < fetched.end_offset]
        return [
            Record(topic, partition, offset, timestamp_ms, key, value, headers)
            for offset, timestamp_ms, key, value, headers in rows
            if offset >= start
        ]
