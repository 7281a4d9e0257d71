"""The Spark sink writes to the present topic, although a broker describes a deleted one of the same name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from gateway.broker.broker import Broker
from gateway.proto import admin_pb2
from metadata.errors import Rejected, Unavailable, UnknownTopic
from metadata.model import Partition, TopicPartition
from spark.sink.brokers import ConnectedBrokers, StagedTopicGone, UnconfirmedTopic, connected
from spark.sink.staged_files import StagedPartition
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.small_broker import until
from tidelog.transport.connection import Connection
from tidelog.transport.routes import PartitionRoute, TopicRoute

FORMER, PRESENT = "a" * 32, "b" * 32


class Answers:
    """A connection that gives these topic ids for the topic, one after the other, and the last one from then on."""

    def __init__(self, *topic_ids: str) -> None:
        self._topic_ids = list(topic_ids)

    async def route(self, topic: str, *, fresh: bool = False, from_store: bool = False) -> TopicRoute:
        topic_id = self._topic_ids.pop(0) if len(self._topic_ids) > 1 else self._topic_ids[0]
        return TopicRoute(topic, topic_id, (PartitionRoute("a:9090", 1),), 1 << 20, 1 << 20, learnt_s=0.0)


def leader_by(*topic_ids: str) -> str:
    brokers = ConnectedBrokers(cast(Connection, Answers(*topic_ids)))
    return asyncio.run(brokers.leader_of(StagedPartition("orders", PRESENT, 0)))


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_broker_that_describes_the_former_topic_does_not_end_the_query(behind: int) -> None:
    assert leader_by(*[FORMER] * behind, PRESENT) == "a:9090"


def test_rows_of_a_topic_that_was_made_again_are_refused() -> None:
    with pytest.raises(Rejected, match="made again"):
        leader_by(FORMER)


class View(NamedTuple):
    """Holds the answers of a broker: the topic that it describes, and the time since it heard from the metadata store."""

    topic_id: str
    leader_epoch: int = 1
    age_ms: int = 0
    is_silent: bool = False


LAGS, KNOWS = View(FORMER, 1), View(PRESENT, 2)
CUT_OFF, SILENT = View(FORMER, 1, age_ms=60_000), View(PRESENT, 2, is_silent=True)


class Views:
    """A connection to brokers that answer so. Without `at`, the first one does, which the option `brokers` names."""

    def __init__(self, *views: View) -> None:
        self._views = {f"{number}:9090": view for number, view in enumerate(views)}

    async def cluster(self) -> admin_pb2.ClusterDescription:
        described = [admin_pb2.Broker(broker_id=address, grpc_address=address) for address in self._views]
        return admin_pb2.ClusterDescription(brokers=described, metadata_age_ms=next(iter(self._views.values())).age_ms)

    def address_of(self, broker_id: str, grpc_address: str) -> str:
        return broker_id

    async def ask_once(self, attempt: Callable[[Any, float], Awaitable[Any]], *, at: str, writes: bool, timeout_s: float) -> Any:
        if self._views[at].is_silent:
            raise Unavailable(f"{at}: can't connect")

        async def get_cluster(request: admin_pb2.GetClusterRequest, *, timeout: float) -> admin_pb2.ClusterDescription:
            return admin_pb2.ClusterDescription(metadata_age_ms=self._views[at].age_ms)

        return await attempt(SimpleNamespace(cluster=SimpleNamespace(GetCluster=get_cluster)), timeout_s)

    async def route(self, topic: str, *, from_store: bool = False, at: str | None = None) -> TopicRoute:
        view = self._views[at or "0:9090"]
        if not view.topic_id:
            raise UnknownTopic(f"there is no topic {topic}")
        return TopicRoute(topic, view.topic_id, (PartitionRoute("a:9090", view.leader_epoch),), 1 << 20, 1 << 20, learnt_s=0.0)


def checked(*views: View, topic_id: str) -> None:
    """Checks rows for the topic of this id before they are chosen. Brokers are asked in an order by chance: several times."""
    for _ in range(9):
        brokers = ConnectedBrokers(cast(Connection, Views(*views)))
        asyncio.run(brokers.check_present(StagedPartition("orders", topic_id, 0)))


@pytest.mark.parametrize("views", [(LAGS, KNOWS), (LAGS, KNOWS, KNOWS), (CUT_OFF, CUT_OFF, KNOWS), (CUT_OFF, SILENT, KNOWS)])
def test_rows_for_a_former_topic_are_not_chosen_although_the_broker_that_is_named_describes_it(views: tuple[View, ...]) -> None:
    checked(*views, topic_id=PRESENT)
    with pytest.raises(StagedTopicGone, match="made again"):
        checked(*views, topic_id=FORMER)


@pytest.mark.parametrize("views", [(View(""), View("")), (View("", age_ms=60_000),), (CUT_OFF, View(""), View(""))])
def test_rows_for_a_topic_that_was_deleted_are_not_chosen(views: tuple[View, ...]) -> None:
    with pytest.raises(StagedTopicGone, match="it was deleted"):
        checked(*views, topic_id=FORMER)


@pytest.mark.parametrize("views", [(KNOWS,), (View(PRESENT, age_ms=60_000),), (KNOWS, SILENT, SILENT), (KNOWS, CUT_OFF)])
def test_one_answer_is_enough_where_no_other_broker_gives_one(views: tuple[View, ...]) -> None:
    checked(*views, topic_id=PRESENT)


@pytest.mark.parametrize("views", [(CUT_OFF, SILENT), (CUT_OFF, CUT_OFF), (LAGS, View("")), (View(FORMER, -1), View(PRESENT, -1))])
@pytest.mark.parametrize("topic_id", [FORMER, PRESENT])
def test_nothing_is_chosen_while_no_broker_knows_the_present_topic(views: tuple[View, ...], topic_id: str) -> None:
    with pytest.raises(UnconfirmedTopic, match="describe different topics orders, or have not heard"):
        checked(*views, topic_id=topic_id)


def test_a_broker_whose_own_address_can_not_be_reached_is_asked_at_the_address_that_was_given() -> None:
    unreachable = View(PRESENT, is_silent=True)
    checked(unreachable, unreachable, topic_id=PRESENT)
    with pytest.raises(UnconfirmedTopic):
        checked(unreachable._replace(age_ms=60_000), unreachable, topic_id=PRESENT)


def hears_nothing(broker: Broker) -> None:
    """From now on the broker's view of topics stays as it is."""
    watched = broker.topic_cache._watched
    watched._apply = lambda events: None
    watched._advance = lambda revision: None  # type: ignore[method-assign]  # the test's own


@pytest.mark.slow
def test_rows_are_staged_for_the_topic_that_was_made_again_although_the_named_broker_has_not_heard_of_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.brokers[0].create_topic("kept", 1)
        at = TopicPartition(topic.id, Partition(0))
        await until(lambda: all(broker.topic_cache.knows(at) for broker in cluster.brokers))
        await until(lambda: cluster.brokers[0].view.leader(at) is not None)
        knows, lags = cluster.leader(at), cluster.other(at)
        hears_nothing(lags)
        await knows.delete_topic("kept")
        again = await knows.create_topic("kept", 1)
        await until(lambda: knows.view.leader(TopicPartition(again.id, Partition(0))) is not None)
        async with connected(f"grpc://{lags.grpc_address}") as brokers:
            assert (await brokers.topic_facts(["kept"]))["kept"].topic_id == again.id
            await brokers.check_present(StagedPartition("kept", again.id, 0))
            with pytest.raises(StagedTopicGone, match="made again"):
                await brokers.check_present(StagedPartition("kept", topic.id, 0))
        await knows.delete_topic("kept")

    with_cluster(tmp_path, scenario, count=2)
