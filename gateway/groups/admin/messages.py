"""What operators ask of consumer groups and are told, in protobuf's words and in ours (descriptions.py). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.groups.admin.descriptions import (
    FetchedOffset,
    GroupDescription,
    GroupMember,
    ListedGroup,
    MovedOffset,
    PartitionLag,
    SeekTo,
    TopicPartitions,
)
from gateway.proto import groups_pb2
from gateway.proto.status import error_of, status_of
from metadata.errors import InvalidArgument, TidelogError
from metadata.groups.model import check_group_name
from metadata.model import check_topic_name

PARTITION_END = 1 << 31

# ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────────────────


def describe_request(name: str) -> groups_pb2.DescribeGroupRequest:
    """Raises InvalidGroupName, as the others do."""
    return groups_pb2.DescribeGroupRequest(group=check_group_name(name))


def delete_request(name: str, *, validate_only: bool) -> groups_pb2.DeleteGroupRequest:
    return groups_pb2.DeleteGroupRequest(group=check_group_name(name), validate_only=validate_only)


def delete_offsets_request(name: str, topics: Sequence[TopicPartitions], *, validate_only: bool) -> groups_pb2.DeleteOffsetsRequest:
    """Raises InvalidName and InvalidArgument, too."""
    return groups_pb2.DeleteOffsetsRequest(group=check_group_name(name), topics=map(_asked, topics), validate_only=validate_only)


def seek_request(name: str, topics: Sequence[TopicPartitions], to: SeekTo, *, validate_only: bool) -> groups_pb2.SeekGroupRequest:
    request = groups_pb2.SeekGroupRequest(group=check_group_name(name), topics=map(_asked, topics), validate_only=validate_only)
    try:
        setattr(request, to.kind, to.kind in {"earliest", "latest"} or to.value)
    except ValueError:
        raise InvalidArgument(f"{to.value} does not fit 64 bits", field=to.kind) from None
    return request


def _asked(asked: TopicPartitions) -> groups_pb2.TopicPartitions:
    if not all(0 <= number < PARTITION_END for number in asked.partitions):
        raise InvalidArgument("a partition is a number from 0 to 2147483647", field="partitions")
    if not asked.topic_id.isascii():
        raise InvalidArgument("topic_id is not one of a topic", field="topic_id")
    return groups_pb2.TopicPartitions(topic=check_topic_name(asked.topic), partitions=asked.partitions, topic_id=asked.topic_id)


def named_topics(topics: Sequence[groups_pb2.TopicPartitions]) -> list[TopicPartitions]:
    return [TopicPartitions(asked.topic, tuple(asked.partitions), asked.topic_id) for asked in topics]


def seek_to(request: groups_pb2.SeekGroupRequest) -> SeekTo:
    kind = request.WhichOneof("to")
    if kind is None or (kind in {"earliest", "latest"} and not getattr(request, kind)):
        raise InvalidArgument(
            "nothing says where to", hint="Give one of earliest (true), latest (true), timestamp_ms, offset and shift.", field="to"
        )
    return SeekTo(kind) if kind in {"earliest", "latest"} else SeekTo(kind, getattr(request, kind))


# ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────────────


def listed_message(group: ListedGroup) -> groups_pb2.ListedGroup:
    return groups_pb2.ListedGroup(**group._asdict())


def lag_message(told: PartitionLag) -> groups_pb2.PartitionLag:
    return groups_pb2.PartitionLag(**_with_status(told))


def description_message(told: GroupDescription, lags: Sequence[groups_pb2.PartitionLag]) -> groups_pb2.GroupDescription:
    """`lags`: of its rows, in order."""
    return groups_pb2.GroupDescription(
        group=told.group,
        state=told.state,
        generation=told.generation,
        protocol_type=told.protocol_type,
        protocol=told.protocol,
        leader=told.leader,
        coordinator=told.coordinator,
        members=[groups_pb2.GroupMember(**member._asdict()) for member in told.members],
        lags=lags,
        lag_records=told.lag_records,
        lag_seconds=told.lag_seconds,
    )


def description(message: groups_pb2.GroupDescription, lags: Sequence[PartitionLag]) -> GroupDescription:
    return GroupDescription(
        group=message.group,
        state=message.state,
        generation=message.generation,
        protocol_type=message.protocol_type,
        protocol=message.protocol,
        leader=message.leader,
        coordinator=message.coordinator,
        members=tuple(GroupMember(*(getattr(member, field) for field in GroupMember._fields)) for member in message.members),
        lags=tuple(lags),
    )


def lag(message: groups_pb2.PartitionLag) -> PartitionLag:
    told = PartitionLag(*(getattr(message, field) for field in PartitionLag._fields))
    return told._replace(
        error=_error(message), committed_offset=told.committed_offset if message.HasField("committed_offset") else None
    )


def fetched_message(offset: FetchedOffset) -> groups_pb2.FetchedOffset:
    return groups_pb2.FetchedOffset(**offset._asdict())


def fetched(message: groups_pb2.FetchedOffset) -> FetchedOffset:
    return FetchedOffset(*(getattr(message, field) for field in FetchedOffset._fields))


def moved_message(offset: MovedOffset) -> groups_pb2.MovedOffset:
    return groups_pb2.MovedOffset(**_with_status(offset))


def moved(message: groups_pb2.MovedOffset) -> MovedOffset:
    before = message.before if message.HasField("before") else None
    asked = message.asked if message.HasField("asked") else None
    place = message.topic, message.topic_id, message.partition
    return MovedOffset(*place, _error(message), before, message.after, message.reason, asked)


def _with_status(row: PartitionLag | MovedOffset) -> dict[str, Any]:
    error: TidelogError | None = row.error
    return row._asdict() | {"error": None if error is None else status_of(error)}


def _error(message: groups_pb2.PartitionLag | groups_pb2.MovedOffset) -> TidelogError | None:
    return error_of(message.error) if message.HasField("error") else None
