"""Group coordinators under virtual time, over one etcd model that fails where a test asks for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.member_rights import MemberRights, UnlimitedRights
from metadata.errors import NoCoordinator, OutcomeUnknown, TidelogError, Unavailable
from metadata.groups.model import (
    NO_GENERATION,
    NO_INSTANCE,
    NO_MEMBER,
    Generation,
    InstanceId,
    Joined,
    MemberId,
    Synced,
    SyncRequest,
)
from metadata.groups.offsets import CommittedOffset, decode_offset
from metadata.groups.reconciliation.model import GroupTopic, MemberPrincipal
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, SessionId, TopicId, TopicPartition
from metadata.store.interface import Compare, KeyValue, Operation, TransactionResult
from metadata.store.keys import KeyLayout
from tests.kit.metadata.faulty_store import FaultyStore
from tests.kit.metadata.played_group import request
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.virtual_loop import run, virtual_loop

LAYOUT = KeyLayout()
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=500)
P0, P1 = (TopicPartition(TopicId("a" * 32), Partition(number)) for number in range(2))


class Link(FaultyStore):
    """Between one broker and etcd: a transaction may land long after its sender has given up."""

    def __init__(self, store: EtcdModel) -> None:
        super().__init__(store)
        self.delayed: list[tuple[Sequence[Compare], Sequence[Operation]]] = []
        self.delay = 0
        """So many transactions are kept, and answered with OutcomeUnknown."""
        self.gets = 0
        self.pause: asyncio.Event | None = None
        """While it is set and not yet happened, transactions wait before they reach the store."""

    @property
    def requests(self) -> int:
        return self.gets + self.ranges + len(self.transactions)

    async def get(self, key: str) -> KeyValue | None:
        self.gets += 1
        return await super().get(key)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        await asyncio.sleep(0.001)
        if self.delay:
            self.delay -= 1
            self.delayed.append((compares, operations))
            raise OutcomeUnknown("nothing was heard of it")
        if self.pause is not None:
            await self.pause.wait()
        return await super().transact(compares, operations)

    async def land(self) -> list[bool]:
        """What was delayed reaches the store."""
        late, self.delayed = self.delayed, []
        return [(await self.store.transact(compares, operations)).succeeded for compares, operations in late]


class Coordinated:
    """One broker's coordinator."""

    def __init__(self, etcd: EtcdModel, session: int, ids: itertools.count[int], settings: GroupSettings = SETTINGS) -> None:
        self.link = Link(etcd)
        self.is_mine = True
        self.session = session
        self.unproven: str | None = None
        """Why it can't make sure that it coordinates its groups."""
        # What a group of KIP-848 can subscribe to, by name.
        self.topics: Mapping[str, GroupTopic] = {}
        # Which of them members may read.
        self.rights: MemberRights = UnlimitedRights()
        # Set once `topics` holds what a group's record names.
        self.heard = asyncio.Event()
        self.heard.set()
        self.groups = GroupCoordinator(
            self.link,
            LAYOUT,
            settings,
            session=lambda: SessionId(self.session),
            coordinates=lambda _: self.is_mine,
            verify=self._verify,
            is_proven=lambda: self.unproven is None,
            now_ms=virtual_loop().now_ms,
            new_member_id=lambda client: MemberId(f"{client}-{next(ids)}"),
            topics=lambda: self.topics,
            hear_of=self._hear_of,
            rights=self,
        )
        self.running = asyncio.ensure_future(self.groups.run())

    @property
    def version(self) -> int:
        return self.rights.version

    def readable(self, member: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str] | None:
        return self.rights.readable(member, names)

    async def _verify(self) -> None:
        if self.unproven is not None:
            raise NoCoordinator(self.unproven)

    async def _hear_of(self, partitions: Collection[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(1):
                await self.heard.wait()
        except TimeoutError:
            raise Unavailable("the watch has not answered in time") from None

    def hand_over(self) -> None:
        self.is_mine = False
        self.groups.brokers_changed()

    def join(self, member: str = "", *, group: str = "g", **asked: object) -> asyncio.Task[Joined]:
        return asyncio.ensure_future(self.groups.join(group, request(member, **asked)))  # type: ignore[arg-type]

    def sync(
        self, member: str, generation: int, assignments: dict[str, bytes] | None = None, *, group: str = "g"
    ) -> asyncio.Task[Synced]:
        by_member = {MemberId(at): assignment for at, assignment in (assignments or {}).items()}
        asked = SyncRequest(MemberId(member), NO_INSTANCE, Generation(generation), by_member)
        return asyncio.ensure_future(self.groups.sync(group, asked))

    async def heartbeat(self, member: str, generation: int, *, group: str = "g") -> None:
        """Sends it in both ways, which must agree: the one that never waits may only answer what the other answers."""
        at_once = self.heartbeat_at_once(member, generation, group=group)
        answers: set[bool | type[TidelogError]] = {False, True}
        try:
            await self.groups.heartbeat(group, MemberId(member), NO_INSTANCE, Generation(generation))
        except TidelogError as error:
            answers = {False, type(error)}
            raise
        finally:
            assert at_once in answers

    def heartbeat_at_once(self, member: str, generation: int, *, group: str = "g") -> bool | type[TidelogError]:
        """Returns whether a heartbeat was taken without a wait, or the kind of error that refused it."""
        try:
            return self.groups.heartbeat_at_once(group, MemberId(member), NO_INSTANCE, Generation(generation))
        except TidelogError as error:
            return type(error)

    async def commit(
        self,
        offset: int,
        member: str = "",
        generation: int = NO_GENERATION,
        *,
        group: str = "g",
        partition: TopicPartition = P0,
        only_forward: bool = False,
    ) -> dict[TopicPartition, TidelogError]:
        committed = {partition: CommittedOffset(offset=offset, committed_at_ms=0)}
        return await self.groups.commit(
            group, MemberId(member) or NO_MEMBER, NO_INSTANCE, Generation(generation), committed, only_forward=only_forward
        )

    async def leave(self, member: str, *, group: str = "g") -> None:
        (error,) = await self.groups.leave(group, [(MemberId(member), InstanceId(""))])
        if error is not None:
            raise error

    async def stable(self, members: int = 2, *, group: str = "g") -> list[str]:
        """The ids of the members of a first generation, each assigned its own id; the leader comes first."""
        joined = [await each for each in [self.join(group=group) for _ in range(members)]]
        leader = next(each for each in joined if each.leader == each.member_id)
        ids = [leader.member_id, *(each.member_id for each in joined if each is not leader)]
        synced = [self.sync(at, leader.generation, {every: every.encode() for every in ids}, group=group) for at in ids]
        assert [(await each).assignment for each in synced] == [at.encode() for at in ids]
        return [str(at) for at in ids]


class Cluster:
    def __init__(self) -> None:
        self.etcd = EtcdModel(virtual_loop().time)
        self._ids = itertools.count(1)
        self._sessions = itertools.count(1)
        self.coordinators: list[Coordinated] = []

    async def coordinator(self, settings: GroupSettings = SETTINGS) -> Coordinated:
        started = Coordinated(self.etcd, next(self._sessions), self._ids, settings)
        self.coordinators.append(started)
        await asyncio.sleep(0.001)  # until it runs
        return started

    async def committed(self, group: str = "g", partition: TopicPartition = P0) -> int | None:
        kept = await self.etcd.get(LAYOUT.offset(group, partition))
        return None if kept is None else decode_offset(kept).offset

    async def keys(self) -> list[str]:
        return [kept.key.removeprefix(LAYOUT.root) for kept in (await self.etcd.range(LAYOUT.root)).items]


def with_cluster(scenario: Callable[[Cluster], Awaitable[None]], *, shuffled: int | None = None) -> None:
    async def main() -> None:
        cluster = Cluster()
        await scenario(cluster)
        for each in cluster.coordinators:
            each.running.cancel()
        ended = await asyncio.gather(*(each.running for each in cluster.coordinators), return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in ended), ended

    run(main(), seed=shuffled or 0, shuffled=shuffled is not None)


async def outcome(call: Awaitable[object]) -> object:
    """What a call answers, or the class of what it raises."""
    try:
        return await call
    except TidelogError as error:
        return type(error)
