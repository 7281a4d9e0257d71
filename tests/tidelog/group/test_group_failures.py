"""What a member of a group commits when its caller fails with a record: the real consumer and reading, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metadata.group_member.member import GroupMember
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from tests.simulation.virtual_loop import run
from tidelog.consumer.fetcher import Chunk, Fetcher
from tidelog.consumer.subscription import Subscription
from tidelog.group.commits import OffsetCommitter
from tidelog.group.consumer import GroupConsumer
from tidelog.group.options import GroupOptions
from tidelog.group.positions import Offset
from tidelog.group.reader import GroupReader
from tidelog.group.start_offsets import CoordinatorCalls
from tidelog.records import Record
from tidelog.settings import ClientSettings
from tidelog.tasks import ClientTasks
from tidelog.transport.connection import Connection

P0 = ("orders", 0)


class Calls:
    """The group's coordinator, as far as it is asked."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartitionName, int] = {}

    async def commit(self, *who: object) -> dict[TopicPartitionName, Exception]:
        offsets = cast(Mapping[TopicPartitionName, Offset], who[-1])
        self.committed |= {partition: offset.offset for partition, offset in offsets.items()}
        return {}


class Chunks:
    """In place of fetching: chunks of three records of one partition, from offset 10 on."""

    def __init__(self) -> None:
        self._next_offset = 10

    async def chunk(self) -> Chunk:
        first, self._next_offset = self._next_offset, self._next_offset + 3
        return Chunk(P0, [Record("orders", 0, first + n, 0, None, None) for n in range(3)], 7)

    def drop(self, partitions: object) -> None:
        pass

    def end_with(self, error: object) -> None:
        pass


class Reading(GroupReader):
    """A member that owns the partition until its reading is stopped; then it commits and leaves, as the real one does."""

    def __init__(self, calls: Calls, options: GroupOptions) -> None:
        asked = cast(CoordinatorCalls, calls)
        super().__init__(
            cast(Connection, None),
            ClientSettings(),
            Subscription(("orders",)),
            asked,
            group="billing",
            options=options,
            follow=True,
            reset="earliest",
        )
        nothing = lambda: None  # noqa: E731
        member = SimpleNamespace(owned={P0}, generation=1, member_id="m-1", polls=nothing, polled=nothing, stop=nothing)
        self._member = cast(GroupMember, member)
        self.fetching = cast(Fetcher, Chunks())
        self.commits = OffsetCommitter(asked, self._member, self.positions, group="billing", options=options, patience_s=1.0)
        self.positions.begin(P0, "id", 10, committed=10)

    async def run(self) -> None:
        await self._stop_member()


def committed_after(read: Callable[[GroupConsumer], Awaitable[None]], **options: Any) -> int | None:
    """What is committed when `read` has failed and its consumer is closed."""
    calls = Calls()

    async def main() -> None:
        async with ClientTasks() as tasks:
            reading = Reading(calls, GroupOptions(member=MemberSettings(), **options))
            await read(GroupConsumer(reading, tasks, {}, close_s=5.0))

    run(main(), seed=1)
    return calls.committed.get(P0)


async def fail_within_a_block(consumer: GroupConsumer, at_offset: int) -> None:
    with suppress(KeyError):
        async with consumer:
            async for record in consumer:
                if record.offset == at_offset:
                    raise KeyError("processing failed")


async def fail_within_a_loop(consumer: GroupConsumer, at_offset: int) -> None:
    """The generator is closed as soon as nothing refers to it, and the consumer with it."""
    records = cast(Any, consumer.__aiter__())
    with suppress(KeyError):
        try:
            async for record in records:
                if record.offset == at_offset:
                    raise KeyError("processing failed")
        finally:
            await records.aclose()


@pytest.mark.parametrize("fail", [fail_within_a_block, fail_within_a_loop])
@pytest.mark.parametrize("at_offset", [11, 12, 13, 14])
def test_a_record_whose_processing_failed_is_not_committed_and_those_before_it_are(
    fail: Callable[[GroupConsumer, int], Awaitable[None]], at_offset: int
) -> None:
    assert committed_after(lambda consumer: fail(consumer, at_offset)) == at_offset


@pytest.mark.parametrize("fail", [fail_within_a_block, fail_within_a_loop])
def test_nothing_is_committed_where_the_first_record_failed(fail: Callable[[GroupConsumer, int], Awaitable[None]]) -> None:
    assert committed_after(lambda consumer: fail(consumer, 10)) is None


def test_a_cancelled_reader_does_not_commit_the_record_in_its_hands() -> None:
    async def read(consumer: GroupConsumer) -> None:
        async def work() -> None:
            async with consumer:
                async for record in consumer:
                    if record.offset == 12:
                        await asyncio.sleep(3_600)

        working = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        working.cancel()
        await asyncio.wait((working,))

    assert committed_after(read) == 12


def test_a_chunk_whose_processing_failed_is_not_committed() -> None:
    async def read(consumer: GroupConsumer) -> None:
        with suppress(KeyError):
            async with consumer:
                await consumer.chunk()
                await consumer.chunk()
                raise KeyError("processing failed")

    assert committed_after(read) == 13


def test_a_block_that_ends_well_commits_the_record_in_hand_and_none_does_without_auto_commit() -> None:
    async def read(consumer: GroupConsumer) -> None:
        async with consumer:
            async for record in consumer:
                if record.offset == 12:
                    break

    assert committed_after(read) == 13
    assert committed_after(read, auto_commit=False) is None
