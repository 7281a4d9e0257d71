"""A hundred members of one consumer group, each a whole one (metadata/group_member/member.py) with connections of its own, who read
nothing: how long it takes until all know what they own, and what is taken from whom. Runs in the client's process (load.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import uvloop

from metadata.errors import TidelogError
from metadata.group_member.member import GroupMember
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION, Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from tidelog.group.coordinator_client import GrpcCoordinatorClient
from tidelog.settings import ClientSettings
from tidelog.tasks import ClientTasks, gather_all
from tidelog.transport.connection import Connection

STABLE_S_MAX = 60.0
OPENED_AT_ONCE = 10
# Which member, by its number.
Owners = dict[TopicPartitionName, int]


class Settled(NamedTuple):
    """What came of one change of the members."""

    # Until all members knew what they own.
    from_change_s: float
    # From when the last JoinGroup was sent.
    from_last_join_s: float
    # Partitions whose owner is another one than before, or is gone.
    moved: int
    # Of those that did not move, how many were revoked or lost on the way.
    stopped: int


class Round(NamedTuple):
    started: Settled
    left: Settled
    came: Settled


class _Calls:
    """A member's calls, which tell when they were made."""

    def __init__(self, calls: GrpcCoordinatorClient, changed: Callable[[], None]) -> None:
        self._calls = calls
        self._changed = changed
        self.joined_s = 0.0
        self.synced: Generation = NO_GENERATION
        """NO_GENERATION while it joins."""

    async def join(self, name: str, request: JoinRequest) -> Joined:
        self.joined_s, self.synced = time.monotonic(), NO_GENERATION
        return await self._calls.join(name, request)

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        answer = await self._calls.sync(name, request)
        self.synced = request.generation
        self._changed()
        return answer

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        await self._calls.heartbeat(name, member_id, instance_id, generation)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        return await self._calls.leave(name, leaving)


class _Reader:
    """Keeps what it is called with."""

    def __init__(self, topics: Mapping[str, int], changed: Callable[[], None]) -> None:
        self._topics = topics
        self._changed = changed
        self.reads: frozenset[TopicPartitionName] = frozenset()
        self.stopped: set[TopicPartitionName] = set()
        """Since somebody looked."""

    def subscribed(self) -> Mapping[str, int]:
        return self._topics

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        return self._topics

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.reads |= partitions
        self._changed()

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        self.stopped |= partitions
        self.reads -= partitions
        self._changed()

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        await self.revoked(partitions)


@dataclass(frozen=True, slots=True)
class _Member:
    calls: _Calls
    reader: _Reader
    member: GroupMember


def rebalance(urls: Sequence[str], topic: str, partitions: int, members: int, rounds: int) -> list[Round]:
    """In each round a new group: all members start at once; then one leaves, and a new one comes."""

    async def run() -> list[Round]:
        async with _connections(urls, members + 1) as connections:
            return [await _round(connections, f"group-{number}", topic, partitions, members) for number in range(rounds)]

    return uvloop.run(run())


@asynccontextmanager
async def _connections(urls: Sequence[str], count: int) -> AsyncIterator[list[Connection]]:
    connections = [Connection(urls, ClientSettings()) for _ in range(count)]
    try:
        await gather_all((connection.open() for connection in connections), at_once=OPENED_AT_ONCE)
        yield connections
    finally:
        for connection in connections:
            await connection.close()


async def _round(connections: Sequence[Connection], group: str, topic: str, partitions: int, members: int) -> Round:
    changed = asyncio.Event()

    def make(number: int) -> _Member:
        calls = _Calls(GrpcCoordinatorClient(connections[number], ClientSettings()), changed.set)
        reader = _Reader({topic: partitions}, changed.set)
        member = GroupMember(calls, reader, MemberSettings(), group=group)
        member.polls()
        return _Member(calls, reader, member)

    live = {number: make(number) for number in range(members)}

    async with ClientTasks() as tasks:

        def start(number: int) -> None:
            tasks.start(live[number].member.run(), name=f"member {number}")

        async def settled(change: Callable[[], None], before: Owners) -> tuple[Settled, Owners]:
            for each in live.values():
                each.reader.stopped.clear()
            looked_at = list(live.values())  # a member that leaves has to revoke, too
            changed_s = time.monotonic()
            change()
            async with asyncio.timeout(STABLE_S_MAX):
                while not _is_stable(live.values(), partitions):
                    changed.clear()
                    await changed.wait()
            now_s = time.monotonic()
            owners = {at: number for number, each in live.items() for at in each.reader.reads}
            kept = {at for at, owner in before.items() if owners[at] == owner}
            stopped = kept & {at for each in looked_at for at in each.reader.stopped}
            last_join_s = max(each.calls.joined_s for each in live.values())
            return Settled(now_s - changed_s, now_s - last_join_s, len(before) - len(kept), len(stopped)), owners

        def all_start() -> None:
            for number in live:
                start(number)

        def one_leaves() -> None:
            live.pop(0).member.stop()

        def one_comes() -> None:
            live[members] = make(members)
            start(members)

        started, owners = await settled(all_start, {})
        left, owners = await settled(one_leaves, owners)
        came, _ = await settled(one_comes, owners)
    return Round(started, left, came)


def _is_stable(members: Collection[_Member], partitions: int) -> bool:
    """All are in one generation, know it, and read each partition once."""
    generations = {each.calls.synced for each in members}
    reads = [at for each in members for at in each.reader.reads]
    return len(generations) == 1 and NO_GENERATION not in generations and len(reads) == len(set(reads)) == partitions
