"""What members of consumer groups ask and are told, in protobuf's words and in ours. Pure.

Topics are named on the wire, with the id of the life that is meant; metadata/groups/model.py has no topics, and the store has ids.
What comes from a client is checked by whoever decides; here only what no value of ours can hold.

What a member of a consumer group asks of its coordinator, and is told, in protobuf's words and in ours. Pure.

For all that call a coordinator: the SDK, and a broker that sends a call on. Who answers has the other direction in
group_messages.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from gateway.proto.status import error_of, status_of
from metadata.errors import TidelogError, Unavailable
from metadata.groups.model import (
    Generation,
    InstanceId,
    Joined,
    JoinedMember,
    JoinRequest,
    MemberId,
    Protocol,
    Synced,
    SyncRequest,
)
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, Revision, TopicId, TopicPartition

# ── join ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked_to_join(request: groups_pb2.JoinGroupRequest) -> JoinRequest:
    return JoinRequest(
        member_id=MemberId(request.member_id),
        instance_id=InstanceId(request.instance_id),
        client_id=request.client_id,
        client_host=request.client_host,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(offered.name, offered.metadata) for offered in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms or request.session_timeout_ms,
        member_id_required=request.member_id_required,
    )


def join_response(told: Joined) -> groups_pb2.JoinGroupResponse:
    return groups_pb2.JoinGroupResponse(
        generation=told.generation,
        protocol_type=told.protocol_type,
        protocol=told.protocol,
        leader=told.leader,
        member_id=told.member_id,
        members=[groups_pb2.JoinedMember(**member._asdict()) for member in told.members],
        skip_assignment=told.skip_assignment,
    )


# ── sync ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked_to_sync(request: groups_pb2.SyncGroupRequest) -> SyncRequest:
    return SyncRequest(
        member_id=MemberId(request.member_id),
        instance_id=InstanceId(request.instance_id),
        generation=Generation(request.generation),
        assignments={MemberId(member_id): assignment for member_id, assignment in request.assignments.items()},
        protocol_type=request.protocol_type,
        protocol=request.protocol,
    )


def sync_response(told: Synced) -> groups_pb2.SyncGroupResponse:
    return groups_pb2.SyncGroupResponse(**told._asdict())


# ── leave ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked_to_leave(request: groups_pb2.LeaveGroupRequest) -> list[tuple[MemberId, InstanceId]]:
    return [(MemberId(member.member_id), InstanceId(member.instance_id)) for member in request.members]


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def committed_offset(topic: str, at: TopicPartition, committed: CommittedOffset) -> groups_pb2.CommittedOffset:
    return groups_pb2.CommittedOffset(
        topic=topic,
        topic_id=at.topic_id,
        partition=at.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
    )


def offset_to_commit(told: groups_pb2.CommittedOffset) -> CommittedOffset:
    """Without its time, which is the coordinator's to tell."""
    leader_epoch = told.leader_epoch if told.HasField("leader_epoch") else -1
    return CommittedOffset(offset=told.offset, leader_epoch=leader_epoch, metadata=told.metadata, committed_at_ms=0)


def fetched_offset(topic: str, at: TopicPartition, committed: CommittedOffset | TidelogError | None) -> groups_pb2.FetchedOffset:
    """`committed` is None where nothing was, and an error where it can't be read."""
    told = groups_pb2.FetchedOffset(topic=topic, topic_id=at.topic_id, partition=at.partition, leader_epoch=-1)
    if isinstance(committed, TidelogError):
        told.error.CopyFrom(status_of(committed))
    elif committed is not None:
        told.offset = committed.offset
        told.leader_epoch = committed.leader_epoch
        told.metadata = committed.metadata
        told.committed_at_ms = committed.committed_at_ms
    return told


def fetched_offsets(told: Iterable[groups_pb2.FetchedOffset]) -> StoredOffsets:
    """Those that are committed, and those that can't be read."""
    committed, damaged = dict[TopicPartition, CommittedOffset](), dict[TopicPartition, TidelogError]()
    for each in told:
        at = TopicPartition(TopicId(each.topic_id), Partition(each.partition))
        if each.HasField("error"):
            damaged[at] = error_of(each.error)
        elif each.HasField("offset"):
            committed[at] = CommittedOffset(
                offset=each.offset, leader_epoch=each.leader_epoch, metadata=each.metadata, committed_at_ms=each.committed_at_ms
            )
    return StoredOffsets(committed, damaged)


# ── errors, one for each of several, in order ───────────────────────────────────────────────────────────────────────────


def statuses(errors: Iterable[TidelogError | None]) -> list[Status]:
    """Code 0 where there is none."""
    return [status(error) for error in errors]


def status(error: TidelogError | None) -> Status:
    return Status() if error is None else status_of(error)


def errors_of(told: Sequence[Status], asked: int) -> list[TidelogError | None]:
    if len(told) != asked:
        raise Unavailable(f"the group's coordinator answered {len(told)} of {asked}")
    return [error_of(status) if status.code else None for status in told]


def seen_brokers(revisions: Mapping[str, Revision], revision: Revision, proven_s_ago: float) -> groups_pb2.SeenBrokersResponse:
    brokers = (groups_pb2.SeenBroker(broker_id=broker_id, revision=seen) for broker_id, seen in revisions.items())
    answer = groups_pb2.SeenBrokersResponse(brokers=brokers, revision=revision)
    if math.isfinite(proven_s_ago):
        answer.proven_ms_ago = math.ceil(1000 * proven_s_ago)
    return answer


def join_request(group: str, asked: JoinRequest) -> groups_pb2.JoinGroupRequest:
    return groups_pb2.JoinGroupRequest(
        group=group,
        member_id=asked.member_id,
        instance_id=asked.instance_id,
        protocol_type=asked.protocol_type,
        protocols=[groups_pb2.GroupProtocol(name=offered.name, metadata=offered.metadata) for offered in asked.protocols],
        session_timeout_ms=asked.session_timeout_ms,
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        client_id=asked.client_id,
        member_id_required=asked.member_id_required,
        client_host=asked.client_host,
    )


def joined(answer: groups_pb2.JoinGroupResponse) -> Joined:
    return Joined(
        generation=Generation(answer.generation),
        protocol_type=answer.protocol_type,
        protocol=answer.protocol,
        leader=MemberId(answer.leader),
        member_id=MemberId(answer.member_id),
        members=tuple(
            JoinedMember(MemberId(member.member_id), InstanceId(member.instance_id), member.metadata) for member in answer.members
        ),
        skip_assignment=answer.skip_assignment,
    )


def sync_request(group: str, asked: SyncRequest) -> groups_pb2.SyncGroupRequest:
    return groups_pb2.SyncGroupRequest(
        group=group,
        member_id=asked.member_id,
        instance_id=asked.instance_id,
        generation=asked.generation,
        protocol_type=asked.protocol_type,
        protocol=asked.protocol,
        assignments={str(member_id): assignment for member_id, assignment in asked.assignments.items()},
    )


def synced(answer: groups_pb2.SyncGroupResponse) -> Synced:
    return Synced(answer.protocol_type, answer.protocol, answer.assignment)


def leave_request(group: str, leaving: Iterable[tuple[MemberId, InstanceId]]) -> groups_pb2.LeaveGroupRequest:
    members = [groups_pb2.LeavingMember(member_id=member_id, instance_id=instance_id) for member_id, instance_id in leaving]
    return groups_pb2.LeaveGroupRequest(group=group, members=members)
