"""What operators are told of consumer groups: values, named as the messages of gateway/proto/groups.proto. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from metadata.errors import InvalidArgument, TidelogError
from metadata.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    user_data_of_assignment,
)


class TopicPartitions(NamedTuple):
    """Which partitions of a topic are meant."""

    topic: str
    partitions: Sequence[int] = ()
    """None: all."""
    topic_id: str = ""
    """Of this life of the topic; empty: whichever is there."""


class SeekTo(NamedTuple):
    """Where the committed offsets of a group are moved."""

    kind: Literal["earliest", "latest", "timestamp_ms", "offset", "shift"]
    value: int = 0
    """A time, an offset, or records on from what is committed (below 0: back)."""


class ListedGroup(NamedTuple):
    group: str
    state: str
    """As it was stored last: Empty, CompletingRebalance or Stable."""
    protocol_type: str
    members: int
    coordinator: str
    """Broker id; empty where nobody coordinates it at the moment."""


class GroupPage(NamedTuple):
    groups: tuple[ListedGroup, ...]
    """In byte order of their keys. Fewer than were asked for, or none, does not mean that this is the last page."""
    next_page_token: str
    """Empty on the last page."""


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int


class PartitionLag(NamedTuple):
    """How far the group is behind in one partition that it has committed an offset of, or that a member reads."""

    topic: str
    topic_id: str
    partition: int
    error: TidelogError | None = None
    """Why the log's end, the age of the first unread record, or what was committed can't be told."""
    committed_offset: int | None = None
    high_watermark: int = -1
    """-1 where it can't be told, as the next."""
    log_start_offset: int = -1
    lag_records: int = 0
    lag_seconds: float = 0.0
    """Age of the first record that is not read yet; 0 where there is none."""
    member_id: str = ""
    """That owns the partition, as far as its assignment is Kafka's own form."""
    metadata: str = ""
    committed_at_ms: int = 0


class GroupDescription(NamedTuple):
    group: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: str
    members: tuple[GroupMember, ...]
    lags: tuple[PartitionLag, ...]
    """By topic and partition."""

    @property
    def lag_records(self) -> int:
        """Of all partitions together, as far as they can be told."""
        return sum(lag.lag_records for lag in self.lags)

    @property
    def lag_seconds(self) -> float:
        """Of the partition that is furthest behind."""
        return max((lag.lag_seconds for lag in self.lags), default=0.0)


def seen_by(group: GroupDescription, may_see: Callable[[str], bool]) -> GroupDescription:
    """The same without the topics that its reader may not see. What members of other kinds than Kafka's consumers tell each other
    stays as it is: nobody knows what it means."""
    members = group.members
    if group.protocol_type == PROTOCOL_TYPE:
        members = tuple(_member_seen(member, may_see) for member in members)
    return group._replace(members=members, lags=tuple(lag for lag in group.lags if may_see(lag.topic)))


def _member_seen(member: GroupMember, may_see: Callable[[str], bool]) -> GroupMember:
    """As it is, where there is nothing to hide; empty in place of what can't be read."""
    subscribed, assigned = member.metadata, member.assignment
    try:
        wanted = decode_subscription(subscribed)
        if not all(map(may_see, (*wanted.topics, *wanted.owned))):
            topics = tuple(filter(may_see, wanted.topics))
            subscribed = encode_subscription(wanted._replace(topics=topics, owned=_seen(wanted.owned, may_see)))
    except InvalidArgument:
        subscribed = b""
    try:
        partitions = decode_assignment(assigned)
        if not all(map(may_see, partitions)):
            assigned = encode_assignment(_seen(partitions, may_see), user_data_of_assignment(assigned))
    except InvalidArgument:
        assigned = b""
    return member._replace(metadata=subscribed, assignment=assigned)


def _seen(partitions: Mapping[str, Sequence[int]], may_see: Callable[[str], bool]) -> dict[str, Sequence[int]]:
    return {topic: numbers for topic, numbers in partitions.items() if may_see(topic)}


class FetchedOffset(NamedTuple):
    """What was committed of one partition."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    """-1 where what was stored could not be read."""
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class MovedOffset(NamedTuple):
    topic: str
    topic_id: str
    partition: int
    error: TidelogError | None
    """Why it can't be moved; `after` says nothing then."""
    before: int | None
    after: int
    """Within the log, whatever was asked for."""
    reason: str = ""
    """Why that is not what was asked for, as seek.py tells it; empty where it is."""
    asked: int | None = None
    """The offset that was asked for then, where there is one."""


def assigned_partitions(protocol_type: str, assignment: bytes) -> dict[str, list[int]]:
    """By topic; none where the assignment is not in the form of Kafka's consumers."""
    if protocol_type != PROTOCOL_TYPE:
        return {}
    try:
        return decode_assignment(assignment)
    except InvalidArgument:
        return {}
