"""A member that is assigned partitions of a topic that does not exist at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.groups.assignors import TopicPartitionName
from tests.simulation.virtual_loop import run
from tidelog.consumer.subscription import Subscription
from tidelog.group.options import group_options
from tidelog.group.positions import Offset
from tidelog.group.reader import GroupReader
from tidelog.settings import ClientSettings
from tidelog.transport.routes import LeaderEpochs, PartitionRoute, TopicRoute


class Cluster:
    """A connection to a cluster with these topics, and the coordinator of a group that has committed offset 5 of each."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.partition_count = 1
        # As a broker that lags describes them.
        self.partition_count_seen: int | None = None
        self.epochs = LeaderEpochs()

    async def route(self, topic: str, *, fresh: bool = False, from_store: bool = False) -> TopicRoute:
        if topic not in self.topics:
            raise UnknownTopic(f"there is no topic {topic}")
        seen = self.partition_count if from_store or self.partition_count_seen is None else self.partition_count_seen
        return TopicRoute(topic, "a" * 32, (PartitionRoute("a:9090", 1),) * seen, 1 << 20, 1 << 20, learnt_s=0.0)

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        return {partition: Offset(5) for partition in partitions}


def member_of(cluster: Any, *topics: str) -> GroupReader:
    """A reader that has seen a partition of each topic when it joined."""
    reader = GroupReader(
        cluster,
        ClientSettings(),
        Subscription(topics),
        cluster,
        group="g",
        options=group_options({}),
        follow=True,
        reset="earliest",
    )
    reader._counts = dict.fromkeys(topics, 1)
    return reader


@pytest.mark.parametrize("error", [Unavailable("the metadata store does not answer"), UnknownTopic("there is no topic orders")])
def test_an_error_of_one_committed_offset_that_passes_does_not_end_the_partition(error: TidelogError) -> None:
    class FailsOnce(Cluster):
        answers = 0

        async def committed(
            self, name: str, partitions: Collection[TopicPartitionName]
        ) -> dict[TopicPartitionName, Offset | TidelogError]:
            self.answers += 1
            found = await super().committed(name, partitions)
            return {**found, ("orders", 0): error} if self.answers == 1 else found

    async def main() -> None:
        cluster = FailsOnce("orders", "payments")
        reader = member_of(cluster, "orders", "payments")
        await reader._begin(reader._number_assignments([("orders", 0), ("payments", 0)]))
        assert reader.positions.all() == {("orders", 0): 5, ("payments", 0): 5}

    run(main(), seed=1)


def test_a_topic_that_is_away_when_its_partitions_begin_is_taken_again_once_it_is_back() -> None:
    """Else the member would own them and not read them, also after the topic was made again."""

    async def main() -> None:
        cluster = Cluster("payments")
        reader = member_of(cluster, "orders", "payments")
        await reader._begin(reader._number_assignments([("orders", 0), ("payments", 0)]))
        assert ("payments", 0) in reader.fetching
        assert reader.subscribed() == {"payments": 1}, "the group takes orders/0 from the member"
        assert reader._member._rebalance.join_again.is_set()
        cluster.topics.add("orders")
        counts = await reader.subscription.partition_counts(reader._connection)
        assert counts != reader.subscribed(), "so that the member joins again"

    asyncio.run(main())


def test_a_partition_that_its_topic_lacks_holds_up_no_other() -> None:
    """The topic was made again with fewer partitions, and the group has not heard of that yet."""

    async def main() -> None:
        cluster = Cluster("orders", "payments")
        reader = member_of(cluster, "orders", "payments")
        beginning = asyncio.create_task(reader._begin(reader._number_assignments([("orders", 0), ("orders", 1), ("payments", 0)])))
        await asyncio.sleep(10)
        assert reader.positions.all() == {("orders", 0): 5, ("payments", 0): 5}
        assert reader.subscribed() == {"orders": 1, "payments": 1}
        cluster.partition_count = 2
        await beginning
        assert reader.positions.all() == {("orders", 0): 5, ("orders", 1): 5, ("payments", 0): 5}

    run(main(), seed=1)


def test_a_partition_that_its_topic_lacks_is_given_up_with_its_assignment() -> None:
    async def main() -> None:
        reader = member_of(Cluster("orders"), "orders")
        beginning = asyncio.create_task(reader._begin(reader._number_assignments([("orders", 1)])))
        await asyncio.sleep(10)
        assert not beginning.done()
        await reader.lost(frozenset([("orders", 1)]))
        await beginning
        assert ("orders", 1) not in reader.fetching

    run(main(), seed=1)


def test_a_partition_that_a_lagging_broker_does_not_know_is_read_at_once() -> None:
    async def main() -> None:
        cluster = Cluster("orders")
        cluster.partition_count, cluster.partition_count_seen = 2, 1
        reader = member_of(cluster, "orders")
        await reader._begin(reader._number_assignments([("orders", 1)]))
        assert reader.positions.all() == {("orders", 1): 5}

    asyncio.run(main())


def test_a_member_whose_topics_exist_stays() -> None:
    async def main() -> None:
        reader = member_of(Cluster("orders"), "orders")
        await reader._begin(reader._number_assignments([("orders", 0)]))
        assert reader.subscribed() == {"orders": 1}
        assert not reader._member._rebalance.join_again.is_set()

    asyncio.run(main())
