"""Reads by name at a broker that hears, while it waits for a leader, that the topic was made again: on a virtual clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.grpc.services.log import GrpcLogService
from gateway.http.records.fetch import HttpFetch
from gateway.http.request import Query
from gateway.proto import log_pb2
from gateway.proto.status import from_status
from gateway.settings import GatewaySettings
from metadata.errors import NoLeader, TidelogError, Unavailable, UnknownTopic
from metadata.topics.settings import TopicSettings
from metadata.topics.topic import Topic
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, OTHER, World, simulated
from tests.kit.gateway.reported_log import P0, topic

FORMER, NOW = topic(), topic(topic_id=OTHER)
GONE = UnknownTopic(f"there is no topic with the id {FORMER.id}", new_topic_id=NOW.id)
# What the store has; whether this broker hears of it; what a client learns that named the former topic.
OUTCOMES: pytest.MarkDecorator = pytest.mark.parametrize(
    ("store", "hears", "error"),
    [(NOW, True, NoLeader), (NOW, False, Unavailable), (FORMER, True, UnknownTopic)],
    ids=["made again", "not heard of", "not made again"],
)


def world_of(store: Topic, *, hears: bool) -> World:
    async def bounds(_: object) -> None:
        raise GONE

    async def bounds_of(partitions: list[object]) -> list[UnknownTopic]:
        return [GONE for _ in partitions]

    world = World(FORMER, store)
    if hears:
        world.view.hears(LAG_S, store)
    world.view.settings = lambda _: TopicSettings()  # type: ignore[attr-defined]
    world.broker.settings = GatewaySettings()  # type: ignore[misc]
    world.broker.cluster_log = SimpleNamespace(bounds=bounds, bounds_of=bounds_of)  # type: ignore[misc]  # a double
    return world


@OUTCOMES
def test_a_read_over_http_from_a_named_place_may_be_repeated(store: Topic, hears: bool, error: type[TidelogError]) -> None:
    async def scenario() -> None:
        fetch = HttpFetch.__new__(HttpFetch)
        fetch._broker = world_of(store, hears=hears).broker
        with pytest.raises(error):
            await fetch._start(Query(b"offset=latest", frozenset({"offset"})), FORMER, P0)
        with pytest.raises(UnknownTopic):  # the offset means nothing in the present topic
            await fetch._start(Query(b"offset=7", frozenset({"offset"})), FORMER, P0)

    simulated(scenario)


@OUTCOMES
def test_offsets_that_are_listed_by_name_may_be_asked_for_again(store: Topic, hears: bool, error: type[TidelogError]) -> None:
    async def scenario() -> None:
        service = GrpcLogService.__new__(GrpcLogService)
        service._broker = world_of(store, hears=hears).broker
        queries = [
            log_pb2.OffsetQuery(topic="orders", latest=True),
            log_pb2.OffsetQuery(topic="orders", latest=True, topic_id=FORMER.id),
        ]
        answer = await service.list_offsets(log_pb2.ListOffsetsRequest(queries=queries), forwarded=False)
        by_name, by_id = (from_status(result.error) for result in answer.results)
        assert (type(by_name), type(by_id)) == (error, UnknownTopic)

    simulated(scenario)
