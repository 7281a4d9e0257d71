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
from collections.abc import Collection, Mapping
from typing import Final

from metadata.errors import NoLeader, StaleRouting, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from segments.log.session_log import SessionLog

# Upper bound for one read of a topic from the metadata store, and for the watch that tells the same.
CATCH_UP_S: Final = 5.0
# Pause before partitions are tried again that could not be proven.
PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)


class ProvenRouting:
    """The KeyedRouting of one session's Log. Its owner runs `run()` as a task, and calls `look` when partitions were taken over."""

    def __init__(self, session_log: SessionLog, topics: TopicCache) -> None:
        self._log = session_log
        self._topics = topics
        self._proven: dict[TopicPartition, LeaderEpoch] = {}
        self._woken = asyncio.Event()

    def check(self, partition: TopicPartition, partition_count: int) -> None:
        if not self.is_proven(partition):
            self.look()
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

    def is_proven(self, partition: TopicPartition) -> bool:
        return self._proven.get(partition) == self._log.leader_epoch(partition)

    async def prove(self, partitions: Collection[TopicPartition]) -> None:
        for topic_id, epochs in self._unproven(partitions).items():
            await self._prove(topic_id, epochs)

    def _unproven(self, partitions: Collection[TopicPartition]) -> dict[TopicId, dict[TopicPartition, LeaderEpoch]]:
        """The leader epochs of those that are not proven. Raises NoLeader, Corrupt, SessionFenced."""
        unproven: dict[TopicId, dict[TopicPartition, LeaderEpoch]] = {}
        for partition in partitions:
            if not self.is_proven(partition):
                unproven.setdefault(partition.topic_id, {})[partition] = self._log.leader_epoch(partition)
        return unproven

    async def _prove(self, topic_id: TopicId, epochs: Mapping[TopicPartition, LeaderEpoch]) -> None:
        await self._topics.catch_up(self._topics.by_id(topic_id).name, timeout_s=CATCH_UP_S)
        self._proven.update(epochs)

    def look(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Proves what is led, so that keyed requests need not wait, and so that an outage of the store does not stop them."""
        while True:
            self._woken.clear()
            led = dict.fromkeys(self._log.led)  # in an order that no hash decides
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
                log.info("keyed requests wait, since a topic could not be read from the metadata store: %s; retrying", failure)
                await asyncio.sleep(PAUSE_S)
                continue
            await self._woken.wait()
