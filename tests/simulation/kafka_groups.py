"""Kafka's side of a world of groups: the real handlers of a broker, and a member's way to them.

    GroupMember, ReconcilingMember ── KafkaGroupLine ── wire ──▶ [KafkaGroups, KafkaHeartbeats ─▶ GroupRouter ─▶ GroupCoordinator]

A member finds its coordinator by FindCoordinator at any broker, and looks for it again after NOT_COORDINATOR,
COORDINATOR_NOT_AVAILABLE or a lost connection, as Kafka's clients do. No broker forwards: the listener is a direct one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, NoReturn, cast

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.coordinator_lease import CoordinatorLease
from gateway.groups.coordinator_lookup import CoordinatorLookup
from gateway.groups.router import GroupRouter
from gateway.kafka.call import KafkaCall
from gateway.kafka.consumer_groups.heartbeats import KafkaHeartbeats
from gateway.kafka.groups import KafkaGroups
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.listener_config import ListenerConfig, Route
from gateway.kafka.protocol.admin_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    LeaveGroupRequest,
    MemberIdentity,
)
from gateway.kafka.protocol.client_messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration, KafkaListener
from metadata.errors import (
    FencedMemberEpoch,
    GroupFull,
    InconsistentProtocol,
    InstanceFenced,
    MemberIdRequired,
    NoCoordinator,
    NotCoordinator,
    OutcomeUnknown,
    RebalanceInProgress,
    StaleGeneration,
    StaleMemberEpoch,
    TidelogError,
    Unavailable,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
    UnreleasedInstance,
)
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import Generation, InstanceId, Joined, JoinedMember, JoinRequest, MemberId, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset
from metadata.groups.reconciliation.model import GroupTopic, Heartbeat
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.keys import KeyLayout
from metadata.store.write_batcher import UnchangedSince
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic

LISTENER: Final = ListenerConfig("kafka", "", "", Route.DIRECT)
# The last versions that the listener has.
FIND_COORDINATOR, JOIN, SYNC, HEARTBEAT, LEAVE, CONSUMER_HEARTBEAT = 6, 9, 5, 4, 5, 1
# Of so many commits by names the view of the topics is outdated.
OUTDATED: Final = 0.1
# OffsetCommit and OffsetFetch by names and by ids of topics.
OFFSETS_BY_NAME, OFFSETS_BY_ID = 9, 10
ERRORS: Final[dict[int, type[TidelogError]]] = {
    3: UnknownTopic,
    7: OutcomeUnknown,
    14: Unavailable,
    15: NoCoordinator,
    16: NotCoordinator,
    22: StaleGeneration,
    23: InconsistentProtocol,
    25: UnknownMember,
    27: RebalanceInProgress,
    69: UnknownGroup,
    79: MemberIdRequired,
    81: GroupFull,
    82: InstanceFenced,
    110: FencedMemberEpoch,
    111: UnreleasedInstance,
    113: StaleMemberEpoch,
}


class UnreachablePeers:
    """Refuses what a broker forwards to the coordinator of a group. A group that moves while a call waits is met by its clients."""

    async def call(self, at: BrokerRegistration, method: str, *_: object, **__: object) -> NoReturn:
        raise Unavailable(f"{at.broker_id} can't be reached for {method}")


class ModelTopics:
    """The topics of a world of groups, as each broker knows them at once."""

    def __init__(self) -> None:
        # By name, the number of partitions; the world's log adds to it.
        self.counts: Mapping[str, int] = {}
        self._seen: dict[str, int] = {}
        self._by_name: dict[str, GroupTopic] = {}
        self._chance = random.Random("views of topics")

    @property
    def view(self) -> UnchangedSince:
        """Returns now and then a view that lacks the change of a topic: the world has written the key (group_world.py)."""
        return UnchangedSince(KeyLayout().partition_count, Revision(0 if self._chance.random() < OUTDATED else 1 << 40))

    def group_topics(self) -> Mapping[str, GroupTopic]:
        """Returns the same object while no topic has changed."""
        if self._seen != self.counts:
            self._seen = dict(self.counts)
            self._by_name = {name: GroupTopic(id_of(name), count) for name, count in self.counts.items()}
        return self._by_name

    def get(self, name: str) -> Topic:
        if name not in self.counts:
            raise UnknownTopic(f"there is no topic {name}")
        return Topic(id=id_of(name), name=name, partition_count=self.counts[name], settings={}, created_at_ms=0)

    def find(self, name: str) -> Topic | None:
        return self.get(name) if name in self.counts else None

    def by_id(self, topic_id: TopicId) -> Topic:
        return self.get(name_of(topic_id))

    def knows(self, partition: TopicPartition) -> bool:
        return partition.partition < self.counts.get(name_of(partition.topic_id), 0)

    async def hear_of(self, partitions: Iterable[TopicPartition], *, timeout_s: float) -> None:
        """Each is known."""

    async def catch_up_with_all(self, *, timeout_s: float) -> None:
        """None has changed."""


def id_of(topic: str) -> TopicId:
    """A topic's id is its name here, as hex digits."""
    return TopicId(topic.encode().hex().zfill(32))


