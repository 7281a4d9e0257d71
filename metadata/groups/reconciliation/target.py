"""Computes which partitions each member of a group shall own. Pure.

    uniform   gives each member as many partitions as any other, and moves as few as that takes
    range     gives each member a run of neighbours of each topic, the same run of topics with as many partitions

The assignor is the one that most members prefer; `uniform` where none prefers any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from metadata.groups.assignors import Assignor, Subscriber, range_assignor, sticky_assignor
from metadata.groups.model import MemberId
from metadata.groups.reconciliation.model import ConsumerMember, GroupTopic, Partitions
from metadata.model import Partition, TopicPartition

UNIFORM: Final = "uniform"
SERVER_ASSIGNORS: Final[dict[str, Assignor]] = {UNIFORM: sticky_assignor, "range": range_assignor}


def preferred_assignor(members: Mapping[MemberId, ConsumerMember]) -> str:
    """Returns the assignor that most members prefer; of equals, the first one in SERVER_ASSIGNORS."""
    votes = Counter(member.assignor for member in members.values() if member.assignor)
    return max(SERVER_ASSIGNORS, key=lambda name: votes[name]) if votes else UNIFORM


def target_assignment(
    assignor: str,
    members: Mapping[MemberId, ConsumerMember],
    subscriptions: Mapping[MemberId, frozenset[str]],
    topics: Mapping[str, GroupTopic],
) -> dict[MemberId, Partitions]:
    """Returns the target of each member. `subscriptions`: the topics of each member, with what its pattern matches."""
    names = {topic.topic_id: name for name, topic in topics.items()}
    subscribers = [
        Subscriber(
            member.member_id,
            subscriptions[member.member_id] & topics.keys(),
            member.instance_id,
            frozenset((names[each.topic_id], int(each.partition)) for each in member.target if each.topic_id in names),
        )
        for member in members.values()
    ]
    counts = {name: topic.partition_count for name, topic in topics.items()}
    found: dict[MemberId, Partitions] = defaultdict(frozenset)
    for member_id, partitions in SERVER_ASSIGNORS[assignor](counts, subscribers).items():
        found[member_id] = frozenset(TopicPartition(topics[name].topic_id, Partition(number)) for name, number in partitions)
    return {member_id: found[member_id] for member_id in members}
