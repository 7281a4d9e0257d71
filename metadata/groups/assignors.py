"""Assigns partitions to the members of a group. Pure: the subscriptions of all members go in, one assignment comes out.

    range               gives each member a run of neighbours of each topic; partition p of every topic goes to the same member
    roundrobin          deals all partitions in turn
    sticky              balances, and moves as few partitions as that takes
    cooperative-sticky  also lets what moves be given up first: its new owner gets it in the next rebalance (KIP-429)

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
    """Describes a member to the assignors: its topics and what it owns."""

    member_id: MemberId
    topics: frozenset[str]
    instance_id: InstanceId = NO_INSTANCE
    # What the member owns, or owned in `generation`.
    owned: frozenset[TopicPartitionName] = frozenset()
    generation: int = -1

    @property
    def order(self) -> tuple[bool, str, str]:
        """Sorts static members first, by instance id, so that their partitions stay when they restart."""
        return self.instance_id == NO_INSTANCE, self.instance_id, self.member_id


def range_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    assignment: Assignment = {subscriber.member_id: [] for subscriber in subscribers}
    for topic, count in sorted(partition_counts.items()):
        members = sorted((each for each in subscribers if topic in each.topics), key=lambda each: each.order)
        if not members:
            continue
        share, longer = divmod(count, len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + share + (index < longer)
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
    by_index: list[list[TopicPartitionName]] = [[] for _ in members]
    for partition in wanted:
        if (owner := held.get(partition)) is not None:
            by_index[owner].append(partition)
    _give_unowned([partition for partition in wanted if partition not in held], members, by_index)
    _balance(members, by_index)
    return {member.member_id: sorted(by_index[index]) for index, member in enumerate(members)}


def cooperative_sticky_assignor(partition_counts: Mapping[str, int], subscribers: Sequence[Subscriber]) -> Assignment:
    """Holds back partitions that another member claims to own, however old its generation: it may still be reading."""
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
    """Returns all partitions of subscribed topics, in order."""
    topics = {topic for subscriber in subscribers for topic in subscriber.topics}
    return [(topic, partition) for topic in sorted(topics) for partition in range(partition_counts.get(topic, 0))]


def _present_owners(members: Sequence[Subscriber], wanted: set[TopicPartitionName]) -> dict[TopicPartitionName, int]:
    """Returns owners by place in `members`. The claim of the latest generation counts; two claims in the same one cancel out."""
    claims: dict[TopicPartitionName, tuple[int, int | None]] = {}
    for index, member in enumerate(members):
        for partition in member.owned:
            if partition not in wanted or partition[0] not in member.topics:
                continue
            generation, _ = claims.get(partition, (-2, None))
            if member.generation > generation:
                claims[partition] = (member.generation, index)
            elif member.generation == generation:
                claims[partition] = (generation, None)
    return {partition: index for partition, (_, index) in claims.items() if index is not None}


def _give_unowned(
    partitions: Sequence[TopicPartitionName], members: Sequence[Subscriber], by_index: list[list[TopicPartitionName]]
) -> None:
    """Gives each partition to the subscriber that has least."""
    heaps: dict[str, list[tuple[int, int]]] = {}
    for partition in partitions:
        topic = partition[0]
        if topic not in heaps:
            heaps[topic] = [(len(by_index[index]), index) for index, member in enumerate(members) if topic in member.topics]
            heapq.heapify(heaps[topic])
        heap = heaps[topic]
        while heap[0][0] != len(by_index[heap[0][1]]):  # it was given a partition of another topic meanwhile
            heapq.heapreplace(heap, (len(by_index[heap[0][1]]), heap[0][1]))
        size, index = heap[0]
        by_index[index].append(partition)
        heapq.heapreplace(heap, (size + 1, index))


def _balance(members: Sequence[Subscriber], by_index: list[list[TopicPartitionName]]) -> None:
    """Moves single partitions, from the largest owner to the smallest that may have them, until no two differ by two or more.

    The largest gives first: so no member receives what it gave away, and the fewest partitions move.
    """
    subscribers_of: dict[str, list[int]] = defaultdict(list)
    for index, member in enumerate(members):
        for topic in member.topics:
            subscribers_of[topic].append(index)
    for partitions in by_index:
        partitions.sort()
    while any(_give_one_away(giver, subscribers_of, by_index) for giver in _by_size(by_index)):
        pass


def _by_size(by_index: Sequence[Sequence[TopicPartitionName]]) -> list[int]:
    """Returns the indexes of members that own partitions, the largest first."""
    return sorted((index for index, held in enumerate(by_index) if held), key=lambda index: -len(by_index[index]))


def _give_one_away(giver: int, subscribers_of: Mapping[str, Sequence[int]], by_index: list[list[TopicPartitionName]]) -> bool:
    """Moves the last partition for which a member has room. Returns whether there was one."""
    held = by_index[giver]
    full: set[str] = set()
    for at in reversed(range(len(held))):
        topic = held[at][0]
        if topic in full:
            continue
        taker = min(subscribers_of[topic], key=lambda index: (len(by_index[index]), index))
        if len(held) >= len(by_index[taker]) + 2:
            insort(by_index[taker], held.pop(at))
            return True
        full.add(topic)
    return False
