"""A log of the whole cluster that says what a test wants it to, and topics that a test names."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from gateway.routing.local_log import LocalLog
from metadata.errors import NoLeader, TidelogError, UnknownTopic
from metadata.model import LeaderEpoch, Offset, Partition, TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget, SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.read.record_lookup import FoundRecord
from segments.settings import SegmentSettings
from tests.kit.segments.batches import batch_of, stamped

TOPIC_ID = TopicId("a" * 32)


def topic(name: str = "orders", topic_id: str = TOPIC_ID, partition_count: int = 2) -> Topic:
    return Topic(id=TopicId(topic_id), name=name, partition_count=partition_count, settings={}, created_at_ms=0)


def bounds(log_start_offset: int, high_watermark: int) -> Bounds:
    return Bounds(Offset(log_start_offset), Offset(high_watermark), Offset(high_watermark), LeaderEpoch(1))


class Topics:
    def __init__(self, *topics: Topic) -> None:
        self.topics = {topic.name: topic for topic in topics}

    def get(self, name: str) -> Topic:
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic {name}")
        return self.topics[name]

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: TopicId) -> Topic:
        for topic in self.topics.values():
            if topic.id == topic_id:
                return topic
        raise UnknownTopic(f"there is no topic with the id {topic_id}")


class ReportedLog(LocalLog):
    def __init__(self, ends: Mapping[TopicPartition, Bounds | TidelogError] | None = None) -> None:
        super().__init__(_no_log)
        self.ends = dict(ends or {})
        self.timestamps: dict[tuple[TopicPartition, int], int] = {}
        """Of the record at each offset; where there is none, nothing is there to read."""
        self.first_after: dict[TopicPartition, int] = {}
        """Offset of the first record of whatever time is asked for."""
        self.asked: list[Sequence[TopicPartition]] = []
        self.fetched: list[tuple[TopicPartition, int]] = []
        self.reading = self.reading_max = 0
        self.hangs: set[TopicPartition] = set()

    @property
    def settings(self) -> SegmentSettings:
        return SegmentSettings()

    async def bounds_of(self, partitions: Sequence[TopicPartition], *, wait_s: float = math.inf) -> list[Bounds | TidelogError]:
        self.asked.append(partitions)
        await asyncio.sleep(0)
        return [self.ends.get(partition, NoLeader(f"{partition} has no leader")) for partition in partitions]

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[FetchResult | TidelogError]:
        (target,) = targets
        position = target.partition, target.offset
        self.fetched.append(position)
        self.reading += 1
        self.reading_max = max(self.reading_max, self.reading)
        try:
            await asyncio.sleep(3600 if target.partition in self.hangs else 0.01)
        finally:
            self.reading -= 1
        at_ms = self.timestamps.get(position)
        batch = [] if at_ms is None else [stamped(batch_of(b"v", timestamps_ms=[at_ms]), target.offset)]
        batches = [part for each in batch for part in (each.stamp, each.rest)]
        size_bytes = sum(map(len, batches))
        at = Offset(target.offset)
        return [FetchResult(list(batches), size_bytes, at, at, Offset(0), LeaderEpoch(1))]

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        found = self.first_after.get(partition)
        return None if found is None else FoundRecord(Offset(found), timestamp_ms, LeaderEpoch(1))


def _no_log() -> SessionLog:
    raise NoLeader("nothing is led here")


P0, P1 = (TopicPartition(TOPIC_ID, Partition(number)) for number in range(2))
