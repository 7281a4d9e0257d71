"""Tests at which offset a member with "latest" begins a partition that was added after it had started."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from gateway.proto import log_pb2
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer.subscription import parse_topics
from tidelog.group.options import group_options
from tidelog.group.positions import Offset
from tidelog.group.reader import GroupReader
from tidelog.settings import ClientSettings
from tidelog.transport.routes import LeaderEpochs, PartitionRoute, TopicRoute

LOG_START, END = 3, 8


class Cluster:
    """A connection to topics of one id with records, and a coordinator of a group that has committed nothing."""

    def __init__(self) -> None:
        self.epochs = LeaderEpochs()
        self.topic_id = "a" * 32
        self.commits: dict[TopicPartitionName, Offset] = {}
        self._to = SimpleNamespace(log=SimpleNamespace(ListOffsets=self._list_offsets), address="b:9090")

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        return TopicRoute(topic, self.topic_id, (PartitionRoute("a:9090", 1),) * 3, 1 << 20, 1 << 20, learnt_s=0.0)

    async def call(self, ask: Any, *, writes: bool) -> Any:
        return await ask(self._to, 1.0)

    async def _list_offsets(self, request: log_pb2.ListOffsetsRequest, timeout: float) -> log_pb2.ListOffsetsResponse:
        answer = log_pb2.ListOffsetsResponse()
        for query in request.queries:
            answer.results.add(offset=LOG_START if query.HasField("earliest") else END, leader_epoch=1)
        return answer

    async def committed(self, name: str, partitions: Collection[TopicPartitionName]) -> dict[TopicPartitionName, Offset]:
        return {partition: self.commits[partition] for partition in partitions if partition in self.commits}


def member_of(cluster: Any) -> GroupReader:
    """A reader that begins while `orders` has two partitions."""
    subscription, options = parse_topics(["orders", "payments"]), group_options({})
    reader = GroupReader(cluster, ClientSettings(), subscription, cluster, group="g", options=options, follow=True, reset="latest")
    reader._starts.subscribed_first({"orders": 2})
    return reader


async def begin(reader: GroupReader, *partitions: TopicPartitionName) -> None:
    await reader._begin(reader._number_assignments(partitions))


def test_a_member_skips_no_record_of_partitions_and_topics_that_were_added() -> None:
    async def main() -> None:
        reader = member_of(Cluster())
        await begin(reader, ("orders", 1), ("orders", 2), ("payments", 0))
        assert reader.positions.all() == {("orders", 1): END, ("orders", 2): LOG_START, ("payments", 0): LOG_START}
        due = {partition: offset.offset for partition, offset in reader.positions.due().items()}
        assert due == reader.positions.all(), "so that the next owner begins there"

    asyncio.run(main())


def test_a_member_skips_no_record_of_a_topic_that_is_made_again() -> None:
    async def main() -> None:
        cluster = Cluster()
        reader = member_of(cluster)
        await begin(reader, ("orders", 0))
        assert reader.positions.all() == {("orders", 0): END}
        cluster.topic_id = "b" * 32
        await reader.lost(frozenset([("orders", 0)]))
        await begin(reader, ("orders", 0), ("orders", 1))
        assert reader.positions.all() == {("orders", 0): LOG_START, ("orders", 1): LOG_START}

    asyncio.run(main())


def test_an_added_partition_of_which_another_member_has_committed_begins_there() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.commits["orders", 2] = Offset(6)
        reader = member_of(cluster)
        await begin(reader, ("orders", 2))
        assert reader.positions.all() == {("orders", 2): 6}

    asyncio.run(main())