def name_of(topic_id: TopicId) -> str:
    return bytes.fromhex(topic_id).lstrip(b"\0").decode()


def stored_as(partition: TopicPartitionName) -> TopicPartition:
    return TopicPartition(id_of(partition[0]), Partition(partition[1]))


def kafka_address(broker_id: str) -> tuple[int, tuple[KafkaListener, ...]]:
    """Returns the number and the listeners of a broker, whose id ends in its number."""
    number = int(broker_id.removeprefix("b"))
    return number, (KafkaListener(name=LISTENER.name, host=broker_id, port=9092),)


class KafkaHandlers:
    """The handlers of one broker's Kafka listener that members of groups call."""

    def __init__(
        self,
        groups: GroupCoordinator,
        coordinators: CoordinatorLookup,
        view: CoordinatorLease,
        topics: ModelTopics,
        brokers: Callable[[], Mapping[str, BrokerRegistration]],
    ) -> None:
        served = cast(
            "BrokerApi",
            SimpleNamespace(
                groups=GroupRouter(
                    groups, coordinators, cast("TopicCache", topics), cast("PeerChannels", UnreachablePeers()), view
                ),
                topic_cache=topics,
                registration=lambda broker_id: brokers().get(broker_id),
            ),
        )
        self.groups = KafkaGroups(served, KafkaLeaders(served), InterruptibleWaits())
        self.heartbeats = KafkaHeartbeats(served)


def call(version: int, client_id: str) -> KafkaCall:
    connection: Any = SimpleNamespace(listener=LISTENER, client_host="192.0.2.1", authenticated=None)
    return KafkaCall(connection, version, client_id, None)


def raise_for(code: int, what: str, **details: str) -> None:
    """Raises the error that a client concludes from a code. A code that no client expects is a bug of the product."""
    if code:
        assert code in ERRORS, f"{what} was answered {code}"
        raise ERRORS[code](f"{what} was answered {code}", **details)


class ConsumerBeat(NamedTuple):
    """The answer to a heartbeat of KIP-848."""

    epoch: int
    # None where it did not change.
    assignment: frozenset[TopicPartitionName] | None
    interval_s: float


