"""Which member of a group reads which partitions. Pure: what all members subscribed to goes in, one assignment comes out.

    range               of each topic a run of neighbours; partition p of every topic goes to the same member
    roundrobin          all partitions in turn
    sticky              in balance, and beyond that as it was
    cooperative-sticky  the same, but what moves is first given up: its new owner gets it in the rebalance after (KIP-429)

Invariants: every partition of a subscribed topic goes to exactly one member that subscribes to it, but for those that
cooperative-sticky holds back; the same input gives the same assignment; with equal subscriptions no member has two partitions more
than another. Names and results of the first two are those of Kafka's assignors.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.groups.model import NO_INSTANCE, InstanceId, MemberId

TopicPartitionName = tuple[str, int]
Assignment = dict[MemberId, list[TopicPartitionName]]


class Subscriber(NamedTuple):
    member_id: MemberId
    topics: frozenset[str]
    instance_id: InstanceId = NO_INSTANCE
    # What the member holds, or held in `generation`.
    owned: frozenset[TopicPartitionName] = frozenset()
    generation: int = -1

    @property
    def order(self) -> tuple[bool, str, str]:
        """Static members first, by their instance ids: so their partitions stay when they restart."""
        return self.instance_id == NO_INSTANCE, self.instance_id, self.member_id


def range_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    assignment: Assignment = {subscriber.member_id: [] for subscriber in subscribers}
    for topic, count in sorted(partition_counts.items()):
        members = sorted((each for each in subscribers if topic in each.topics), key=lambda each: each.order)
        if not members:
            continue
        share, longer = divmod(count, len(members))
        start = 0
        for place, member in enumerate(members):
            end = start + share + (place < longer)
            assignment[member.member_id] += [(topic, partition) for partition in range(start, end)]
            start = end
    return assignment


def round_robin_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    assignment: Assignment = {subscriber.member_id: [] for subscriber in subscribers}
    members = sorted(subscribers, key=lambda each: each.order)
    turn = 0
    for partition in _all_partitions(partition_counts, subscribers):
        while partition[0] not in members[turn % len(members)].topics:
            turn += 1
        assignment[members[turn % len(members)].member_id].append(partition)
        turn += 1
    return assignment


def sticky_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    wanted = _all_partitions(partition_counts, subscribers)
    members = sorted(subscribers, key=lambda each: each.order)
    held = _present_owners(members, set(wanted))
    by_place: list[list[TopicPartitionName]] = [[] for _ in members]
    for partition in wanted:
        if (owner := held.get(partition)) is not None:
            by_place[owner].append(partition)
    _give_what_nobody_has([partition for partition in wanted if partition not in held], members, by_place)
    _balance(members, by_place)
    return {member.member_id: sorted(by_place[place]) for place, member in enumerate(members)}


def cooperative_sticky_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    """Whoever says that it holds a partition is believed, however old its generation: it may still be reading."""
    claimed: dict[TopicPartitionName, set[MemberId]] = defaultdict(set)
    for subscriber in subscribers:
        for partition in subscriber.owned:
            claimed[partition].add(subscriber.member_id)
    return {
        member: [partition for partition in partitions if claimed.get(partition, set()) <= {member}]
        for member, partitions in sticky_assignor(partition_counts, subscribers).items()
    }


Assignor = Callable[[Mapping[str, int], Sequence[Subscriber]], Assignment]
ASSIGNORS: Final[dict[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}


def _all_partitions(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> list[TopicPartitionName]:
    """Of all topics that somebody subscribes to, in order."""
    topics = {topic for subscriber in subscribers for topic in subscriber.topics}
    return [(topic, partition) for topic in sorted(topics) for partition in range(partition_counts.get(topic, 0))]


def _present_owners(members: Sequence[Subscriber], wanted: set[TopicPartitionName]) -> dict[TopicPartitionName, int]:
    """By place in `members`. The claim of the latest generation counts; where two claim in the same one, nobody's does."""
    claims: dict[TopicPartitionName, tuple[int, int | None]] = {}
    for place, member in enumerate(members):
        for partition in member.owned:
            if partition not in wanted or partition[0] not in member.topics:
                continue
            generation, _ = claims.get(partition, (-2, None))
            if member.generation > generation:
                claims[partition] = (member.generation, place)
            elif member.generation == generation:
                claims[partition] = (generation, None)
    return {partition: place for partition, (_, place) in claims.items() if place is not None}


def _give_what_nobody_has(
    partitions: Sequence[TopicPartitionName], members: Sequence[Subscriber], by_place: list[list[TopicPartitionName]]
) -> None:
    """Each to the subscriber that has least."""
    heaps: dict[str, list[tuple[int, int]]] = {}
    for partition in partitions:
        topic = partition[0]
        if topic not in heaps:
            heaps[topic] = [(len(by_place[place]), place) for place, member in enumerate(members) if topic in member.topics]
            heapq.heapify(heaps[topic])
        heap = heaps[topic]
        while heap[0][0] != len(by_place[heap[0][1]]):  # it was given something of another topic meanwhile
            heapq.heapreplace(heap, (len(by_place[heap[0][1]]), heap[0][1]))
        size, place = heap[0]
        by_place[place].append(partition)
        heapq.heapreplace(heap, (size + 1, place))


def _balance(members: Sequence[Subscriber], by_place: list[list[TopicPartitionName]]) -> None:
    """Moves one partition after the other, each from who has most to who has least of those that could have it, until nobody has
    two more than such another. Who has most gives first: so nobody is given what he gave away, and the fewest move."""
    places_of: dict[str, list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        for topic in member.topics:
            places_of[topic].append(place)
    for partitions in by_place:
        partitions.sort()
    while any(_give_one_away(giver, places_of, by_place) for giver in _by_size(by_place)):
        pass


def _by_size(by_place: Sequence[Sequence[TopicPartitionName]]) -> list[int]:
    """The places of those who have something, most first."""
    return sorted((place for place, held in enumerate(by_place) if held), key=lambda place: -len(by_place[place]))


def _give_one_away(giver: int, places_of: Mapping[str, Sequence[int]], by_place: list[list[TopicPartitionName]]) -> bool:
    """The latest partition that somebody has room for. Whether there was one."""
    held = by_place[giver]
    full: set[str] = set()
    for at in reversed(range(len(held))):
        topic = held[at][0]
        if topic in full:
            continue
        taker = min(places_of[topic], key=lambda place: (len(by_place[place]), place))
        if len(held) >= len(by_place[taker]) + 2:
            insort(by_place[taker], held.pop(at))
            return True
        full.add(topic)
    return False
