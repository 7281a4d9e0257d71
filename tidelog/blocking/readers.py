"""Provides the blocking readers: they hand out in the caller's thread what the client's thread reads.

Callbacks of a member of a group run in threads of their own, so that they may use the client, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, overload

from metadata.errors import InvalidArgument, TidelogError
from metadata.groups.assignors import TopicPartitionName
from tidelog.blocking.thread import ClientThread, blocking, in_loop
from tidelog.consumer.consumer import Consumer, PartitionKey, Reader, TopicsConsumer
from tidelog.group.consumer import GroupConsumer
from tidelog.records import Record

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost")


class BlockingReader(Generic[PartitionKey]):
    """Iterate it. Leaving the loop, or its own `with`, ends the reading."""

    def __init__(self, thread: ClientThread, original: Reader[PartitionKey]) -> None:
        self._thread = thread
        self._original = original
        self.positions = original.positions

    chunk = blocking(Reader.chunk)

    @property
    def errors(self) -> dict[PartitionKey, TidelogError]:
        """Returns, by partition, the error that stopped its reading while others go on. It was logged as well."""
        return self._original.errors

    def __iter__(self) -> Iterator[Record]:
        try:
            while records := self.chunk():
                key = self._original.key_of((records[0].topic, records[0].partition))
                for record in records:
                    self.positions[key] = record.offset + 1
                    yield record
                del records  # a chunk may be large: no two of them at once
        finally:
            self._original.close_soon()  # a forgotten loop ends here too, in whatever thread: it must not wait

    def close(self) -> None:
        """Stops reading ahead. No harm in calling it twice."""
        if self._thread.is_running:
            self._thread.wait_for(self._original.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class BlockingConsumer(BlockingReader[int]):
    """A blocking reader of one topic. Its partitions are keyed by number."""

    def __init__(self, thread: ClientThread, original: Consumer) -> None:
        super().__init__(thread, original)
        self.topic = original.topic


class BlockingTopicsConsumer(BlockingReader[TopicPartitionName]):
    """A blocking reader of several topics or of a pattern. Its partitions are keyed by (topic, number)."""


class BlockingGroupConsumer:
    """The blocking twin of GroupConsumer, which documents when records count as processed and when it leaves its group."""

    def __init__(self, thread: ClientThread, original: GroupConsumer) -> None:
        self._thread = thread
        self._original = original
        self.group = original.group
        self._has_block = False

    chunk = blocking(GroupConsumer.chunk)
    commit = blocking(GroupConsumer.commit)
    committed = blocking(GroupConsumer.committed)
    assignment = blocking(in_loop(GroupConsumer.assignment))
    lag = blocking(in_loop(GroupConsumer.lag))
    pause = blocking(in_loop(GroupConsumer.pause))
    resume = blocking(in_loop(GroupConsumer.resume))
    paused = blocking(in_loop(GroupConsumer.paused))
    seek = blocking(in_loop(GroupConsumer.seek))

    @property
    def positions(self) -> dict[TopicPartitionName, int]:
        """Returns, by partition that is read, the offset of the next record to be handed out."""

        async def read() -> dict[TopicPartitionName, int]:
            return self._original.positions

        return self._thread.wait_for(read)

    @property
    def member_id(self) -> str:
        return self._original.member_id

    @property
    def generation(self) -> int:
        return self._original.generation

    @property
    def errors(self) -> dict[TopicPartitionName, TidelogError]:
        """Returns, by partition, the error that stopped its reading while others go on. It was logged as well."""
        return self._original.errors

    def __iter__(self) -> Iterator[Record]:
        try:
            while (hand := self._thread.wait_for(self._original.take)) is not None:
                for record in hand.records:  # which is emptied, from the client's thread, where nothing more may be handed out
                    hand.next_offset = record.offset + 1
                    yield record
                del hand  # it may be large: no two of them at once
        finally:
            if not self._has_block:
                self._original.close_soon()  # a forgotten loop ends here too, in whatever thread: it must not wait

    def close(self) -> None:
        """Commits what was processed, and leaves the group; what is in the caller's hands comes again. No harm in a second call."""
        self._close(hand_is_processed=False)

    def __enter__(self) -> Self:
        self._has_block = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close(hand_is_processed=error is None)

    def _close(self, *, hand_is_processed: bool) -> None:
        if self._thread.is_running:
            self._thread.wait_for(partial(self._original.close, hand_is_processed=hand_is_processed))


@overload
def reader_twin(thread: ClientThread, original: Consumer) -> BlockingConsumer: ...


@overload
def reader_twin(thread: ClientThread, original: TopicsConsumer) -> BlockingTopicsConsumer: ...


@overload
def reader_twin(thread: ClientThread, original: GroupConsumer) -> BlockingGroupConsumer: ...


def reader_twin(
    thread: ClientThread, original: Consumer | TopicsConsumer | GroupConsumer
) -> BlockingConsumer | BlockingTopicsConsumer | BlockingGroupConsumer:
    match original:
        case Consumer():
            return BlockingConsumer(thread, original)
        case TopicsConsumer():
            return BlockingTopicsConsumer(thread, original)
    return BlockingGroupConsumer(thread, original)


def with_callbacks_in_threads(options: dict[str, Any]) -> dict[str, Any]:
    """Makes callbacks run in threads. Raises InvalidArgument for a coroutine function, which would never be awaited."""
    for name in CALLBACKS:
        if inspect.iscoroutinefunction(options.get(name)):
            raise InvalidArgument(
                f"{name} is an async function, and this client blocks", hint="Give a plain one: def, not async def."
            )
    return options | {name: _in_thread(options[name]) for name in CALLBACKS if options.get(name) is not None}


def _in_thread(callback: Callable[[list[TopicPartitionName]], None]) -> Callable[[list[TopicPartitionName]], Awaitable[None]]:
    async def call(partitions: list[TopicPartitionName]) -> None:
        await asyncio.to_thread(callback, partitions)

    return call
