"""What a member of a consumer group asks of its coordinator, and is told, in protobuf's words and in ours. Pure.

For all that call a coordinator: the SDK, and a broker that sends a call on. Who answers has the other direction in
group_messages.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.proto import groups_pb2
from metadata.groups.model import Generation, InstanceId, Joined, JoinedMember, JoinRequest, MemberId, Synced, SyncRequest


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
