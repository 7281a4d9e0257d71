"""What a member that joins over HTTP offers, and what it brings as the leader of the members. Pure.

    topics ─▶ protocols                    every assignor that is known here, each with the subscription
    the subscriptions of all ─▶ assignments, by the assignor that the coordinator chose (metadata/group_member/leader_assignment.py)

Between two requests such a member holds nothing, so it owns nothing when it joins. Nobody watches the topics for it either: where
it is the leader, its own assignment carries how many partitions it saw of each topic (user data, which only the member itself
reads). Whoever reads for it later compares, and where there are more the member joins again, which begins a rebalance.
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

# The best first: whatever the other members know, one of these is among it.
ASSIGNORS_OFFERED: Final = ("cooperative-sticky", "sticky", "roundrobin", "range")
# Of so many topics that this is not enough, new partitions are noticed when the group rebalances for another reason.
SEEN_BYTES_MAX: Final = 16 << 10
_SEEN: Final = b"tidelog:seen:"


class Assignments(NamedTuple):
    # In order, each once.
    partitions: list[TopicPartitionName]
    # How many partitions the leader saw of each topic of the group. Empty but for the leader itself.
    seen: Mapping[str, int]


def offers(topics: Iterable[str], assignors: Sequence[str]) -> tuple[Protocol, ...]:
    subscription = encode_subscription(Subscription(tuple(topics)))
    return tuple(Protocol(name, subscription) for name in assignors)


def assignments(joined: Joined, members: Subscribers, partition_counts: Mapping[str, int]) -> dict[MemberId, bytes]:
    """`partition_counts` of all topics that somebody subscribes to; 0 of one that is not there."""
    there = {topic: count for topic, count in partition_counts.items() if count}
    made = leader_assignment.assignments(joined.protocol, there, members.readable)
    seen = _SEEN + encode_assignment({topic: [count] for topic, count in partition_counts.items()})
    if joined.member_id in made and len(seen) <= SEEN_BYTES_MAX:
        made[joined.member_id] = encode_assignment(decode_assignment(made[joined.member_id]), seen)
    return made


def assigned(assignment: bytes) -> Assignments:
    """What a member was told. What can't be read, and partitions below 0, are left out: the leader need not be one of ours."""
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
