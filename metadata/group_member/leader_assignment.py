"""What the member that leads a generation does for all: it reads what they asked for, and says who reads what. Pure.

Invariant: what one member sends can't spoil the assignment of the others: one whose subscription can't be read is given nothing.
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
    readable: tuple[Subscriber, ...]
    # Whose subscriptions can't be read.
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
    told = decode_subscription(member.metadata)
    owned = frozenset((topic, number) for topic, numbers in told.owned.items() for number in numbers)
    return Subscriber(member.member_id, frozenset(told.topics), member.instance_id, owned, told.generation)


def assignments(protocol: str, partition_counts: Mapping[str, int], members: Sequence[Subscriber]) -> dict[MemberId, bytes]:
    """By member, in the bytes that SyncGroup carries. `protocol` is one of ASSIGNORS."""
    encoded: dict[MemberId, bytes] = {}
    for member_id, partitions in ASSIGNORS[protocol](partition_counts, members).items():
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            by_topic[topic].append(number)
        encoded[member_id] = encode_assignment(by_topic)
    return encoded


def has_grown(assigned: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether there are partitions that nobody was assigned. Fewer are no news: who tells may have heard less."""
    return any(count > assigned.get(topic, 0) for topic, count in now.items())
