"""Computes the assignment that the leader of a generation makes for all its members. Pure.

Invariant: a member whose subscription is unreadable is assigned nothing, and the others are assigned as if it were not there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metadata.errors import InvalidArgument
from metadata.groups.assignors import ASSIGNORS, Subscriber
from metadata.groups.consumer_protocol import decode_subscription, encode_assignment
from metadata.groups.model import Joined, JoinedMember, MemberId


class Subscribers(NamedTuple):
    """Holds the members of a generation as the assignors need them."""

    readable: tuple[Subscriber, ...]
    # Members with unreadable subscriptions.
    torn: tuple[MemberId, ...]

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(topic for subscriber in self.readable for topic in subscriber.topics)


def subscribers(joined: Joined) -> Subscribers:
    readable: list[Subscriber] = []
    torn: list[MemberId] = []
    for member in joined.members:
        try:
            readable.append(_subscriber(member))
        except InvalidArgument:
            torn.append(member.member_id)
    return Subscribers(tuple(readable), tuple(torn))


def _subscriber(member: JoinedMember) -> Subscriber:
    subscription = decode_subscription(member.metadata)
    owned = frozenset((topic, number) for topic, numbers in subscription.owned.items() for number in numbers)
    return Subscriber(member.member_id, frozenset(subscription.topics), member.instance_id, owned, subscription.generation)


def assignments(protocol: str, partition_counts: Mapping[str, int], members: Sequence[Subscriber]) -> dict[MemberId, bytes]:
    """Returns the assignments by member, in the bytes that SyncGroup carries. `protocol` is one of ASSIGNORS."""
    encoded: dict[MemberId, bytes] = {}
    for member_id, partitions in ASSIGNORS[protocol](partition_counts, members).items():
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            by_topic[topic].append(number)
        encoded[member_id] = encode_assignment(by_topic)
    return encoded


def has_grown(assigned: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Returns whether there are unassigned partitions. A lower count is ignored, as it may come from a stale cache."""
    return any(count > assigned.get(topic, 0) for topic, count in now.items())
