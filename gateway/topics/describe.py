"""Describes topics and their partitions to every listener, from this broker's watches, whichever broker leads them.

It therefore works without the metadata store. Leaders are answered at once if only they are asked for, as by clients that look for
leaders. Only a partition's leader knows its bounds. They are awaited as ClusterLog.bounds_of does with BOUNDS_WAIT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.access.authorization import check_topic, may_see_topic
from gateway.access.refusals import settle_topic
from gateway.routing.log_service import LogService
from gateway.topics.names import BOUNDS_WAIT_S, LOOKUP_S, TopicLookup, named, partition_of
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.model import TopicPartition
from metadata.topics.registry import TopicPage, page_of
from metadata.topics.topic import Topic
from segments.partition.partition_log import Bounds


class DescribedLog(TopicLookup, Protocol):
    """The topics, with the leaders and the bounds of their partitions."""

    @property
    def cluster_log(self) -> LogService: ...

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None: ...

    def leader_epoch(self, partition: TopicPartition) -> int: ...


class PartitionDescription(NamedTuple):
    """Describes one partition: its bounds, its leader, and the leader's addresses."""

    partition: int
    # -1 if there is an error; the same holds for high_watermark.
    log_start_offset: int
    high_watermark: int
    # -1 without a leader.
    leader_epoch: int
    # Broker id; empty without a leader.
    leader: str
    # Empty without a leader, as is the next.
    leader_http_address: str
    leader_grpc_address: str
    # Why the bounds are missing: damage, no leader, or no answer.
    error: TidelogError | None


async def described_topic(broker: TopicLookup, name: str) -> Topic:
    """Returns the topic. Raises NotAuthorized, UnknownTopic (with the nearest name), InvalidName, Corrupt, and Unavailable if the
    topic is not known here and the metadata store does not answer."""
    await settle_topic(name)
    check_topic(name)
    try:
        return broker.topic_cache.get(name)
    except UnknownTopic:
        pass
    try:
        async with asyncio.timeout(LOOKUP_S):
            return await broker.topics.get(name)
    except (Unavailable, TimeoutError):
        raise _unknown_here(name) from None


def topic_in_view(broker: TopicLookup, name: str, *, has_caught_up: bool) -> Topic:
    """Returns the topic as described_topic does, without a question to the metadata store.

    `has_caught_up`: this broker's view has all topics, so that one that it lacks does not exist.
    """
    check_topic(name)
    try:
        return broker.topic_cache.get(name)
    except UnknownTopic:
        if has_caught_up:
            raise
        raise _unknown_here(name) from None


def _unknown_here(name: str) -> Unavailable:
    return Unavailable(
        f"there was no topic {name} when this broker last heard from the metadata store, which does not answer", topic=name
    )


async def fresh_topic(broker: TopicLookup, name: str, *, refuses_outdated: bool = False) -> Topic:
    """Returns the topic as described_topic does, with changes made through other brokers before the call.

    If this broker's view does not catch up in time, it returns its view, or raises Unavailable where `refuses_outdated`.
    """
    topic = await described_topic(broker, name)
    try:
        await broker.topic_cache.catch_up(name, timeout_s=LOOKUP_S)
    except Unavailable:
        if refuses_outdated:
            raise _outdated(f"the present state of topic {name}", topic=name) from None
        return topic
    return broker.topic_cache.get(name)


async def catch_up_with_topics(broker: TopicLookup, *, refuses_outdated: bool = False) -> bool:
    """Waits until this broker's view has each change of a topic, before many topics are described.

    Returns False if the view may lack some. `refuses_outdated`: as in fresh_topic.
    """
    try:
        await broker.topic_cache.catch_up_with_all(timeout_s=LOOKUP_S)
    except Unavailable:
        if refuses_outdated:
            raise _outdated("all changes of topics") from None
        return False
    return True


def _outdated(what: str, **details: str) -> Unavailable:
    """`is_outdated` in the details says that the broker works: another one may have heard more."""
    return Unavailable(
        f"this broker has not heard yet of {what}: the metadata store, or its watch, is late",
        hint="Retry with back-off; another broker may have heard of it.",
        is_outdated=True,
        **details,
    )


def listed_topics(broker: TopicLookup, *, page_size: int, page_token: str, search: str = "") -> TopicPage:
    """Lists a page of the topics that the caller may see, as Topics.list; a topic with an unreadable value keeps its last readable
    one. With `search`, only those whose name contains it, in upper or lower case."""
    wanted = search.lower()
    named_so = (topic for topic in broker.topic_cache.topics() if wanted in topic.name.lower())
    return page_of((topic for topic in named_so if may_see_topic(topic.name)), page_size=page_size, page_token=page_token)


def partition_leaders(broker: DescribedLog, topic: Topic) -> list[PartitionDescription]:
    """Returns all partitions with their leaders, without bounds and without waiting."""
    return [
        PartitionDescription(partition, -1, -1, *_leader(broker, partition_of(topic, partition)), None)
        for partition in range(topic.partition_count)
    ]


async def partition_states(
    broker: DescribedLog, topic: Topic, partitions: Sequence[int] | None = None
) -> list[PartitionDescription]:
    """Returns all partitions, or the given ones, with bounds. Raises UnknownPartition for one that the topic does not have."""
    numbers = range(topic.partition_count) if partitions is None else partitions
    asked = [partition_of(topic, number) for number in numbers]
    found = await broker.cluster_log.bounds_of(asked, wait_s=BOUNDS_WAIT_S)
    return [_state(broker, topic, partition, bounds) for partition, bounds in zip(asked, found, strict=True)]


def _state(broker: DescribedLog, topic: Topic, partition: TopicPartition, bounds: Bounds | TidelogError) -> PartitionDescription:
    leader = _leader(broker, partition)
    if not isinstance(bounds, TidelogError):
        return PartitionDescription(
            partition.partition, bounds.log_start_offset, bounds.high_watermark, bounds.leader_epoch, *leader[1:], None
        )
    return PartitionDescription(partition.partition, -1, -1, *leader, named(bounds, topic))


def _leader(broker: DescribedLog, partition: TopicPartition) -> tuple[int, str, str, str]:
    """Returns the leader's epoch, id and addresses."""
    leader = broker.leader(partition)
    if leader is None:
        return -1, "", "", ""
    return broker.leader_epoch(partition), leader.broker_id, leader.http_address, leader.grpc_address
