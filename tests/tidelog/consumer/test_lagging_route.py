"""Where a reader begins if the first broker that it asks describes a topic that was deleted, and made again since."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.proto import log_pb2
from gateway.proto.status import to_status
from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer.subscription import Subscription
from tidelog.consumer.topic_reader import TopicReader
from tidelog.group.positions import Offset
from tidelog.group.start_offsets import StartOffsets
from tidelog.positions import Earliest
from tidelog.settings import ClientSettings
from tidelog.transport.connection import Connection
from tidelog.transport.routes import LeaderEpochs, PartitionRoute, TopicRoute

FORMER, PRESENT = "a" * 32, "b" * 32
LOG_START, END = 3, 8


def route_to(topic_id: str) -> TopicRoute:
    return TopicRoute("orders", topic_id, (PartitionRoute("a:9090", 1),), 1 << 20, 1 << 20, learnt_s=0.0)


class FirstBrokerLags:
    """A connection whose first answer about the topic comes from a broker that lags, and all others from one that does not."""

    def __init__(self, present: str | None = PRESENT) -> None:
        self.epochs = LeaderEpochs()
        self._present = present
        self._answers = 0
        self._to = SimpleNamespace(log=SimpleNamespace(ListOffsets=self._list_offsets), address="b:9090")

    async def route(self, topic: str, *, fresh: bool = False, from_store: bool = False) -> TopicRoute:
        self._answers += 1
        if self._answers == 1:
            return route_to(FORMER)
        if self._present is None:
            raise UnknownTopic(f"there is no topic {topic}")
        return route_to(self._present)

    async def call(self, ask: Any, *, writes: bool) -> Any:
        return await ask(self._to, 1.0)

    async def _list_offsets(self, request: log_pb2.ListOffsetsRequest, timeout: float) -> log_pb2.ListOffsetsResponse:
        unknown = to_status(UnknownTopic("topic orders was deleted and recreated", new_topic_id=PRESENT))
        answer = log_pb2.ListOffsetsResponse()
        for query in request.queries:
            if query.topic_id == self._present:
                answer.results.add(offset=LOG_START if query.HasField("earliest") else END, leader_epoch=1)
            else:
                answer.results.add(offset=-1).error.CopyFrom(unknown)
        return answer


def reader(connection: FirstBrokerLags, *, follow: bool) -> TopicReader:
    return TopicReader(
        cast(Connection, connection),
        ClientSettings(),
        Subscription(("orders",)),
        start=Earliest(),
        partitions=None,
        follow=follow,
        reset="error",
    )


@pytest.mark.parametrize("follow", [True, False])
def test_a_reader_begins_in_the_topic_that_was_made_again(follow: bool) -> None:
    async def main() -> None:
        begun = await reader(FirstBrokerLags(), follow=follow)._begin_of("orders")
        assert begun is not None
        assert (begun.route.topic_id, begun.starts) == (PRESENT, {0: LOG_START})
        assert [getattr(end, "high_watermark", end) for end in begun.ends.values()] == ([] if follow else [END])

    asyncio.run(main())


def test_a_reader_of_a_topic_that_was_deleted_learns_that() -> None:
    async def main() -> None:
        with pytest.raises(UnknownTopic):
            await reader(FirstBrokerLags(None), follow=True)._begin_of("orders")

    asyncio.run(main())


class NothingCommitted:
    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        return {}


def test_a_member_of_a_group_asks_again_where_it_begins_and_does_not_give_the_partition_up() -> None:
    async def main() -> None:
        connection: Any = FirstBrokerLags()
        calls: Any = NothingCommitted()
        starts = StartOffsets(connection, calls, group="g", follow=True, reset="earliest")
        with pytest.raises(Unavailable):
            await starts.of([("orders", 0)])
        found = (await starts.of([("orders", 0)]))["orders", 0]
        assert (found.route.topic_id, found.offset) == (PRESENT, LOG_START)

    asyncio.run(main())
