"""The cluster as this broker knows it: topics, brokers, and who leads what, each fed by a watch."""

from __future__ import annotations

import asyncio

from metadata.broker_registry import BrokerCache, Registration
from metadata.etcd_layout import EtcdLayout
from metadata.model import Partition, Revision, TopicPartition
from metadata.partition_cache import PartitionCache
from metadata.store import MetadataStore
from metadata.topic import Topic
from metadata.topic_cache import TopicCache


class ClusterView:
    """Its owner runs `run()` as a task."""

    def __init__(self, metadata: MetadataStore, layout: EtcdLayout) -> None:
        self.topics = TopicCache(metadata, layout)
        self.brokers = BrokerCache(metadata, layout)
        self.partitions = PartitionCache(metadata, layout)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as watches:
            for cache in (self.topics, self.brokers, self.partitions):
                watches.create_task(cache.run())

    async def read(self, timeout_s: float) -> bool:
        """Whether everything was read once in time."""
        caches = (self.topics, self.brokers, self.partitions)
        return all(await asyncio.gather(*(cache.wait_for(Revision(1), timeout_s) for cache in caches)))

    def leader(self, partition: TopicPartition) -> Registration | None:
        """The broker that leads the partition; None where nobody does, or its broker is gone."""
        state = self.partitions.get(partition)
        return self.brokers.by_session(state.leader_session) if state is not None else None


def partitions_of(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count)]
