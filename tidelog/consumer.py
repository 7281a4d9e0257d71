"""Hands out the records of a topic: one batch decoded at a time, in the order of the offsets of each partition.

Invariant: each record from where it begins is handed out once. `positions` says how far, by what was handed out, not by what was
fetched ahead.

Consumer groups will stand on the same reader: what they add is which partitions, and where it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from metadata.errors import Corrupt, Rejected, TidelogError
from segments.record_batch import parse_header
from segments.record_columns import iterate_records
from tidelog.fetching import Fetching
from tidelog.owned_tasks import OwnedTasks
from tidelog.read_ahead import Fetched
from tidelog.records import Record


class Consumer:
    """What `log.consume` answers: iterate it, or take `chunk` after `chunk`. Leaving the loop, or its own `async with`, ends it."""

    def __init__(self, fetching: Fetching, tasks: OwnedTasks, *, topic: str) -> None:
        self.topic = topic
        self.positions: dict[int, int] = {}
        """By partition: the offset behind the last record that was handed out."""
        self._fetching = fetching
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        try:
            while records := await self.chunk():
                for record in records:
                    self.positions[record.partition] = record.offset + 1
                    yield record
                del records  # a chunk may be large: no two of them at once
        finally:
            await self.aclose()

    async def chunk(self) -> list[Record]:
        """The next records of one partition, at least one; empty at the end.

        Raises what ended the reading. What ended one partition is raised when nothing is left of the others (see `errors`).
        """
        if self._is_closed and not self._is_over:
            raise Rejected(f"this reader of {self.topic} was closed before its end", hint="Call consume again.")
        if self._task is None:
            self._task = self._start()
        while (fetched := await self._take()) is not None:
            if records := self._decode(fetched):
                self.positions[fetched.partition] = records[-1].offset + 1
                return records
        return []

    @property
    def errors(self) -> dict[int, TidelogError]:
        """By partition: why it is not read any further, while others are. It was logged as well.

        Corrupt (its `details` may name `next_offset`, where a reader may go on), OutOfRange, …
        """
        return self._fetching.errors

    async def aclose(self) -> None:
        """Stops reading ahead. No harm in calling it twice."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def close_soon(self) -> None:
        """The same without waiting, from any thread: what the garbage collector may call, wherever it runs."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # the loop has ended, and so has the task
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Forgotten without `aclose`: its task would hold what it has read ahead until the client is left."""
        self.close_soon()

    def _start(self) -> asyncio.Task[None]:
        reading = self._fetching.run()
        try:
            return self._tasks.start(reading, name=f"fetching for a consumer of {self.topic}")
        except RuntimeError as error:  # the client's task group takes no more
            reading.close()
            raise Rejected("the client is closed", hint="Read within `async with tidelog.connect(…) as log:`.") from error

    async def _take(self) -> Fetched | None:
        try:
            fetched = await self._fetching.take()
        except TidelogError:
            self._is_over = True
            raise
        self._is_over = fetched is None
        return fetched

    def _decode(self, fetched: Fetched) -> list[Record]:
        """Without records where the batch can't be decoded: that ends its partition."""
        topic, partition, start = self.topic, fetched.partition, fetched.start_offset
        try:
            rows = iterate_records(fetched.batch, decompressed_bytes_max=self._fetching.decompressed_bytes_max)
        except TidelogError as error:
            header = parse_header(fetched.batch)
            what = f"the batch at [{header.base_offset}, {header.last_offset + 1}) of {topic}/{partition} can't be decoded"
            self._fetching.fail(
                partition,
                Corrupt(
                    f"{what}: {error.message}",
                    hint=f"Read on from offset {header.last_offset + 1}, or run `tidelog bucket verify`.",
                    next_offset=header.last_offset + 1,
                ),
            )
            return []
        if fetched.end_offset is not None:
            rows = [row for row in rows if row[0] < fetched.end_offset]
        return [
            Record(topic, partition, offset, timestamp_ms, key, value, headers)
            for offset, timestamp_ms, key, value, headers in rows
            if offset >= start
        ]
