"""Members of a consumer group under virtual time, over the coordinators of brokers that come and go, and who reads what when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from metadata.errors import TidelogError
from metadata.group_member.member import GroupMember
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import MemberPhase
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, GroupPhase, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from tests.kit.gateway.coordinated_groups import Cluster, Coordinated, with_cluster
from tests.simulation.virtual_loop import virtual_loop

SETTINGS = MemberSettings(session_timeout_ms=10_000, max_poll_interval_ms=60_000, client_id="c")
SOON_S = 15.0
Partitions = frozenset[TopicPartitionName]
_Answer = TypeVar("_Answer")


def partitions(topic: str, *numbers: int) -> Partitions:
    return frozenset((topic, number) for number in numbers)


class Endpoints:
    """GroupCalls of one member: to the coordinator of the moment, over a link that a test may cut."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self.is_cut = False
        """Nothing arrives, and nothing is answered."""
        self.cut_answers = False
        self.refusals: dict[str, list[TidelogError]] = {}
        """By method: instead of the next answers; what was asked has happened."""
        self.asked: list[str] = []
        self.served: set[asyncio.Task[Any]] = set()
        """Calls that the coordinator has not answered yet."""
        self.requests: list[JoinRequest | SyncRequest] = []

    def break_off(self) -> None:
        """Nothing arrives any more, and the coordinator sees the connections break."""
        self.is_cut = True
        for call in self.served:
            call.cancel()

    async def join(self, name: str, request: JoinRequest) -> Joined:
        self.requests.append(request)
        return await self._ask("join", lambda at: at.groups.join(name, request))

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        self.requests.append(request)
        return await self._ask("sync", lambda at: at.groups.sync(name, request))

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        await self._ask("heartbeat", lambda at: at.groups.heartbeat(name, member_id, instance_id, generation))

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        return await self._ask("leave", lambda at: at.groups.leave(name, leaving))

    async def _ask(self, method: str, ask: Callable[[Coordinated], Coroutine[Any, Any, _Answer]]) -> _Answer:
        self.asked.append(method)
        await asyncio.sleep(self._team.way_s())
        if self.is_cut:
            await asyncio.Event().wait()
        loop = virtual_loop()
        answer: _Answer | TidelogError
        call = loop.create_task(ask(self._team.coordinator), name=method, context=loop.context_of("broker"))
        self.served.add(call)
        try:
            await asyncio.wait([call])
        finally:
            self.served.discard(call)
            call.cancel()
        if call.cancelled():  # there, not here
            await asyncio.Event().wait()
        try:
            answer = call.result()
        except TidelogError as error:
            answer = error
        await asyncio.sleep(self._team.way_s())
        if self.is_cut or self.cut_answers:
            await asyncio.Event().wait()
        if self.refusals.get(method):
            raise self.refusals[method].pop(0)
        if isinstance(answer, TidelogError):
            raise answer
        return answer


class Reader:
    """RebalanceListener that keeps its notifications, and reads nothing."""

    def __init__(self, team: Team, name: str, topics: Collection[str], settings: MemberSettings) -> None:
        self.name = name
        self.topics = frozenset(topics)
        self.settings = settings
        self.endpoints = Endpoints(team)
        self.reading: set[TopicPartitionName] = set()
        self.reported: list[tuple[str, Partitions]] = []
        self.slow_s: dict[str, float] = {}
        self.fails: dict[str, Exception] = {}
        self.is_frozen = False
        self.busy = 0
        """Of its callbacks, those that have not returned."""
        self.looked_up: list[frozenset[str]] = []
        self._team = team
        self.member = GroupMember(self.endpoints, self, settings, group="g", jitter=team.chance.random)
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = virtual_loop()
        self.running = loop.create_task(self.member.run(), name=self.name, context=loop.context_of(self.name))

    @property
    def is_live(self) -> bool:
        return self.running is not None and not self.running.done()

    async def end(self) -> None:
        """What ended it is raised."""
        assert self.running is not None
        running, self.running = self.running, None
        async with asyncio.timeout(60):
            await running

    @property
    def is_settled(self) -> bool:
        return not self.busy and self.member._member_state.phase is MemberPhase.STAYING

    @property
    def believes(self) -> set[TopicPartitionName]:
        """What it would hand out records of."""
        if not self.is_live:
            return set()
        return self.reading & self.member.owned if self.is_frozen else self.reading

    def crash(self) -> None:
        assert self.running is not None
        virtual_loop().freeze(self.name)
        self.running = None

    def subscribed(self) -> Mapping[str, int]:
        self._fail("subscribed")
        return {topic: count for topic, count in self._team.counts.items() if topic in self.topics}

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        self.looked_up.append(frozenset(topics))
        await self._take_time("partition_counts")
        return {topic: count for topic, count in self._team.counts.items() if topic in topics}

    async def assigned(self, partitions: Partitions) -> None:
        self.reported.append(("assigned", partitions))
        assert not partitions & self.reading, "only what is new"
        self.reading |= partitions
        self._team.check()
        await self._take_time("assigned")

    async def revoked(self, partitions: Partitions) -> None:
        self.reported.append(("revoked", partitions))
        assert partitions <= self.reading, "only what it had"
        await self._take_time("revoked")
        self.reading -= partitions

    async def lost(self, partitions: Partitions) -> None:
        self.reported.append(("lost", partitions))
        assert partitions == self.reading, "all that it had"
        self.reading -= partitions
        await self._take_time("lost")

    def heard(self, what: str) -> list[Partitions]:
        return [partitions for reported, partitions in self.reported if reported == what]

    async def _take_time(self, what: str) -> None:
        self.busy += 1
        try:
            await asyncio.sleep(self.slow_s.get(what, 0.0))
        finally:
            self.busy -= 1
        self._fail(what)

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]


