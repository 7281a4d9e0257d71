"""Encodes and decodes the calls of group members to their coordinator, and its answers. Pure.

All that call a coordinator (the SDK, a broker that forwards a call) and the coordinator itself use this module. A message names a
topic and the id of its creation; values hold the id. The coordinator checks what a client sends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from gateway.proto.status import from_status, to_status
from gateway.proto.values import value_of
from metadata.errors import TidelogError, Unavailable
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import InstanceId, Joined, JoinedMember, JoinRequest, MemberId, Protocol, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, Revision, TopicId, TopicPartition

# ── join, sync, leave ───────────────────────────────────────────────────────────────────────────────────────────────────


def join_request(group: str, asked: JoinRequest) -> groups_pb2.JoinGroupRequest:
    protocols = [groups_pb2.GroupProtocol(**offered._asdict()) for offered in asked.protocols]
    return groups_pb2.JoinGroupRequest(group=group, **asked._asdict() | {"protocols": protocols})


def asked_to_join(request: groups_pb2.JoinGroupRequest) -> JoinRequest:
    return value_of(
        request,
        JoinRequest,
        protocols=tuple(value_of(offered, Protocol) for offered in request.protocols),
        rebalance_timeout_ms=request.rebalance_timeout_ms or request.session_timeout_ms,
    )


def join_response(joined: Joined) -> groups_pb2.JoinGroupResponse:
    members = [groups_pb2.JoinedMember(**member._asdict()) for member in joined.members]
    return groups_pb2.JoinGroupResponse(**joined._asdict() | {"members": members})


def joined(answer: groups_pb2.JoinGroupResponse) -> Joined:
    return value_of(answer, Joined, members=tuple(value_of(member, JoinedMember) for member in answer.members))


def sync_request(group: str, asked: SyncRequest) -> groups_pb2.SyncGroupRequest:
    return groups_pb2.SyncGroupRequest(group=group, **asked._asdict())


def asked_to_sync(request: groups_pb2.SyncGroupRequest) -> SyncRequest:
    return value_of(request, SyncRequest, assignments=dict(request.assignments))


def sync_response(synced: Synced) -> groups_pb2.SyncGroupResponse:
    return groups_pb2.SyncGroupResponse(**synced._asdict())


def synced(answer: groups_pb2.SyncGroupResponse) -> Synced:
    return value_of(answer, Synced)


def leave_request(group: str, leaving: Iterable[tuple[MemberId, InstanceId]]) -> groups_pb2.LeaveGroupRequest:
    members = [groups_pb2.LeavingMember(member_id=member_id, instance_id=instance_id) for member_id, instance_id in leaving]
    return groups_pb2.LeaveGroupRequest(group=group, members=members)


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


def offset_to_commit(message: groups_pb2.CommittedOffset) -> CommittedOffset:
    """Returns the offset without its time, which the coordinator sets."""
    leader_epoch = message.leader_epoch if message.HasField("leader_epoch") else -1
    return CommittedOffset(offset=message.offset, leader_epoch=leader_epoch, metadata=message.metadata, committed_at_ms=0)


def topic_partitions(partitions: Collection[TopicPartitionName]) -> list[groups_pb2.TopicPartitions]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return [groups_pb2.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def fetched_offset(topic: str, at: TopicPartition, committed: CommittedOffset | TidelogError | None) -> groups_pb2.FetchedOffset:
    """Makes the answer for one partition. `committed` is None without a commit, and an error if it cannot be read."""
    message = groups_pb2.FetchedOffset(topic=topic, topic_id=at.topic_id, partition=at.partition, leader_epoch=-1)
    if isinstance(committed, TidelogError):
        message.error.CopyFrom(to_status(committed))
    elif committed is not None:
        message.offset = committed.offset
        message.leader_epoch = committed.leader_epoch
        message.metadata = committed.metadata
        message.committed_at_ms = committed.committed_at_ms
    return message


def offset_fetched(message: groups_pb2.FetchedOffset, *, address: str = "") -> CommittedOffset | TidelogError | None:
    """Returns what `fetched_offset` was given. `address` is that of the broker that answered, as in `from_status`."""
    if message.HasField("error"):
        return from_status(message.error, address=address)
    if not message.HasField("offset"):
        return None
    return CommittedOffset(
        offset=message.offset, leader_epoch=message.leader_epoch, metadata=message.metadata, committed_at_ms=message.committed_at_ms
    )


def fetched_offsets(messages: Iterable[groups_pb2.FetchedOffset]) -> StoredOffsets:
    """Returns the committed offsets, and the errors of unreadable ones."""
    committed, damaged = dict[TopicPartition, CommittedOffset](), dict[TopicPartition, TidelogError]()
    for each in messages:
        at, found = TopicPartition(TopicId(each.topic_id), Partition(each.partition)), offset_fetched(each)
        if isinstance(found, TidelogError):
            damaged[at] = found
        elif found is not None:
            committed[at] = found
    return StoredOffsets(committed, damaged)


# ── errors, one for each of several, in order ───────────────────────────────────────────────────────────────────────────


def statuses(errors: Iterable[TidelogError | None]) -> list[Status]:
    """Returns a Status for each error; code 0 without an error."""
    return [status(error) for error in errors]


def status(error: TidelogError | None) -> Status:
    return Status() if error is None else to_status(error)


def errors_of(answered: Sequence[Status], asked: int, *, address: str = "") -> list[TidelogError | None]:
    """Returns the errors. Raises Unavailable unless there is one Status for each request. `address` is as in `from_status`."""
    if len(answered) != asked:
        details = {"address": address} if address else {}
        where = f"{address}: " if address else ""
        raise Unavailable(f"{where}the group's coordinator answered {len(answered)} of {asked}", **details)
    return [from_status(status, address=address) if status.code else None for status in answered]


def seen_brokers(revisions: Mapping[str, Revision], revision: Revision, proven_s_ago: float) -> groups_pb2.SeenBrokersResponse:
    brokers = (groups_pb2.SeenBroker(broker_id=broker_id, revision=seen) for broker_id, seen in revisions.items())
    answer = groups_pb2.SeenBrokersResponse(brokers=brokers, revision=revision)
    if math.isfinite(proven_s_ago):
        answer.proven_ms_ago = math.ceil(1000 * proven_s_ago)
    return answer
