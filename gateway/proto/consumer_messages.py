"""Encodes and decodes the heartbeats of KIP-848 between a broker and the coordinator, and what operators see of members. Pure.

An absent field of a request says that nothing changed since the member's last heartbeat.
"""

from __future__ import annotations

from gateway.proto import groups_pb2
from metadata.groups.model import InstanceId, MemberId
from metadata.groups.reconciliation.model import Beat, ConsumerMember, Heartbeat, Partitions
from metadata.model import Partition, TopicId, TopicPartition


def heartbeat_request(group: str, asked: Heartbeat) -> groups_pb2.ConsumerHeartbeatRequest:
    return groups_pb2.ConsumerHeartbeatRequest(
        group=group,
        member_id=asked.member_id,
        epoch=asked.epoch,
        instance_id=asked.instance_id,
        rack=asked.rack,
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        topics=None if asked.topics is None else groups_pb2.SubscribedTopics(names=sorted(asked.topics)),
        pattern=asked.pattern,
        assignor=asked.assignor,
        owned=None if asked.owned is None else assigned(asked.owned),
        client_id=asked.client_id,
        client_host=asked.client_host,
    )


def asked_to_beat(request: groups_pb2.ConsumerHeartbeatRequest) -> Heartbeat:
    return Heartbeat(
        member_id=MemberId(request.member_id),
        epoch=request.epoch,
        instance_id=InstanceId(request.instance_id),
        rack=request.rack if request.HasField("rack") else None,
        rebalance_timeout_ms=request.rebalance_timeout_ms if request.HasField("rebalance_timeout_ms") else None,
        topics=frozenset(request.topics.names) if request.HasField("topics") else None,
        pattern=request.pattern if request.HasField("pattern") else None,
        assignor=request.assignor if request.HasField("assignor") else None,
        owned=partitions_of(request.owned) if request.HasField("owned") else None,
        client_id=request.client_id,
        client_host=request.client_host,
    )


def heartbeat_response(beat: Beat) -> groups_pb2.ConsumerHeartbeatResponse:
    assignment = None if beat.assignment is None else assigned(beat.assignment)
    return groups_pb2.ConsumerHeartbeatResponse(
        member_id=beat.member_id, epoch=beat.epoch, assignment=assignment, interval_ms=beat.interval_ms
    )


def beat_of(answer: groups_pb2.ConsumerHeartbeatResponse) -> Beat:
    assignment = partitions_of(answer.assignment) if answer.HasField("assignment") else None
    return Beat(MemberId(answer.member_id), answer.epoch, assignment, answer.interval_ms)


def described(member: ConsumerMember) -> groups_pb2.ConsumerMember:
    return groups_pb2.ConsumerMember(
        epoch=member.epoch,
        rack=member.rack,
        topics=sorted(member.topics),
        pattern=member.pattern,
        assigned=assigned(member.held),
        target=assigned(member.target),
    )


def assigned(partitions: Partitions) -> groups_pb2.AssignedPartitions:
    numbers: dict[TopicId, list[int]] = {}
    for at in sorted(partitions):
        numbers.setdefault(at.topic_id, []).append(at.partition)
    topics = [groups_pb2.AssignedTopic(topic_id=topic_id, partitions=each) for topic_id, each in numbers.items()]
    return groups_pb2.AssignedPartitions(topics=topics)


def partitions_of(assigned: groups_pb2.AssignedPartitions) -> Partitions:
    return frozenset(
        TopicPartition(TopicId(each.topic_id), Partition(number)) for each in assigned.topics for number in each.partitions
    )
