"""A member that is assigned partitions of a topic that does not exist at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.proto import log_pb2
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
        self._to = SimpleNamespace(log=SimpleNamespace(ListOffsets=self._list_offsets), address="a:9090")

    async def call(self, ask: Any, *, writes: bool) -> Any:
        return await ask(self._to, 1.0)

    async def _list_offsets(self, request: log_pb2.ListOffsetsRequest, timeout: float) -> log_pb2.ListOffsetsResponse:
        answer = log_pb2.ListOffsetsResponse()
        for query in request.queries:
            answer.results.add(offset=0 if query.HasField("earliest") else 9, leader_epoch=1)
        return answer

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        if topic not in self.topics:
            raise UnknownTopic(f"there is no topic {topic}")
        seen = self.partition_count if from_store or self.partition_count_seen is None else self.partition_count_seen
        return TopicRoute(topic, "a" * 32, (PartitionRoute("a:9090", 1),) * seen, 1 << 20, 1 << 20, learnt_s=0.0)

    async def committed(
        self, name: str, partitions: Collection[TopicPartitionName]
    ) -> dict[TopicPartitionName, Offset | TidelogError]:
        return {partition: Offset(5) for partition in partitions}


def member_of(cluster: Any, *topics: str, follow: bool = True) -> GroupReader:
    """A reader that has seen a partition of each topic when it joined."""
    reader = GroupReader(
        cluster,
        ClientSettings(),
        Subscription(topics),
        cluster,
        group="g",
        options=group_options({}),
        follow=follow,
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


class RefusesOnceItLags(Cluster):
    """A cluster whose only broker that answers is behind the metadata store, and refuses to read a topic from there."""

    def __init__(self, *topics: str) -> None:
        super().__init__(*topics)
        self.partition_count, self.partition_count_seen = 2, 1
        self.is_behind = True
        self.refused = 0

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False
    ) -> TopicRoute:
        if self.is_behind and from_store:
            assert refuses_outdated, "else the broker answers what it has heard of"
            self.refused += 1
            raise Unavailable("this broker has not heard yet of the present state of topic orders", is_outdated=True)
        return await super().route(topic, fresh=fresh, from_store=from_store, refuses_outdated=refuses_outdated)


@pytest.mark.parametrize("follow", [True, False])
def test_a_member_asks_again_for_an_assigned_partition_that_no_broker_has_heard_of(follow: bool) -> None:
    """A leader of the group whose broker knew of the growth has assigned it."""

    async def main() -> None:
        cluster = RefusesOnceItLags("orders")
        reader = member_of(cluster, "orders", follow=follow)
        beginning = asyncio.create_task(reader._begin(reader._number_assignments([("orders", 0), ("orders", 1)])))
        await asyncio.sleep(10)
        assert reader.positions.all() == {("orders", 0): 5}, "the other one is not held up"
        assert cluster.refused > 1
        assert not beginning.done()
        assert not reader.fetching._ends_when_read, "there is more to read"
        await reader._begin(reader._number_assignments([("orders", 0)]))
        assert not reader.fetching._ends_when_read, "also after another look-up"
        cluster.is_behind = False
        await beginning
        assert reader.positions.all() == {("orders", 0): 5, ("orders", 1): 5}
        assert reader.fetching._ends_when_read is not follow
        assert not reader.fetching.errors

    run(main(), seed=1)


@pytest.mark.parametrize("is_behind", [True, False], ids=["the broker lags", "the topic lacks it"])
def test_a_reading_with_an_end_ends_with_an_error_where_an_assigned_partition_stays_unknown(is_behind: bool) -> None:
    async def main() -> None:
        cluster = RefusesOnceItLags("orders")
        cluster.is_behind = is_behind
        cluster.partition_count = 1
        reader = member_of(cluster, "orders", follow=False)
        await reader._begin(reader._number_assignments([("orders", 0), ("orders", 1)]))
        patience_s = ClientSettings().delivery_timeout_ms / 1000
        assert patience_s <= asyncio.get_running_loop().time() < patience_s + 10
        assert [type(error) for error in reader.fetching.errors.values()] == [Unavailable]
        assert "orders/1" in str(reader.fetching.errors["orders", 1])
        assert reader.positions.all() == {("orders", 0): 5}
        assert reader.fetching._ends_when_read
        reader.seek(("orders", 1), 3)
        assert ("orders", 1) in reader.fetching.errors, "there is nothing to fetch it from"
        reader.pause(("orders", 1))
        reader.resume(("orders", 1))
        await reader.lost(frozenset([("orders", 1)]))
        assert not reader.fetching.errors, "another member reads it"

    run(main(), seed=1)


def test_a_partition_that_is_lost_while_it_is_missing_does_not_end_the_others() -> None:
    async def main() -> None:
        cluster = RefusesOnceItLags("orders")
        reader = member_of(cluster, "orders", follow=False)
        beginning = asyncio.create_task(reader._begin(reader._number_assignments([("orders", 0), ("orders", 1)])))
        await asyncio.sleep(10)
        await reader.lost(frozenset([("orders", 1)]))
        await beginning
        assert reader.fetching._ends_when_read
        assert not reader.fetching.errors

    run(main(), seed=1)


def test_a_member_whose_topics_exist_stays() -> None:
    async def main() -> None:
        reader = member_of(Cluster("orders"), "orders")
        await reader._begin(reader._number_assignments([("orders", 0)]))
        assert reader.subscribed() == {"orders": 1}
        assert not reader._member._rebalance.join_again.is_set()

    asyncio.run(main())
