"""Makes what a member over HTTP offers when it joins, and its assignments if it is the group's leader. Pure.

    topics ─▶ protocols                 the subscription for each known assignor
    subscriptions of all ─▶ assignments, by the assignor that the coordinator chose (metadata/group_member/leader_assignment.py)

Between two requests such a member holds nothing, so it owns no partition when it joins, and watches no topic. As the leader, it
stores in its own assignment (user data, which only the member itself reads) how many partitions it saw of each topic. Later reads
of the member compare: if there are more, the member must join again, which begins a rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument
from metadata.group_member import leader_assignment
from metadata.group_member.leader_assignment import Subscribers
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    user_data_of_assignment,
)
from metadata.groups.model import Joined, MemberId, Protocol

# The preferred first. Every client of Kafka supports one of these.
ASSIGNORS_OFFERED: Final = ("cooperative-sticky", "sticky", "roundrobin", "range")
# A leader with more topics stores no counts; new partitions are assigned at the next rebalance for another reason.
SEEN_BYTES_MAX: Final = 16 << 10
_SEEN: Final = b"tidelog:seen:"


class Assignments(NamedTuple):
    """Holds the decoded assignment of a member."""

    # In order, each once.
    partitions: list[TopicPartitionName]
    # Partitions that the leader saw of each topic of the group; empty for other members.
    seen: Mapping[str, int]


def offers(topics: Iterable[str], assignors: Sequence[str]) -> tuple[Protocol, ...]:
    """Returns the protocols of a JoinGroup: the subscription for each assignor."""
    subscription = encode_subscription(Subscription(tuple(topics)))
    return tuple(Protocol(name, subscription) for name in assignors)


def assignments(joined: Joined, members: Subscribers, partition_counts: Mapping[str, int]) -> dict[MemberId, bytes]:
    """Returns the assignment of each member. `partition_counts` has every subscribed topic; 0 for one that does not exist."""
    there = {topic: count for topic, count in partition_counts.items() if count}
    made = leader_assignment.assignments(joined.protocol, there, members.readable)
    seen = _SEEN + encode_assignment({topic: [count] for topic, count in partition_counts.items()})
    if joined.member_id in made and len(seen) <= SEEN_BYTES_MAX:
        made[joined.member_id] = encode_assignment(decode_assignment(made[joined.member_id]), seen)
    return made


def assigned(assignment: bytes) -> Assignments:
    """Decodes an assignment without its unreadable parts and negative partitions, which a foreign leader may have sent."""
    try:
        partitions = decode_assignment(assignment)
    except InvalidArgument:
        return Assignments([], {})
    named = {(topic, number) for topic, numbers in partitions.items() for number in numbers if number >= 0}
    return Assignments(sorted(named), _seen(assignment))


def _seen(assignment: bytes) -> dict[str, int]:
    try:
        user_data = user_data_of_assignment(assignment)
        seen = decode_assignment(user_data.removeprefix(_SEEN)) if user_data.startswith(_SEEN) else {}
    except InvalidArgument:
        return {}
    return {topic: counts[0] for topic, counts in seen.items() if counts}
