"""What a member asks of its group's coordinator, and is told, in protobuf's words and in ours. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from metadata.assignors import TopicPartitionName
from metadata.errors import TidelogError, Unavailable
from metadata.group_model import (
    Generation,
    InstanceId,
    Joined,
    JoinedMember,
    JoinRequest,
    MemberId,
    Synced,
    SyncRequest,
)
from tidelog.group_positions import Offset
from tidelog.rpc_errors import error_of_status


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
    )


def joined(answer: groups_pb2.JoinGroupResponse) -> Joined:
    return Joined(
        Generation(answer.generation),
        answer.protocol_type,
        answer.protocol,
        MemberId(answer.leader),
        MemberId(answer.member_id),
        tuple(JoinedMember(MemberId(each.member_id), InstanceId(each.instance_id), each.metadata) for each in answer.members),
        answer.skip_assignment,
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


def leave_request(group: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> groups_pb2.LeaveGroupRequest:
    members = [groups_pb2.LeavingMember(member_id=member_id, instance_id=instance_id) for member_id, instance_id in leaving]
    return groups_pb2.LeaveGroupRequest(group=group, members=members)


def committed_offset(partition: TopicPartitionName, offset: Offset) -> groups_pb2.CommittedOffset:
    topic, number = partition
    return groups_pb2.CommittedOffset(
        topic=topic, partition=number, offset=offset.offset, leader_epoch=offset.leader_epoch, topic_id=offset.topic_id
    )


def topic_partitions(partitions: Collection[TopicPartitionName]) -> list[groups_pb2.TopicPartitions]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return [groups_pb2.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def fetched_offsets(answer: groups_pb2.OffsetFetchResponse, *, address: str) -> Mapping[TopicPartitionName, Offset | TidelogError]:
    """Those that are committed, and those that can't be told."""
    found: dict[TopicPartitionName, Offset | TidelogError] = {}
    for each in answer.offsets:
        if each.HasField("error") and each.error.code:
            found[each.topic, each.partition] = error_of_status(each.error, address=address)
        elif each.HasField("offset"):
            found[each.topic, each.partition] = Offset(each.offset, each.leader_epoch, each.topic_id)
    return found


def errors_of(told: Sequence[Status], *, asked: int, address: str) -> list[TidelogError | None]:
    """One for each of what was asked, in order."""
    if len(told) != asked:
        raise Unavailable(f"{address}: it answered {len(told)} of {asked}", address=address)
    return [error_of_status(status, address=address) if status.code else None for status in told]