class KafkaGroupCalls:
    """The calls of one member, in Kafka's protocol, as the process of the broker runs them."""

    def __init__(self, client_id: str, chance: random.Random) -> None:
        self._client_id = client_id
        self._by_id = chance.random() < 0.5

    def _call(self, version: int) -> KafkaCall:
        return call(version, self._client_id)

    async def find(self, handlers: KafkaHandlers, group: str) -> str:
        """FindCoordinator: returns the id of the broker."""
        request = FindCoordinatorRequest(coordinator_keys=[group])
        [found] = (await handlers.groups.find_coordinator(self._call(FIND_COORDINATOR), request)).coordinators
        raise_for(found.error_code, "FindCoordinator")
        host: str = found.host
        return host

    async def join(self, handlers: KafkaHandlers, group: str, request: JoinRequest) -> Joined:
        asked = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            member_id=request.member_id,
            group_instance_id=request.instance_id or None,
            protocol_type=request.protocol_type,
            protocols=[JoinGroupRequestProtocol(name=each.name, metadata=each.metadata) for each in request.protocols],
        )

        answer = await handlers.groups.join(self._call(JOIN), asked)
        raise_for(answer.error_code, "JoinGroup", member_id=answer.member_id)
        return Joined(
            Generation(answer.generation_id),
            answer.protocol_type or "",
            answer.protocol_name or "",
            MemberId(answer.leader),
            MemberId(answer.member_id),
            tuple(
                JoinedMember(MemberId(each.member_id), InstanceId(each.group_instance_id or ""), each.metadata)
                for each in answer.members
            ),
            answer.skip_assignment,
        )

    async def sync(self, handlers: KafkaHandlers, group: str, request: SyncRequest) -> Synced:
        asked = SyncGroupRequest(
            group_id=group,
            generation_id=request.generation,
            member_id=request.member_id,
            group_instance_id=request.instance_id or None,
            protocol_type=request.protocol_type or None,
            protocol_name=request.protocol or None,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in request.assignments.items()
            ],
        )

        answer = await handlers.groups.sync(self._call(SYNC), asked)
        raise_for(answer.error_code, "SyncGroup")
        return Synced(answer.protocol_type or "", answer.protocol_name or "", answer.assignment)

    async def heartbeat(self, handlers: KafkaHandlers, group: str, member: MemberId, instance: InstanceId, generation: int) -> None:
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance or None)
        answer = handlers.groups.heartbeat_at_once(self._call(HEARTBEAT), request)
        if answer is None:
            answer = await handlers.groups.heartbeat(self._call(HEARTBEAT), request)
        raise_for(answer.error_code, "Heartbeat")

    async def leave(
        self, handlers: KafkaHandlers, group: str, leaving: Sequence[tuple[MemberId, InstanceId]]
    ) -> list[TidelogError | None]:
        members = [MemberIdentity(member_id=member, group_instance_id=instance or None) for member, instance in leaving]
        answer = await handlers.groups.leave(self._call(LEAVE), LeaveGroupRequest(group_id=group, members=members))
        raise_for(answer.error_code, "LeaveGroup")
        codes = [each.error_code for each in answer.members]
        return [ERRORS[code](f"LeaveGroup was answered {code}") if code else None for code in codes]

    async def commit(
        self,
        handlers: KafkaHandlers,
        group: str,
        member: MemberId,
        instance: InstanceId,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, TidelogError]:
        topics: dict[TopicId, list[OffsetCommitRequestPartition]] = {}
        for at, committed in offsets.items():
            asked = OffsetCommitRequestPartition(partition_index=at.partition, committed_offset=committed.offset)
            topics.setdefault(at.topic_id, []).append(asked)
        version = OFFSETS_BY_ID if self._by_id else OFFSETS_BY_NAME
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance or None,
            topics=[
                OffsetCommitRequestTopic(name=name_of(topic_id), topic_id=bytes.fromhex(topic_id), partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )
        answer = await handlers.groups.commit(self._call(version), request)
        codes = {
            TopicPartition(topic_id, Partition(each.partition_index)): each.error_code
            for topic_id, topic in zip(topics, answer.topics, strict=True)
            for each in topic.partitions
        }
        if codes and len(set(codes.values())) == 1:  # refused as a whole
            raise_for(next(iter(codes.values())), "OffsetCommit")
        return {at: ERRORS[code](f"OffsetCommit was answered {code}") for at, code in codes.items() if code}

    async def offsets(
        self, handlers: KafkaHandlers, group: str, member: MemberId, member_epoch: int
    ) -> dict[TopicPartition, CommittedOffset]:
        version = OFFSETS_BY_ID if self._by_id else OFFSETS_BY_NAME
        asked = OffsetFetchRequestGroup(group_id=group, member_id=member or None, member_epoch=member_epoch, topics=None)
        [found] = (await handlers.groups.fetch_offsets(self._call(version), OffsetFetchRequest(groups=[asked]))).groups
        raise_for(found.error_code, "OffsetFetch")
        return {
            TopicPartition(id_of(topic.name), Partition(each.partition_index)): CommittedOffset(
                offset=each.committed_offset, committed_at_ms=0
            )
            for topic in found.topics
            for each in topic.partitions
        }

    async def beat(self, handlers: KafkaHandlers, group: str, beat: Heartbeat) -> ConsumerBeat:
        """ConsumerGroupHeartbeat."""
        owned: dict[TopicId, list[int]] = {}
        for at in sorted(beat.owned or ()):
            owned.setdefault(at.topic_id, []).append(at.partition)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=beat.member_id,
            member_epoch=beat.epoch,
            instance_id=beat.instance_id or None,
            rebalance_timeout_ms=-1 if beat.rebalance_timeout_ms is None else beat.rebalance_timeout_ms,
            rack_id=beat.rack,
            subscribed_topic_names=None if beat.topics is None else sorted(beat.topics),
            subscribed_topic_regex=beat.pattern,
            server_assignor=beat.assignor,
            topic_partitions=None
            if beat.owned is None
            else [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=bytes.fromhex(topic_id), partitions=numbers)
                for topic_id, numbers in owned.items()
            ],
        )
        answer = handlers.heartbeats.heartbeat_at_once(self._call(CONSUMER_HEARTBEAT), request)
        if answer is None:
            answer = await handlers.heartbeats.heartbeat(self._call(CONSUMER_HEARTBEAT), request)
        raise_for(answer.error_code, "ConsumerGroupHeartbeat")
        assignment = None
        if answer.assignment is not None:
            assignment = frozenset(
                (name_of(TopicId(topic.topic_id.hex())), number)
                for topic in answer.assignment.topic_partitions
                for number in topic.partitions
            )
        return ConsumerBeat(answer.member_epoch, assignment, answer.heartbeat_interval_ms / 1000)
