"""A consumer group of SDK members in a chaos run. That over plain HTTP is in group_http_members.py.

    one of MEMBERS ─▶ a life ─▶ it leaves, or is dropped: as if its process were gone ─▶ another life, under another name ─▶ …

Until `enough` is set; then live members stay, and read on. Each life takes records in one of three ways, all of which commit
what was processed and no more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from metadata.errors import OutcomeUnknown, StaleMember, TidelogError, Unavailable
from metadata.groups.assignors import TopicPartitionName
from tests.chaos.history import Assigned, Committed, GaveUp, HandedOut, History, Lived, Processed, Unexpected
from tests.chaos.workload import CONNECT_AGAIN_S, TOPIC, value_of
from tidelog.client import Client, connect
from tidelog.group.consumer import GroupConsumer
from tidelog.records import Record

GROUP: Final = "sdk-group"
MEMBERS: Final = 3
# A group of members that are dropped about as often as sessions take to end does nothing but rebalance.
LIFE_S: Final = (10.0, 50.0)
DROPPED_CHANCE: Final = 0.3
SESSION_TIMEOUT_MS: Final = 6_000
MAX_POLL_INTERVAL_MS: Final = 20_000
AUTO_COMMIT_INTERVAL_MS: Final = 500.0
# The longest that a caller works on a chunk.
WORK_S: Final = 0.05


class SdkMember:
    """One life after the other. `run` until it is cancelled."""

    def __init__(self, name: str, addresses: Sequence[str], history: History, *, seed: int, enough: asyncio.Event) -> None:
        self.name = name
        self._addresses = addresses
        self._history = history
        self._rng = random.Random(seed)
        self._enough = enough

    async def run(self) -> None:
        ways = (_by_hand, _whole_chunks, _record_by_record)
        lives = self._rng.randrange(len(ways))
        while True:
            member = f"{self.name}.{lives}"
            try:
                await self._live(member, ways[lives % len(ways)])
            except TidelogError as error:
                self._history.add(Unexpected(self._history.now_s, member, f"{error.code}: {error.message}"))
                await asyncio.sleep(CONNECT_AGAIN_S)
            lives += 1

    async def _live(self, member: str, way: Callable[[_Caller], Coroutine[Any, Any, None]]) -> None:
        async with AsyncExitStack() as parts:
            try:
                log = await parts.enter_async_context(connect(*self._addresses))
            except Unavailable:  # no broker answers
                await asyncio.sleep(CONNECT_AGAIN_S)
                return
            caller = _Caller(member, self._history, self._rng)
            caller.consumer = consumer = _consumer(log, member, caller, auto_commit=way is not _by_hand)
            began_s, dropped = self._history.now_s, False
            reading = asyncio.create_task(way(caller), name=f"caller of {member}")
            try:
                await self._end_of_life(reading)
                if self._rng.random() < DROPPED_CHANCE:
                    dropped = True
                    drop(consumer)
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
                await consumer.aclose()
                self._history.add(Lived(self._history.now_s, began_s, GROUP, member, dropped))
            if not reading.cancelled():
                reading.result()

    async def _end_of_life(self, reading: asyncio.Task[None]) -> None:
        """Or of its reading, which only an error ends; without end where all is quiet."""
        await asyncio.wait((reading,), timeout=self._rng.uniform(*LIFE_S))
        if self._enough.is_set():
            await asyncio.wait((reading,))


def _consumer(log: Client, member: str, caller: _Caller, *, auto_commit: bool) -> GroupConsumer:
    return log.consume(
        TOPIC,
        group=GROUP,
        auto_commit=auto_commit,
        auto_commit_interval_ms=AUTO_COMMIT_INTERVAL_MS,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
        client_id=member,
        on_assigned=caller.assigned,
        on_revoked=caller.gave_up,
        on_lost=caller.gave_up,
    )


def drop(consumer: GroupConsumer) -> None:
    """Stops a member as if its process were gone: without a commit, and without a message to its group."""
    if consumer._task is not None:
        consumer._task.cancel()


class _Caller:
    """Takes the records of one member, and notes them in the history."""

    consumer: GroupConsumer

    def __init__(self, member: str, history: History, rng: random.Random) -> None:
        self._member = member
        self._history = history
        self._rng = rng
        self.next_offsets: dict[int, int] = {}
        """Behind what was processed, of what it owns."""

    # ── called by the consumer ──

    def assigned(self, partitions: list[TopicPartitionName]) -> None:
        self._history.add(Assigned(self._history.now_s, GROUP, self._member, self._generation, _numbers(partitions)))

    def gave_up(self, partitions: list[TopicPartitionName]) -> None:
        for number in _numbers(partitions):
            self.next_offsets.pop(number, None)
        self._history.add(GaveUp(self._history.now_s, GROUP, self._member, _numbers(partitions)))

    @property
    def _generation(self) -> int:
        return self.consumer._reading._member.generation

    # ── what it does ──

    async def work_on(self, records: Sequence[Record], *, busy: bool) -> None:
        """One or more of one partition."""
        partition, found = records[0].partition, tuple((record.offset, value_of(record.value or b"")) for record in records)
        self._history.add(HandedOut(self._history.now_s, GROUP, self._member, self._generation, partition, found))
        if busy:
            await asyncio.sleep(self._rng.uniform(0.0, WORK_S))
        self._history.add(Processed(self._history.now_s, GROUP, self._member, partition, found[-1][0] + 1))
        if self.consumer._reading.owns((TOPIC, partition)):
            self.next_offsets[partition] = found[-1][0] + 1

    async def commit(self) -> None:
        """All that was processed. What can't be committed now is, with what comes next, or somebody gets it again."""
        asked = dict(self.next_offsets)
        try:
            await self.consumer.commit()
        except (Unavailable, OutcomeUnknown, StaleMember):
            return
        acknowledged = tuple(
            (partition, offset) for partition, offset in asked.items() if self.next_offsets.get(partition) == offset
        )
        self._history.add(Committed(self._history.now_s, GROUP, self._member, acknowledged))


async def _by_hand(caller: _Caller) -> None:
    while True:
        await caller.work_on(await caller.consumer.chunk(), busy=True)
        await caller.commit()


async def _whole_chunks(caller: _Caller) -> None:
    while True:
        await caller.work_on(await caller.consumer.chunk(), busy=True)


async def _record_by_record(caller: _Caller) -> None:
    async for record in caller.consumer:
        await caller.work_on((record,), busy=False)


def _numbers(partitions: Sequence[TopicPartitionName]) -> tuple[int, ...]:
    return tuple(number for _, number in partitions)
