"""What a member asks of its group's coordinator, and is told, in protobuf's words and in ours. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from google.rpc.status_pb2 import Status

from gateway.proto import groups_pb2
from gateway.proto.status import error_of
from metadata.errors import TidelogError, Unavailable
from metadata.groups.assignors import TopicPartitionName
from tidelog.group.positions import Offset


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
            found[each.topic, each.partition] = error_of(each.error, address=address)
        elif each.HasField("offset"):
            found[each.topic, each.partition] = Offset(each.offset, each.leader_epoch, each.topic_id)
    return found


def errors_of(told: Sequence[Status], *, asked: int, address: str) -> list[TidelogError | None]:
    """One for each of what was asked, in order."""
    if len(told) != asked:
        raise Unavailable(f"{address}: it answered {len(told)} of {asked}", address=address)
    return [error_of(status, address=address) if status.code else None for status in told]
