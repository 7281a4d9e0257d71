"""Answers the members of consumer groups.

The APIs are FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetFetch.

    direct listener    this broker coordinates the group ─▶ its coordinator; another does ─▶ NOT_COORDINATOR
    forward listener   the group's coordinator is asked, wherever it is

Members of any protocol type are served: `consumer`, `connect` and `sr` differ in their metadata, which the coordinator does not
read. A member whose connection ends while it joins has hung up.

Invariant: an error of one partition or one member stands in its place, and refuses no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.access.authorization import check_group, may_see_topic, note_commit_by_hand, note_failure, note_parts
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.groups.router import wait_timeout_s
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, KafkaRejected, TransactionsUnsupported, cut_text, group_code, group_topic_code
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.listener_config import Route
from gateway.kafka.protocol.admin_messages import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from gateway.kafka.protocol.client_messages import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from gateway.telemetry.request_context import note_deadline
from gateway.topics.names import (
    LOOKUP_S,
    NamedPartition,
    NamedTopic,
    catch_up_with_names,
    commit_by_names,
    known_partitions,
    resolve_partitions,
    viewed_partitions,
)
from metadata.errors import NoCoordinator, TidelogError, Unavailable, UnknownTopic
from metadata.groups.model import Generation, InstanceId, JoinRequest, MemberId, Protocol, SyncRequest
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, TopicId, TopicPartition
from metadata.store.write_batcher import UnchangedSince

# Wait for the view of the topics before committed offsets are answered by names. Clients wait 30 s and longer.
CATCH_UP_S: Final = 5.0
# Kinds of coordinators: of groups, of transactions, of share groups.
GROUP: Final = 0
TRANSACTION: Final = 1
# From this version on a request names several keys, or several groups.
KEYS_SINCE: Final = 4
GROUPS_SINCE: Final = 8
# From this version on a member without an id receives one, and joins again with it (KIP-394).
MEMBER_ID_REQUIRED_SINCE: Final = 4
# From this version on an answer without a protocol has null in its place, and not an empty string.
NULL_PROTOCOL_SINCE: Final = 7
# From this version on topics are named by their ids.
BY_ID: Final = 10
_NO_NODE: Final = -1
_NO_OFFSET: Final = -1


class KafkaGroups:
    """Answers members of consumer groups for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi, leaders: KafkaLeaders, waits: InterruptibleWaits) -> None:
        self._broker = broker
        self._leaders = leaders
        self._waits = waits

    # ── membership ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find_coordinator(self, call: KafkaCall, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """Answers each key with the broker that coordinates it."""
        keys = request.coordinator_keys if call.version >= KEYS_SINCE else (request.key,)
        found = [self._coordinator(call, key, request.key_type) for key in keys]
        if call.version >= KEYS_SINCE:
            return FindCoordinatorResponse(coordinators=found)
        [one] = found
        return FindCoordinatorResponse(
            error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
        )

    def _coordinator(self, call: KafkaCall, key: str, key_type: int) -> Coordinator:
        answer = Coordinator(key=key, node_id=_NO_NODE, host="", port=-1)
        try:
            if key_type == TRANSACTION:  # not NoCoordinator: the client would look for it until its own timeout
                raise TransactionsUnsupported("transactions are not supported yet")
            if key_type != GROUP:
                raise KafkaRejected(f"this broker has no coordinators of kind {key_type}")
            check_group(key)
            broker_id = self._broker.groups.coordinator(key).broker_id
            if call.connection.listener.route is Route.FORWARD:
                broker_id = self._broker.broker_id  # it forwards, so that the client keeps its connection
            node = self._leaders.node(broker_id, call.connection.listener)
            if node is None:
                raise NoCoordinator(f"broker {broker_id}, which coordinates group {key}, has no listener of this name")
            answer.node_id, answer.host, answer.port = node.node_id, node.host, node.port
        except TidelogError as error:
            answer.error_code, answer.error_message = group_code(error), cut_text(error.message)
        return answer

    async def join(self, call: KafkaCall, request: JoinGroupRequest) -> JoinGroupResponse:
        """Answers when the rebalance is over; the member that makes the assignment receives all members."""
        rebalance_timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        note_deadline(wait_timeout_s(rebalance_timeout_ms))
        asked = JoinRequest(
            MemberId(request.member_id),
            InstanceId(request.group_instance_id or ""),
            call.client_id,
            call.connection.client_host,
            request.protocol_type,
            tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
            request.session_timeout_ms,
            rebalance_timeout_ms,
            member_id_required=call.version >= MEMBER_ID_REQUIRED_SINCE,
        )
        try:
            self._check_coordinated(call, request.group_id)
            async with self._waits.until_stop():
                joined = await self._broker.groups.join(request.group_id, asked)
        except TidelogError as error:
            member_id = str(error.details.get("member_id", request.member_id))
            protocol_name = None if call.version >= NULL_PROTOCOL_SINCE else ""
            return JoinGroupResponse(error_code=group_code(error), member_id=member_id, protocol_name=protocol_name)
        return JoinGroupResponse(
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=each.member_id, group_instance_id=each.instance_id or None, metadata=each.metadata
                )
                for each in joined.members
            ],
        )

    async def sync(self, call: KafkaCall, request: SyncGroupRequest) -> SyncGroupResponse:
        """Answers with the member's assignment, once the leader of the members has made it."""
        note_deadline(wait_timeout_s())
        asked = SyncRequest(
            MemberId(request.member_id),
            InstanceId(request.group_instance_id or ""),
            Generation(request.generation_id),
            {MemberId(each.member_id): bytes(each.assignment) for each in request.assignments},
            request.protocol_type or "",
            request.protocol_name or "",
        )
        try:
            self._check_coordinated(call, request.group_id)
            async with self._waits.until_stop():
                synced = await self._broker.groups.sync(request.group_id, asked)
        except TidelogError as error:
            return SyncGroupResponse(error_code=group_code(error))
        return SyncGroupResponse(protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment)

    async def heartbeat(self, call: KafkaCall, request: HeartbeatRequest) -> HeartbeatResponse:
        """Keeps a member in its group, and answers whether a rebalance is in progress."""
        try:
            self._check_coordinated(call, request.group_id)
            await self._broker.groups.heartbeat(*_heartbeat(request))
        except TidelogError as error:
            return HeartbeatResponse(error_code=group_code(error))
        return HeartbeatResponse()

    def heartbeat_at_once(self, call: KafkaCall, request: HeartbeatRequest) -> HeartbeatResponse | None:
        """Answers as `heartbeat` does. None if this broker has to ask, or to read, before it can."""
        try:
            check_group(request.group_id)
            if not self._broker.groups.heartbeat_at_once(*_heartbeat(request)):
                return None
        except TidelogError as error:
            return HeartbeatResponse(error_code=group_code(error))
        return HeartbeatResponse()

    async def leave(self, call: KafkaCall, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Removes members from their group."""
        if call.version < 3:
            leaving = [(MemberId(request.member_id), InstanceId(""))]
        else:
            leaving = [(MemberId(each.member_id), InstanceId(each.group_instance_id or "")) for each in request.members]
        try:
            self._check_coordinated(call, request.group_id)
            errors = await self._broker.groups.leave(request.group_id, leaving)
        except TidelogError as error:
            return LeaveGroupResponse(error_code=group_code(error))
        codes = [ErrorCode.NONE if error is None else group_code(error) for error in errors]
        if call.version < 3:
            return LeaveGroupResponse(error_code=codes[0])
        return LeaveGroupResponse(
            members=[
                MemberResponse(member_id=member_id, group_instance_id=instance_id or None, error_code=code)
                for (member_id, instance_id), code in zip(leaving, codes, strict=True)
            ]
        )

    def _check_coordinated(self, call: KafkaCall, group: str) -> None:
        """Raises NotAuthorized; NotCoordinator where the client has to ask another broker, on a direct listener."""
        check_group(group)
        if call.connection.listener.route is Route.DIRECT:
            self._broker.groups.check_here(group)

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, call: KafkaCall, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Commits offsets of a member, or of a group without members."""
        by_id = call.version >= BY_ID
        count = sum([len(topic.partitions) for topic in request.topics])
        if not request.member_id:
            note_commit_by_hand(request.group_id)
        try:
            self._check_coordinated(call, request.group_id)
            errors: list[TidelogError | None] = []
            if count and by_id:
                await self._hear_of_ids(
                    (topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions
                )
                errors = await self._commit(request, by_id=True)
            elif count:
                errors = await commit_by_names(self._broker, count, lambda view: self._commit(request, by_id=False, view=view))
            note_parts(errors)
            codes = [ErrorCode.NONE if error is None else group_topic_code(error, by_id=by_id) for error in errors]
        except TidelogError as error:
            note_failure(error.code)
            codes = [group_code(error)] * count
        rest = iter(codes)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=next(rest))
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def _commit(
        self, request: OffsetCommitRequest, *, by_id: bool, view: UnchangedSince | None = None
    ) -> list[TidelogError | None]:
        """Commits the offsets of the partitions that this broker's view has. Returns the error of each partition, or None.

        Raises what refuses all of them, and Outdated if `view` does not hold or lacks a partition: a look-up would take its time
        before the catch-up that is needed in any case.
        """
        resolved = await self._resolve(
            [(topic.name, topic.topic_id, [each.partition_index for each in topic.partitions]) for topic in request.topics],
            by_id=by_id,
            only_known=view is not None,
        )
        asked = [partition for topic in request.topics for partition in topic.partitions]
        offsets = {
            at: CommittedOffset(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                committed_at_ms=0,
            )
            for at, partition in zip(resolved, asked, strict=True)
            if isinstance(at, TopicPartition)
        }
        refused: Mapping[TopicPartition, TidelogError] = {}
        if offsets:
            refused = await self._broker.groups.commit(
                request.group_id,
                MemberId(request.member_id),
                InstanceId(request.group_instance_id or ""),
                Generation(request.generation_id_or_member_epoch),
                offsets,
                view=view,
            )
        return [at if isinstance(at, TidelogError) else refused.get(at) for at in resolved]

    async def fetch_offsets(self, call: KafkaCall, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Answers with the committed offsets of groups: of the named partitions, or all."""
        if call.version >= GROUPS_SINCE:
            return OffsetFetchResponse(groups=[await self._offsets_of(call, each) for each in request.groups])
        topics = None
        if request.topics is not None:
            topics = [OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes) for each in request.topics]
        found = await self._offsets_of(call, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics))
        return OffsetFetchResponse(
            error_code=found.error_code,
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=each.partition_index,
                            committed_offset=each.committed_offset,
                            committed_leader_epoch=each.committed_leader_epoch,
                            metadata=each.metadata,
                            error_code=each.error_code,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in found.topics
            ],
        )

    async def _offsets_of(self, call: KafkaCall, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        by_id = call.version >= BY_ID
        try:
            self._check_coordinated(call, asked.group_id)
            if by_id and asked.topics is not None:
                await self._hear_of_ids((topic.topic_id, number) for topic in asked.topics for number in topic.partition_indexes)
            else:
                # librdkafka repeats a failed OffsetFetch a few times only, and its consumer reads nothing after that.
                await catch_up_with_names(self._broker, timeout_s=CATCH_UP_S)
            stored = await self._broker.groups.offsets(asked.group_id, MemberId(asked.member_id or ""), asked.member_epoch)
            if asked.topics is None:
                return OffsetFetchResponseGroup(group_id=asked.group_id, topics=self._all(stored))
            found = await self._resolve(
                [(topic.name, topic.topic_id, topic.partition_indexes) for topic in asked.topics], by_id=by_id
            )
            for partition in found:
                if isinstance(partition, Unavailable):
                    raise partition  # clients repeat the request for an error of the group, and end for one of a partition
            resolved = iter(found)
        except TidelogError as error:
            return OffsetFetchResponseGroup(
                group_id=asked.group_id, error_code=group_code(error), topics=self._unknown(call, asked, error)
            )
        return OffsetFetchResponseGroup(
            group_id=asked.group_id,
            topics=[
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        _offset_response(number, next(resolved), stored, by_id=by_id) for number in topic.partition_indexes
                    ],
                )
                for topic in asked.topics
            ],
        )

    def _unknown(self, call: KafkaCall, asked: OffsetFetchRequestGroup, error: TidelogError) -> Sequence[OffsetFetchResponseTopics]:
        """Returns an answer with the error in each partition. Before version 2 there is no code for the whole group: each partition
        carries it."""
        if call.version >= 2 or asked.topics is None:
            return ()
        return [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=number, committed_offset=_NO_OFFSET, metadata="", error_code=group_code(error)
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in asked.topics
        ]

    def _all(self, stored: StoredOffsets) -> list[OffsetFetchResponseTopics]:
        """Returns all committed offsets of topics that the caller may see."""
        by_topic: dict[TopicId, list[OffsetFetchResponsePartitions]] = {}
        for at in sorted({**stored.committed, **stored.damaged}):
            by_topic.setdefault(at.topic_id, []).append(_offset_response(at.partition, at, stored, by_id=False))
        names = {topic_id: self._broker.topic_cache.by_id(topic_id).name for topic_id in by_topic}
        return [
            OffsetFetchResponseTopics(name=names[topic_id], topic_id=bytes.fromhex(topic_id), partitions=partitions)
            for topic_id, partitions in by_topic.items()
            if may_see_topic(names[topic_id])
        ]

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hear_of_ids(self, partitions: Iterable[tuple[bytes, int]]) -> None:
        """Returns when this broker's view has each of these partitions that exists. Raises Unavailable.

        A client may have learned of a topic at another broker. Clients end for an unknown topic, and repeat the request for an
        error of the group.
        """
        known = [TopicPartition(TopicId(topic_id.hex()), Partition(number)) for topic_id, number in partitions]
        await self._broker.topic_cache.hear_of(known, timeout_s=LOOKUP_S)

    def _name(self, name: str, topic_id: bytes, *, by_id: bool) -> NamedTopic | TidelogError:
        """Returns how the store names the topic; UnknownTopic for an id that is not known here."""
        if not by_id:
            return NamedTopic(name)
        try:
            return NamedTopic(self._broker.topic_cache.by_id(TopicId(topic_id.hex())).name, topic_id.hex())
        except TidelogError as error:
            return error.with_traceback(None)

    async def _resolve(
        self, topics: Iterable[tuple[str, bytes, Sequence[int]]], *, by_id: bool, only_known: bool = False
    ) -> Sequence[TopicPartition | TidelogError]:
        """Returns the partitions of these topics, or why a caller may not name them. `only_known`: never waits, and raises Outdated
        where this broker's view lacks one."""
        named = [(self._name(name, topic_id, by_id=by_id), numbers) for name, topic_id, numbers in topics]
        known = [(topic, numbers) for topic, numbers in named if isinstance(topic, NamedTopic)]
        if len(known) == len(named) and (partitions := known_partitions(self._broker, known)) is not None:
            return partitions
        asked = [NamedPartition(topic.topic, number, topic.topic_id) for topic, numbers in known for number in numbers]
        found = iter(viewed_partitions(self._broker, asked) if only_known else await resolve_partitions(self._broker, asked))
        return [topic if isinstance(topic, TidelogError) else next(found) for topic, numbers in named for _ in numbers]


def _heartbeat(request: HeartbeatRequest) -> tuple[str, MemberId, InstanceId, Generation]:
    return (
        request.group_id,
        MemberId(request.member_id),
        InstanceId(request.group_instance_id or ""),
        Generation(request.generation_id),
    )


def _offset_response(
    number: int, at: TopicPartition | TidelogError, stored: StoredOffsets, *, by_id: bool
) -> OffsetFetchResponsePartitions:
    """Returns the committed offset of one partition; -1 if there is none, or if the topic does not exist."""
    answer = OffsetFetchResponsePartitions(partition_index=number, committed_offset=_NO_OFFSET, metadata="")
    if isinstance(at, TidelogError):
        if by_id or not isinstance(at, UnknownTopic):
            answer.error_code = group_topic_code(at, by_id=by_id)
    elif at in stored.damaged:
        answer.error_code = group_code(stored.damaged[at])
    elif (committed := stored.committed.get(at)) is not None:
        answer.committed_offset = committed.offset
        answer.committed_leader_epoch = committed.leader_epoch
        answer.metadata = committed.metadata
    return answer
