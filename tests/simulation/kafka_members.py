"""Members of groups that speak Kafka's protocol, among the consumers of a world of groups.

    KafkaConsumer          the classic protocol: the member of the SDK, whose calls are Kafka's
    ReconcilingConsumer    the consumer protocol (KIP-848): ReconcilingMember, which follows what Java's consumer does

A member of KIP-848 has no clock of its own: one that hears nothing goes on until its coordinator fences it. So it may hand out
again what others own already. It counts as an owner only while the stored group has it as a member.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from gateway.groups.coordinator_lease import PROOF_S
from metadata.errors import (
    FencedMemberEpoch,
    InstanceFenced,
    OutcomeUnknown,
    RebalanceInProgress,
    TidelogError,
    Unavailable,
    UnknownMember,
)
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import (
    NO_GENERATION,
    NO_MEMBER,
    Generation,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Synced,
    SyncRequest,
)
from metadata.groups.offsets import CommittedOffset
from metadata.groups.reconciliation.group import ReconciledGroup
from metadata.groups.reconciliation.model import JOINING, LEAVING, LEAVING_FOR_NOW, Heartbeat
from metadata.groups.record import decode_group
from metadata.model import TopicPartition
from tests.simulation.group_brokers import LAYOUT, GroupBroker, GroupBrokers
from tests.simulation.group_consumers import ANSWER_S, CALL_S, Consumer, GroupLine, Member
from tests.simulation.kafka_groups import ConsumerBeat, KafkaGroupCalls, stored_as
from tests.simulation.simulated_process import innermost
from tests.simulation.virtual_loop import virtual_loop

NOTHING: Final[frozenset[TopicPartitionName]] = frozenset()
BEAT_AGAIN_S: Final = 0.1
LEAVE_S: Final = 2.0
T = TypeVar("T")


class KafkaGroupLine(GroupLine):
    """A member's way to its coordinator through the Kafka listeners of the brokers."""

    # Of a member of KIP-848, which names itself where it asks for offsets.
    identity: Callable[[], tuple[MemberId, int]] = staticmethod(lambda: (NO_MEMBER, -1))

    def speak(self) -> None:
        """Chooses the versions of its calls."""
        self._calls = KafkaGroupCalls(self._caller, self._chance)

    async def join(self, name: str, request: JoinRequest) -> Joined:
        async def join(broker: GroupBroker) -> Joined:
            answer = await self._calls.join(broker.kafka, name, request)
            self._joined()
            return answer

        return await self._ask_kafka(name, "join", join, waits_s=self._longest_s)

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        return await self._ask_kafka(
            name, "sync", lambda broker: self._calls.sync(broker.kafka, name, request), waits_s=self._longest_s
        )

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        async def beat(broker: GroupBroker) -> None:
            try:
                await self._calls.heartbeat(broker.kafka, name, member_id, instance_id, generation)
            except RebalanceInProgress as error:
                # The code does not say whether the member's own request to join waits. Java's client sends no heartbeat meanwhile;
                # the client whose state machine this member has would join again and again, and end the wait of all others.
                waits = any(group == name and member_id in held.joining for group, held in broker.groups.groups())
                raise RebalanceInProgress(error.message, waits=waits) from error
            self._brokers.judge_heartbeat(name, broker.groups, generation)

        await self._ask_kafka(name, "heartbeat", beat)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        return await self._ask_kafka(name, "leave", lambda broker: self._calls.leave(broker.kafka, name, leaving))

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, TidelogError]:
        return await self._ask_kafka(
            name,
            "commit",
            lambda broker: self._calls.commit(broker.kafka, name, member_id, instance_id, generation, offsets),
        )

    async def offsets(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        member_id, epoch = self.identity()
        return await self._ask_kafka(name, "offsets", lambda broker: self._calls.offsets(broker.kafka, name, member_id, epoch))

    async def beat(self, name: str, request: Heartbeat) -> ConsumerBeat:
        async def beat(broker: GroupBroker) -> ConsumerBeat:
            answer = await self._calls.beat(broker.kafka, name, request)
            if request.epoch == JOINING:
                self._joined()
            return answer

        return await self._ask_kafka(name, "heartbeat", beat)

    async def _ask_kafka(self, group: str, what: str, ask: Callable[[GroupBroker], Awaitable[T]], *, waits_s: float = 0.0) -> T:
        brokers, wire = self._brokers, self.wire
        if waits_s:
            waits_s += PROOF_S
        try:
            if self._coordinator is None:
                self._coordinator = await self._find(group)
            broker = brokers.slots[self._coordinator]
            return await broker.call(
                self._caller,
                wire,
                lambda: broker.answered(group, lambda _: ask(broker), what, waits_s + ANSWER_S),
                timeout_s=waits_s + CALL_S,
            )
        except (Unavailable, OutcomeUnknown):
            self._coordinator = None
            raise

    async def _find(self, group: str) -> str:
        """FindCoordinator, at any broker."""
        asked = self._chance.choice(list(self._brokers.slots.values()))
        return await asked.call(self._caller, self.wire, lambda: self._calls.find(asked.kafka, group), timeout_s=CALL_S)


class KafkaConsumer(Consumer):
    def _line_to(self, brokers: GroupBrokers, longest_s: float) -> GroupLine:
        line = KafkaGroupLine(self.name, brokers, self._chance, longest_s=longest_s, joined=lambda: self._site.judge.replaced(self))
        line.speak()
        return line


class ReconcilingConsumer(KafkaConsumer):
    def _new_member(self) -> Member:
        assert isinstance(self.line, KafkaGroupLine)
        # Of a stream of its own: these came later, and draw nothing from the others.
        chance = random.Random(f"{self._site.seed}/subscription of {self.name}")
        subscription = Subscription(
            topics=frozenset(self.topics),
            by_pattern=chance.random() < 0.5,
            rack=chance.choice((None, "rack-1", "rack-2")),
            assignor=chance.choice((None, "uniform", "range")),
        )
        member = ReconcilingMember(self.line, self, self.settings, group=self.group, subscription=subscription, member_id=self.name)
        self.line.identity = lambda: (member.member_id, member.generation)
        return member

    @property
    def is_member(self) -> bool:
        versions = self._site.etcd._versions.get(LAYOUT.group(self.group))
        kept = versions[-1][1] if versions else None
        group = None if kept is None else decode_group(kept, now_ms=0)
        return isinstance(group, ReconciledGroup) and self.member.member_id in group.consumer.members


class Listener(Protocol):
    """What learns of the member's partitions."""

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None: ...
    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None: ...
    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None: ...


class Subscription(NamedTuple):
    """Holds the fields by which a KIP-848 member subscribes in its first heartbeat."""

    topics: frozenset[str]
    # It subscribes to them by a regular expression.
    by_pattern: bool = False
    # client.rack
    rack: str | None = None
    # The assignor that it prefers.
    assignor: str | None = None

    @property
    def pattern(self) -> str:
        return "|".join(sorted(self.topics))


class ReconcilingMember:
    """A member of KIP-848: heartbeats, and partitions that it takes and gives up one by one, as its coordinator says."""

    def __init__(
        self,
        line: KafkaGroupLine,
        listener: Listener,
        settings: MemberSettings,
        *,
        group: str,
        subscription: Subscription,
        member_id: str,
    ) -> None:
        self._line = line
        self._listener = listener
        self._settings = settings
        self._group = group
        self._subscription = subscription
        self.member_id = MemberId(f"{member_id}-id")
        self.owned = NOTHING
        self._target = NOTHING
        self._epoch = JOINING
        # Whether the next heartbeat says everything, and what the last one that was answered said.
        self._must_say_all = True
        self._said: frozenset[TopicPartitionName] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._stopping = False
        self._wake = asyncio.Event()
        self._polled_s = 0.0

    @property
    def generation(self) -> Generation:
        return Generation(self._epoch) if self._epoch > 0 else NO_GENERATION

    def polled(self) -> None:
        self._polled_s = virtual_loop().time()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Until `stop`. Raises InstanceFenced where another process took its place."""
        try:
            await self._take_part()
        except BaseExceptionGroup as group:
            raise innermost(group) from None

    async def _take_part(self) -> None:
        self.polled()
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping:
                if virtual_loop().time() > self._polled_s + self._settings.max_poll_interval_ms / 1000:
                    await self._leave_for_silence()
                    continue
                self._wake.clear()
                pause_s = await self._beat(tasks)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            await self._stop_reconciling()
            if self.owned:
                await self._listener.revoked(self.owned)
                self.owned = NOTHING
            await self._leave()

    async def _beat(self, tasks: asyncio.TaskGroup) -> float:
        """Returns how long to wait for the next one."""
        says_all, owned, subscription = self._must_say_all, self.owned, self._subscription
        request = Heartbeat(
            member_id=self.member_id,
            epoch=self._epoch,
            instance_id=InstanceId(self._settings.instance_id),
            rack=subscription.rack if says_all else None,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms if says_all else None,
            topics=(frozenset() if subscription.by_pattern else subscription.topics) if says_all else None,
            pattern=subscription.pattern if says_all and subscription.by_pattern else None,
            assignor=subscription.assignor if says_all else None,
            owned=frozenset(map(stored_as, owned)) if says_all or owned != self._said else None,
        )
        self._must_say_all = True
        try:
            beat = await self._line.beat(self._group, request)
        except (UnknownMember, FencedMemberEpoch):
            await self._give_all_up()
            return BEAT_AGAIN_S
        except InstanceFenced:
            await self._give_all_up()
            raise
        except TidelogError:
            return BEAT_AGAIN_S
        self._must_say_all = False
        self._said = owned
        self._epoch = beat.epoch
        if beat.assignment is not None:
            self._target = beat.assignment
        if self._target != self.owned and self._reconciling is None:
            self._reconciling = tasks.create_task(self._reconcile())
        return beat.interval_s

    async def _reconcile(self) -> None:
        while (target := self._target) != self.owned:
            if gone := self.owned - target:
                await self._listener.revoked(gone)
                self.owned -= gone
            if new := target - self.owned:
                self.owned |= new
                await self._listener.assigned(new)
        self._reconciling = None
        self._wake.set()

    async def _stop_reconciling(self) -> None:
        reconciling, self._reconciling = self._reconciling, None
        if reconciling is not None:
            reconciling.cancel()
            await asyncio.wait((reconciling,))

    async def _give_all_up(self) -> None:
        """It was fenced: it begins again, as a member that owns nothing."""
        await self._stop_reconciling()
        owned, self.owned, self._target, self._said = self.owned, NOTHING, NOTHING, None
        self._epoch = JOINING
        self._must_say_all = True
        await self._listener.lost(owned)

    async def _leave_for_silence(self) -> None:
        """Its caller took no records for longer than it may: it leaves, and comes back once the caller takes some."""
        await self._leave()
        await self._give_all_up()
        left_s = self._polled_s
        while self._polled_s == left_s and not self._stopping:  # noqa: ASYNC110  # the clock is virtual
            await asyncio.sleep(BEAT_AGAIN_S)

    async def _leave(self) -> None:
        if self._epoch == JOINING:
            return
        epoch = LEAVING_FOR_NOW if self._settings.instance_id else LEAVING
        until_s = virtual_loop().time() + LEAVE_S
        request = Heartbeat(member_id=self.member_id, epoch=epoch, instance_id=InstanceId(self._settings.instance_id))
        while virtual_loop().time() < until_s:
            try:
                await self._line.beat(self._group, request)
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(BEAT_AGAIN_S)
            except TidelogError:
                return
            else:
                return
