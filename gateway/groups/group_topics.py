"""Shows the coordinator the topics of the cluster as its assignors need them: by name, with their partitions. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from metadata.groups.reconciliation.model import GroupTopic
from metadata.model import TopicPartition
from metadata.topics.cache import TopicCache

# Returns all topics by name; the same object while none has changed. Raises Unavailable before they are known.
GroupTopics = Callable[[], Mapping[str, GroupTopic]]
# Returns when these topics hold each of the partitions that exists. Raises Unavailable.
HearOf = Callable[[Collection[TopicPartition]], Awaitable[None]]


def topics_of(cache: TopicCache) -> GroupTopics:
    """Returns the view of a topic cache. It is computed again after a change, not for each heartbeat."""
    known: Mapping[str, GroupTopic] | None = None

    def changed(*_: object) -> None:
        nonlocal known
        known = None

    def topics() -> Mapping[str, GroupTopic]:
        nonlocal known
        if known is None:
            known = {topic.name: GroupTopic(topic.id, topic.partition_count) for topic in cache.topics()}
        return known

    cache.subscribe(changed)
    return topics


def no_topics() -> Mapping[str, GroupTopic]:
    """Returns the topics of a coordinator that serves no groups of KIP-848."""
    return {}


async def nothing_to_hear_of(partitions: Collection[TopicPartition]) -> None:
    """Returns at once, for topics that never lag."""
