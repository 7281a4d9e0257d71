"""Holds the cluster as this broker knows it: topics, brokers, leaders, the controller, and compactions, each fed by a watch.

While the metadata store cannot be reached, all of it stays as last received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from metadata.cluster.broker_registry import NO_NODE_ID, BrokerCache, BrokerRegistration, KafkaListener
from metadata.cluster.leadership_cache import PartitionCache
from metadata.cluster.manifest_notices import ManifestNoticeCache
from metadata.model import Partition, Revision, TopicPartition
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic


class ClusterView:
    """Runs the watches that the broker serves from. Its owner runs `run()` as a task."""

    def __init__(
        self, metadata: MetadataStore, layout: KeyLayout, *, may_suggest: Callable[[str], bool] = lambda name: True
    ) -> None:
        """`may_suggest`: as in TopicCache."""
        self.topics = TopicCache(metadata, layout, may_suggest=may_suggest)
        self.brokers = BrokerCache(metadata, layout)
        self.partitions = PartitionCache(metadata, layout)
        self.controller = ControllerSeen(metadata, layout)
        self.compactions = ManifestNoticeCache(metadata, layout)
        self._changing = asyncio.Event()
        self.brokers.subscribe(self._notify)
        self.partitions.subscribe(lambda _: self._notify())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as watches:
            for cache in (self.topics, self.brokers, self.partitions, self.controller, self.compactions):
                watches.create_task(cache.run())

    async def read(self, timeout_s: float) -> bool:
        """Returns whether all caches that serving needs were read once in time."""
        caches = (self.topics, self.brokers, self.partitions)
        return all(await asyncio.gather(*(cache.wait_for(Revision(1), timeout_s) for cache in caches)))

    def leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        """Returns the broker that leads the partition; None without a leader, or if its broker is gone."""
        state = self.partitions.get(partition)
        return self.brokers.by_session(state.leader_session) if state is not None and not state.is_closed else None

    async def changed(self, *, timeout_s: float) -> None:
        """Returns when brokers or leaders have changed, after `timeout_s` at the latest."""
        changing = self._changing
        try:
            async with asyncio.timeout(timeout_s):
                await changing.wait()
        except TimeoutError:
            return

    def _notify(self) -> None:
        changing, self._changing = self._changing, asyncio.Event()
        changing.set()


class ControllerSeen:
    """Knows the controller from a watch of its key. Its owner runs `run()` as a task."""

    def __init__(self, metadata: MetadataStore, layout: KeyLayout) -> None:
        self._key = layout.controller
        self._value = b""
        self.run = RangeWatch(metadata, layout.controller, replace=self._replace, apply=self._apply).run

    def is_it(self, broker: BrokerRegistration) -> bool:
        """Returns whether the broker is the controller; the key holds the id and the session of its creator."""
        return self._value == f"{broker.broker_id} {broker.session}".encode()

    def _replace(self, items: Sequence[KeyValue]) -> None:
        self._value = next((item.value for item in items if item.key == self._key), b"")

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.key == self._key:
                self._value = event.value  # empty after a deletion


def partitions_of(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.id, Partition(p)) for p in range(topic.partition_count)]


class BrokerDescription(NamedTuple):
    """Describes one broker as other brokers and clients see it."""

    broker_id: str
    http_address: str
    grpc_address: str
    session: int | None
    draining: bool
    rack: str
    version: str
    partitions_led: int
    # Whether the broker is the controller, which appoints leaders.
    controller: bool
    # Its number in Kafka's protocol; NO_NODE_ID for a broker from before there were node ids.
    node_id: int = NO_NODE_ID
    kafka_listeners: Sequence[KafkaListener] = ()

    def without_kafka(self) -> dict[str, Any]:
        """Returns the fields that HTTP and gRPC list, by name."""
        fields = self._asdict()
        del fields["node_id"], fields["kafka_listeners"]
        return fields


class DrainState(NamedTuple):
    """Reports how many partitions a draining broker still leads."""

    broker_id: str
    draining: bool
    partitions_led: int
