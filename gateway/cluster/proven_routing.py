"""Decides over how many partitions a keyed request may be routed to be appended by this leader.

A leader takes a new batch of a request with an Idempotency-Key only where the request was routed over as many partitions as the
leader knows the topic to have. It must know at least what every former leader of the partition knew, since a former leader may
have promised to take no request that was routed over fewer. So it reads the topic from the metadata store once, after it has taken
the partition over: the former leader was sealed, or had handed over, before.

    took over ─▶ read the topic from the store ─▶ the topic cache has seen what was read ─▶ proven, in this leader epoch

While the store can't be reached, partitions that are not proven take no keyed requests; they serve everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from metadata.errors import NoLeader, StaleRouting, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from segments.partition.leader_partitions import LeaderPartitions

# Upper bound for one read of a topic from the metadata store, and for the watch to show the same.
CATCH_UP_S: Final = 5.0
# Pause before partitions are tried again that could not be proven.
PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)


class ProvenRouting:
    """The KeyedRouting of one session. Its owner runs `run()` as a task, and calls `wake` when partitions were taken over."""

    def __init__(self, topics: TopicCache) -> None:
        self._topics = topics
        self._proven: dict[TopicPartition, LeaderEpoch] = {}
        self._woken = asyncio.Event()

    def check(self, partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
        if not self.is_proven(partition, leader_epoch):
            self.wake()
            raise NoLeader(f"the leader of {partition} has yet to read from the metadata store whether the topic has grown")
        topic = self._topics.by_id(partition.topic_id)
        if partition_count < topic.partition_count:
            raise StaleRouting(
                f"the request was routed over {partition_count} partitions, and {topic.name} has {topic.partition_count}; nothing "
                f"was written to partition {partition.partition}",
                partition_count=topic.partition_count,
                topic_revision=topic.revision,
            )
        if partition_count > topic.partition_count:
            raise NoLeader(
                f"the request was routed over {partition_count} partitions, and the leader of {partition} knows "
                f"{topic.partition_count} yet"
            )

    def is_proven(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> bool:
        return self._proven.get(partition) == leader_epoch

    async def prove(self, leader_epochs: Mapping[TopicPartition, LeaderEpoch]) -> None:
        for topic_id, epochs in self._unproven(leader_epochs).items():
            await self._prove(topic_id, epochs)

    def _unproven(self, leader_epochs: Mapping[TopicPartition, LeaderEpoch]) -> dict[TopicId, dict[TopicPartition, LeaderEpoch]]:
        """Returns the partitions that are not proven, by topic."""
        unproven: dict[TopicId, dict[TopicPartition, LeaderEpoch]] = {}
        for partition, leader_epoch in leader_epochs.items():
            if not self.is_proven(partition, leader_epoch):
                unproven.setdefault(partition.topic_id, {})[partition] = leader_epoch
        return unproven

    async def _prove(self, topic_id: TopicId, epochs: Mapping[TopicPartition, LeaderEpoch]) -> None:
        await self._topics.catch_up(self._topics.by_id(topic_id).name, timeout_s=CATCH_UP_S)
        self._proven.update(epochs)

    def wake(self) -> None:
        """Makes `run` check for partitions that are not proven."""
        self._woken.set()

    async def run(self, partitions: LeaderPartitions) -> None:
        """Proves the partitions of the session ahead of keyed requests, so that an outage of the store does not stop these."""
        while True:
            self._woken.clear()
            led = {partition: led.log.leader_epoch for partition, led in partitions.copy().items()}
            self._proven = {partition: epoch for partition, epoch in self._proven.items() if partition in led}
            failure: TidelogError | None = None
            for topic_id, epochs in self._unproven(led).items():
                try:
                    await self._prove(topic_id, epochs)
                except UnknownTopic:  # it was deleted, and its partitions are about to be dropped
                    continue
                except TidelogError as error:
                    failure = error
            if failure is not None:
                log.info("keyed requests wait: a topic could not be read from the metadata store: %s; retrying", failure)
                await asyncio.sleep(PAUSE_S)
                continue
            await self._woken.wait()
