"""What the doors tell of topics and their partitions, whoever leads them: from what this broker has been told by watches.

So it is told while the metadata store is away, too. Who leads is answered at once where that is all that is asked, as by clients
which look for the leaders; the bounds of a partition are its leader's to tell, and are waited for up to BOUNDS_WAIT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from gateway.access.authorization import check_topic, may_see_topic
from gateway.routing.log_service import LogService
from gateway.topics.names import BOUNDS_WAIT_S, LOOK_UP_S, TopicLookup, named, partition_of
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
    partition: int
    # -1 where there is an error, as is the next.
    log_start_offset: int
    high_watermark: int
    # -1 where nobody leads.
    leader_epoch: int
    # Broker id; empty where nobody leads.
    leader: str
    # Empty where nobody leads, as the next.
    leader_http_address: str
    leader_grpc_address: str
    # Why there are no bounds: damage, no leader, no answer.
    error: TidelogError | None


async def described_topic(broker: TopicLookup, name: str) -> Topic:
    """NotAuthorized, UnknownTopic (with the nearest name), InvalidName, Corrupt; Unavailable where nobody knows of such a topic."""
    check_topic(name)
    try:
        return broker.topic_cache.get(name)
    except UnknownTopic:
        pass
    try:
        async with asyncio.timeout(LOOK_UP_S):
            return await broker.topics.get(name)
    except (Unavailable, TimeoutError):
        raise Unavailable(
            f"there was no topic {name} when this broker last heard from the metadata store, which does not answer", topic=name
        ) from None


async def fresh_topic(broker: DescribedLog, name: str) -> Topic:
    """As described_topic, with what was changed through another broker before the call. Where the metadata store does not answer,
    the topic is told as this broker knows it."""
    topic = await described_topic(broker, name)
    with suppress(Unavailable):
        await broker.topic_cache.catch_up(name, timeout_s=LOOK_UP_S)
        return broker.topic_cache.get(name)
    return topic


def listed_topics(broker: TopicLookup, *, page_size: int, page_token: str) -> TopicPage:
    """As Topics.list, of those that the caller may see; of a topic whose value can't be read any more what was read before."""
    return page_of(
        (topic for topic in broker.topic_cache.topics() if may_see_topic(topic.name)), page_size=page_size, page_token=page_token
    )


def partition_leaders(broker: DescribedLog, topic: Topic) -> list[PartitionDescription]:
    """Of all partitions, without what only their leaders could tell: so nobody is waited for."""
    return [
        PartitionDescription(partition, -1, -1, *_leader(broker, partition_of(topic, partition)), None)
        for partition in range(topic.partition_count)
    ]


async def partition_states(
    broker: DescribedLog, topic: Topic, partitions: Sequence[int] | None = None
) -> list[PartitionDescription]:
    """Of all partitions, or of these. UnknownPartition for one that the topic does not have."""
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
    """Epoch, id and addresses."""
    leader = broker.leader(partition)
    if leader is None:
        return -1, "", "", ""
    return broker.leader_epoch(partition), leader.broker_id, leader.http_address, leader.grpc_address
