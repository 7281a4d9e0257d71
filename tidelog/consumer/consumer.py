"""Hands out the records of topics: one batch decoded at a time, in the order of the offsets of each partition.

Invariant: each record from where it begins is handed out once. `positions` says how far, by what was handed out, not by what was
fetched ahead.

Members of consumer groups stand on the same fetching (group/consumer.py): what they add is which partitions, and where each begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from metadata.errors import Rejected, TidelogError
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer.topic_reader import TopicReader
from tidelog.records import Record
from tidelog.tasks import ClientTasks

# How partitions are named: by number where one topic is read, else by topic and number.
PartitionKey = TypeVar("PartitionKey")


class Reader(Generic[PartitionKey]):
    """Reads records; `log.consume` returns it. Iterate it, or call `chunk`. Leaving the loop, or its `async with`, ends it."""

    def __init__(self, reading: TopicReader, tasks: ClientTasks) -> None:
        # Offset behind the last record handed out, by partition.
        self.positions: dict[PartitionKey, int] = {}
        self._what = str(reading.subscription)
        self._reading = reading
        self._fetching = reading.fetching
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_closed = False

    def key_of(self, partition: TopicPartitionName) -> PartitionKey:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        try:
            while records := await self.chunk():
                key = self.key_of((records[0].topic, records[0].partition))
                for record in records:
                    self.positions[key] = record.offset + 1
                    yield record
                del records  # a chunk may be large: no two of them at once
        finally:
            await self.aclose()

    async def chunk(self) -> list[Record]:
        """Returns the next records of one partition, at least one; empty at the end.

        Raises what ended the reading. What ended one partition is raised when nothing is left of the others (see `errors`).
        """
        if self._is_closed and not self._is_over:
            raise Rejected(f"this reader of {self._what} was closed before its end", hint="Call consume again.")
        if self._task is None:
            self._task = self._start()
        try:
            chunk = await self._fetching.chunk()
        except TidelogError:
            self._is_over = True
            raise
        if chunk is None:
            self._is_over = True
            return []
        self.positions[self.key_of(chunk.partition)] = chunk.records[-1].offset + 1
        return chunk.records

    @property
    def errors(self) -> dict[PartitionKey, TidelogError]:
        """Returns, by partition, the error that stopped its reading while others go on. It was logged as well.

        Corrupt (its `details` may name `next_offset`, where a reader may go on), OutOfRange, …
        """
        return {self.key_of(partition): error for partition, error in self._fetching.errors.items()}

    async def aclose(self) -> None:
        """Stops reading ahead. No harm in calling it twice."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def close_soon(self) -> None:
        """Closes without waiting, from any thread: the garbage collector may call it."""
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
        """Stops a reader that was dropped without `aclose`: its task would hold its read-ahead until the client is left."""
        self.close_soon()

    def _start(self) -> asyncio.Task[None]:
        reading = self._reading.run()
        try:
            return self._tasks.start(reading, name=f"fetching for a consumer of {self._what}")
        except RuntimeError as error:  # the client's task group takes no more
            reading.close()
            raise Rejected("the client is closed", hint="Read within `async with tidelog.connect(…) as log:`.") from error


class Consumer(Reader[int]):
    """A reader of one topic. Its partitions are keyed by number."""

    def __init__(self, reading: TopicReader, tasks: ClientTasks) -> None:
        super().__init__(reading, tasks)
        self.topic = reading.subscription.names[0]

    def key_of(self, partition: TopicPartitionName) -> int:
        return partition[1]


class TopicsConsumer(Reader[TopicPartitionName]):
    """A reader of several topics or of a pattern. Its partitions are keyed by (topic, number)."""

    def key_of(self, partition: TopicPartitionName) -> TopicPartitionName:
        return partition
