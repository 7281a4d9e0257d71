"""Completes a GroupDescription of gateway/proto/groups.proto for its reader, and opens assignments of members. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.proto import groups_pb2
from metadata.errors import InvalidArgument
from metadata.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    user_data_of_assignment,
)


def hide_topics(group: groups_pb2.GroupDescription, may_see: Callable[[str], bool]) -> None:
    """Removes the topics that the reader may not see from the description, and counts the lag without them.

    What members of other kinds than Kafka's consumers send each other stays as it is: its meaning is not known.
    """
    if group.protocol_type == PROTOCOL_TYPE:
        for member in group.members:
            _hide_from_member(member, may_see)
    seen = [lag for lag in group.lags if may_see(lag.topic)]
    if len(seen) < len(group.lags):
        del group.lags[:]
        group.lags.extend(seen)
        sum_lags(group)


def _hide_from_member(member: groups_pb2.GroupMember, may_see: Callable[[str], bool]) -> None:
    """Hides topics from one member; a member without hidden topics stays as it is, and unreadable fields are emptied."""
    try:
        wanted = decode_subscription(member.metadata)
        if not all(map(may_see, (*wanted.topics, *wanted.owned))):
            topics = tuple(filter(may_see, wanted.topics))
            member.metadata = encode_subscription(wanted._replace(topics=topics, owned=_seen(wanted.owned, may_see)))
    except InvalidArgument:
        member.metadata = b""
    try:
        partitions = decode_assignment(member.assignment)
        if not all(map(may_see, partitions)):
            member.assignment = encode_assignment(_seen(partitions, may_see), user_data_of_assignment(member.assignment))
    except InvalidArgument:
        member.assignment = b""


def _seen(partitions: Mapping[str, Sequence[int]], may_see: Callable[[str], bool]) -> dict[str, Sequence[int]]:
    return {topic: numbers for topic, numbers in partitions.items() if may_see(topic)}


def sum_lags(group: groups_pb2.GroupDescription) -> None:
    """Sets the lag of the whole group from its partitions, as far as theirs is known."""
    group.lag_records = sum(lag.lag_records for lag in group.lags)
    group.lag_seconds = max((lag.lag_seconds for lag in group.lags), default=0.0)


def assigned_partitions(protocol_type: str, assignment: bytes) -> dict[str, list[int]]:
    """Returns the assigned partitions by topic; none if the assignment is not in the form of Kafka's consumers."""
    if protocol_type != PROTOCOL_TYPE:
        return {}
    try:
        return decode_assignment(assignment)
    except InvalidArgument:
        return {}