class Team:
    def __init__(self, cluster: Cluster, coordinator: Coordinated, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.chance = random.Random(seed)
        self.counts = {"orders": 4}
        self.readers: list[Reader] = []

    def way_s(self) -> float:
        return self.chance.uniform(0.001, 0.01)

    def enter(self, *topics: str, **changes: object) -> Reader:
        reader = Reader(self, f"r{len(self.readers)}", topics or ("orders",), replace(SETTINGS, **changes))  # type: ignore[arg-type]
        self.readers.append(reader)
        reader.member.polls()
        reader.start()
        return reader

    async def of(self, size: int, **changes: object) -> list[Reader]:
        """So many members that came at once, and are in one generation."""
        entered = [self.enter(**changes) for _ in range(size)]
        await self.rest()
        return entered

    async def rest(self, within_s: float = SOON_S) -> None:
        """Until all that live have joined one generation, and each partition is read."""
        await self.until(self.is_at_rest, within_s)

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        end_s = virtual_loop().time() + within_s
        while not holds():
            assert virtual_loop().time() < end_s, f"it does not come: {self.state()}"
            await asyncio.sleep(0.005)
            self.check()

    def is_at_rest(self) -> bool:
        live = [reader for reader in self.readers if reader.is_live]
        wanted = {
            (topic, number)
            for topic, count in self.counts.items()
            if any(topic in reader.topics for reader in live)
            for number in range(count)
        }
        held = self.coordinator.groups._groups.get("g")
        if held is None or held.group.phase is not GroupPhase.STABLE or held.group.joining:
            return False
        return (
            {reader.member.member_id for reader in live} == held.group.members.keys()
            and {reader.member.generation for reader in live} == {held.group.generation}
            and sorted(partition for reader in live for partition in reader.reading) == sorted(wanted)
            and all(reader.reading == reader.member.owned and reader.is_settled for reader in live)
        )

    def state(self) -> str:
        held = self.coordinator.groups._groups.get("g")
        members = [(r.name, r.is_live, r.member.member_id, r.member.generation, sorted(r.reading)) for r in self.readers]
        return f"{members} {held and held.group}"

    def check(self) -> None:
        """`owned`: no two that live read the same, but for a process whose successor runs under its instance id already."""
        owners: dict[TopicPartitionName, Reader] = {}
        for reader in self.readers:
            for partition in reader.believes:
                other = owners.setdefault(partition, reader)
                is_replaced = reader.settings.instance_id and reader.settings.instance_id == other.settings.instance_id
                assert other is reader or is_replaced, f"{partition} is read by {other.name} and {reader.name}"

    async def hand_over(self) -> None:
        """To another broker's coordinator."""
        former, self.coordinator = self.coordinator, await self.cluster.coordinator()
        former.hand_over()

    async def end(self) -> None:
        for reader in self.readers:
            if reader.running is not None:
                reader.running.cancel()
        running = [reader.running for reader in self.readers if reader.running is not None]
        for ended in await asyncio.gather(*running, return_exceptions=True):
            assert ended is None or isinstance(ended, (asyncio.CancelledError, TidelogError)), ended


def with_team(scenario: Callable[[Team], Awaitable[None]], *, seed: int = 0, shuffled: bool = False) -> None:
    async def main(cluster: Cluster) -> None:
        team = Team(cluster, await cluster.coordinator(), seed=seed)
        await scenario(team)
        await team.end()

    with_cluster(main, shuffled=seed if shuffled else None)
