"""A topic that a request names before this broker has heard of it: on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fastapi.routing import APIRoute
from google.rpc.status_pb2 import Status

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.fetch.service import GrpcFetch
from gateway.grpc.services.admin import ClusterService, TopicsService
from gateway.grpc.services.log import GrpcLogService
from gateway.http.admin.api import admin_api
from gateway.http.records.fetch import HttpFetch
from gateway.http.request import Query
from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import from_status, to_status
from gateway.records.response_budget import Reservation
from gateway.routing.log_service import EpochQuestion
from gateway.settings import GatewaySettings
from gateway.topics.names import LOOKUP_S, topic_with
from metadata.errors import TidelogError, Unavailable, UnknownPartition, UnknownTopic
from metadata.model import LeaderEpoch, Offset, Revision, TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import Bounds
from segments.read.record_lookup import Explanation
from tests.gateway.http.groups.test_topics_heard_of import LAG_S, View, World, simulated
from tests.kit.gateway.reported_log import topic
from tests.simulation.virtual_loop import virtual_loop

GROWN = topic(partition_count=4)
MADE_AGAIN = topic(topic_id="c" * 32)


class LaggingView(View):
    """A view that looks up one topic, and hears of its present state after a while."""

    async def catch_up(self, name: str, *, timeout_s: float) -> None:
        if not await self.wait_for(Revision(1), timeout_s):
            raise Unavailable("the watch has not answered in time")


def lagging(here: Topic | None, *, hears: Topic | None = None) -> World:
    world = World(here, hears)
    world.view = LaggingView(*([here] if here else []))
    world.broker.topic_cache = world.view  # type: ignore[misc,assignment]  # a double
    if hears is not None:
        world.view.hears(LAG_S, hears)
    return world


@pytest.mark.parametrize("here", [None, topic(), topic(topic_id="b" * 32, partition_count=4)], ids=["made", "grown", "made again"])
def test_a_topic_is_found_once_this_broker_has_heard_of_it(here: Topic | None) -> None:
    async def scenario() -> None:
        world = lagging(here, hears=GROWN)
        assert await topic_with(world.broker, "orders", 3, topic_id=GROWN.id) == GROWN
        assert LAG_S <= virtual_loop().time() < LAG_S + 0.1

    simulated(scenario)


def test_a_topic_that_does_not_exist_is_unknown_once_this_broker_has_caught_up_and_not_before() -> None:
    async def scenario() -> None:
        world = lagging(topic(), hears=topic())
        with pytest.raises(UnknownTopic):
            await topic_with(world.broker, "payments")
        with pytest.raises(UnknownPartition):
            await topic_with(world.broker, "orders", 7)
        with pytest.raises(UnknownTopic):
            await topic_with(world.broker, "orders", topic_id=MADE_AGAIN.id)
        began_s, behind = virtual_loop().time(), lagging(topic())
        with pytest.raises(Unavailable):
            await topic_with(behind.broker, "payments")
        assert virtual_loop().time() - began_s <= LOOKUP_S + 0.1

    simulated(scenario)


def test_a_known_topic_and_a_call_of_another_broker_cost_no_read() -> None:
    async def scenario() -> None:
        world = lagging(topic())
        assert await topic_with(world.broker, "orders", 1) == topic()
        with pytest.raises(UnknownTopic):
            await topic_with(world.broker, "payments", waits=False)
        assert virtual_loop().time() == 0

    simulated(scenario)


class Log:
    """A log that notes which partitions it was asked about."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []

    async def delete_records(self, partition: TopicPartition, before_offset: int, *, validate_only: bool) -> Offset:
        self.asked.append(partition)
        return Offset(before_offset)

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        self.asked.append(partition)
        return Explanation("key", 0, 1, Offset(offset), Offset(offset), 0, 0, False)  # type: ignore[arg-type]

    async def bounds_of(self, partitions: Sequence[TopicPartition]) -> list[Unavailable]:
        self.asked += partitions
        return [Unavailable("it has no records here") for _ in partitions]

    async def ends_of_epochs(self, queries: Sequence[EpochQuestion]) -> list[Unavailable]:
        return await self.bounds_of([query.partition for query in queries])

    async def fetch(self, targets: Sequence[FetchTarget], **bounds: Any) -> list[Unavailable]:
        return await self.bounds_of([target.partition for target in targets])

    def locations_bytes_min(self, rack: str) -> int:
        return 0

    def preferred_broker(self, partition: TopicPartition, rack: str) -> None:
        return None


def service(broker: Any) -> GrpcLogService:
    made = GrpcLogService.__new__(GrpcLogService)
    made._broker = broker
    return made


async def lists_offsets(broker: Any, *, forwarded: bool = False, topic_id: str = "") -> Status:
    query = log_pb2.OffsetQuery(topic="orders", topic_id=topic_id, partition=3, latest=True)
    return (await service(broker).list_offsets(log_pb2.ListOffsetsRequest(queries=[query]), forwarded)).results[0].error


async def asks_for_an_epoch(broker: Any, *, forwarded: bool = False, topic_id: str = "") -> Status:
    query = log_pb2.LeaderEpochQuery(topic="orders", topic_id=topic_id, partition=3, leader_epoch=1)
    request = log_pb2.OffsetForLeaderEpochRequest(queries=[query])
    return (await service(broker).offset_for_leader_epoch(request, forwarded)).ends[0].error


class Fetch(GrpcFetch):
    """A Fetch that ends before its answer is laid out."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    async def laid_out(self, asked: Any, answers: Sequence[Any], *rest: Any) -> bytes:
        raise answers[0]


async def fetches(broker: Any, *, forwarded: bool = False, topic_id: str = "") -> Status:
    broker.settings = GatewaySettings()
    request = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="orders", topic_id=topic_id, partition=3)])
    with pytest.raises(TidelogError) as answered:
        await Fetch(broker)._fetch(request, cast(Reservation, None), broker.cluster_log, forwarded=forwarded)
    return to_status(answered.value)


@pytest.mark.parametrize("here", [None, topic()], ids=["made", "grown"])
def test_a_partition_is_described_over_http_once_this_broker_has_heard_of_it(here: Topic | None) -> None:
    async def bounds_of(partitions: Sequence[TopicPartition], wait_s: float) -> list[Bounds]:
        return [Bounds(Offset(0), Offset(9), Offset(9), LeaderEpoch(1)) for _ in partitions]

    async def scenario() -> None:
        broker: Any = lagging(here, hears=GROWN).broker
        broker.version, broker.leader = "1", lambda partition: None
        broker.cluster_log = SimpleNamespace(bounds_of=bounds_of)
        asked = "/v1/topics/{topic}/partitions/{partition}"
        [describe] = [route.endpoint for route in admin_api(broker).routes if isinstance(route, APIRoute) and route.path == asked]
        described = msgspec.json.decode((await describe(topic="orders", partition=3)).body)
        assert (described["partition"], described["high_watermark"]) == (3, 9)

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("wait_ms", ["wait_ms=0", ""], ids=["ends", "goes on"])
def test_a_stream_over_http_that_ends_by_silence_begins_with_all_partitions(
    wait_ms: str, hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without an end finds a partition that was just added later."""
    begun: list[dict[int, int]] = []

    class Stream:
        def __init__(self, *asked: Any, **limits: Any) -> None:
            begun.append(asked[4])

        async def send(self, request: Any, *, events: bool) -> None: ...

    async def bounds(partition: TopicPartition) -> Bounds:
        return Bounds(Offset(0), Offset(9), Offset(9), LeaderEpoch(1))

    async def scenario() -> None:
        world = lagging(topic(partition_count=2), hears=GROWN if hears else None)
        world.broker.settings = GatewaySettings()  # type: ignore[misc]
        world.broker.cluster_log = SimpleNamespace(bounds=bounds)  # type: ignore[misc]  # a double
        fetch = HttpFetch(world.broker, InterruptibleWaits())
        request: Any = SimpleNamespace(
            query=lambda names: Query(wait_ms.encode(), names), accepted=lambda types: "application/x-ndjson", headers={}
        )
        monkeypatch.setattr("gateway.http.records.fetch.RecordStream", Stream)
        await fetch.topic(request, "orders")
        assert [sorted(positions) for positions in begun] == [list(range(4 if wait_ms and hears else 2))]
        assert virtual_loop().time() <= (LOOKUP_S + 0.1 if wait_ms else 0), "the store may be out of reach"

    simulated(scenario)


def test_a_stream_over_http_that_ends_is_refused_by_a_broker_that_lags_where_the_client_takes_no_outdated_view() -> None:
    async def scenario() -> None:
        world = lagging(topic(partition_count=2))
        world.broker.settings = GatewaySettings()  # type: ignore[misc]
        request: Any = SimpleNamespace(
            query=lambda names: Query(b"wait_ms=0&refuse_outdated=true", names), accepted=lambda types: "application/x-ndjson"
        )
        with pytest.raises(Unavailable) as refused:
            await HttpFetch(world.broker, InterruptibleWaits()).topic(request, "orders")
        assert refused.value.details["is_outdated"]

    simulated(scenario)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("hears", [True, False])
def test_topics_are_listed_at_once_or_after_this_broker_has_heard_of_all_changes(fresh: bool, hears: bool) -> None:
    async def scenario() -> None:
        world = World(topic(), None)
        if hears:
            world.view.hears(LAG_S, topic("payments"))
        world.broker.topic_cache = SimpleNamespace(  # type: ignore[misc,assignment]  # a double
            topics=lambda: list(world.view.topics.values()), catch_up_with_all=world.view.catch_up_with_all
        )
        listed = await TopicsService(world.broker).list_topics(admin_pb2.ListTopicsRequest(fresh=fresh))
        assert isinstance(listed, admin_pb2.ListTopicsResponse)
        assert [each.name for each in listed.topics] == (["orders", "payments"] if fresh and hears else ["orders"])

    simulated(scenario)


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_topic_is_described_as_it_is_in_the_store_or_refused_where_the_client_takes_no_outdated_view(
    refuses: bool, hears: bool
) -> None:
    async def scenario() -> None:
        world = lagging(topic(partition_count=2), hears=GROWN if hears else None)
        broker: Any = world.broker
        broker.settings = GatewaySettings()
        broker.leader = lambda partition: None
        service = TopicsService(broker)
        request = admin_pb2.GetTopicRequest(name="orders", leaders_only=True, fresh=True, refuse_outdated=refuses)
        if refuses and not hears:
            with pytest.raises(Unavailable) as refused:
                await service.get(request)
            assert refused.value.retryable
            assert from_status(to_status(refused.value)).details["is_outdated"], "for clients, which ask another broker"
            return
        described = await service.get(request)
        assert isinstance(described, admin_pb2.Topic)
        assert described.partition_count == (4 if hears else 2)

    simulated(scenario)


def test_a_topic_is_described_with_its_first_leader_epoch_by_which_clients_know_the_former_one() -> None:
    async def scenario() -> None:
        broker: Any = lagging(msgspec.structs.replace(MADE_AGAIN, first_leader_epoch=LeaderEpoch(12))).broker
        broker.settings, broker.leader = GatewaySettings(), lambda partition: None
        described = await TopicsService(broker).get(admin_pb2.GetTopicRequest(name="orders", leaders_only=True))
        assert isinstance(described, admin_pb2.Topic)
        assert described.first_leader_epoch == 12

    simulated(scenario)


def test_a_list_of_topics_is_refused_by_a_broker_that_lags_where_the_client_takes_no_outdated_view() -> None:
    async def scenario() -> None:
        world = World(topic(), None)
        world.broker.topic_cache = SimpleNamespace(  # type: ignore[misc,assignment]  # a double
            topics=lambda: list(world.view.topics.values()), catch_up_with_all=world.view.catch_up_with_all
        )
        with pytest.raises(Unavailable) as refused:
            await TopicsService(world.broker).list_topics(admin_pb2.ListTopicsRequest(fresh=True, refuse_outdated=True))
        assert refused.value.details["is_outdated"]
        world.view.hears(LAG_S, topic("payments"))
        listed = await TopicsService(world.broker).list_topics(admin_pb2.ListTopicsRequest(fresh=True, refuse_outdated=True))
        assert isinstance(listed, admin_pb2.ListTopicsResponse)
        assert [each.name for each in listed.topics] == ["orders", "payments"]

    simulated(scenario)


Reads = Callable[..., Awaitable[Status]]


@pytest.mark.parametrize("ask", [lists_offsets, asks_for_an_epoch, fetches])
@pytest.mark.parametrize("topic_id", ["", GROWN.id], ids=["by name", "by id"])
@pytest.mark.parametrize("here", [None, topic(), topic(topic_id="c" * 32, partition_count=2)], ids=["made", "grown", "made again"])
def test_a_read_over_grpc_waits_until_this_broker_has_heard_of_the_partition(ask: Reads, topic_id: str, here: Topic | None) -> None:
    async def scenario() -> None:
        world, log = lagging(here, hears=GROWN), Log()
        world.broker.cluster_log = log  # type: ignore[misc,assignment]  # a double
        assert isinstance(from_status(await ask(world.broker, topic_id=topic_id)), Unavailable)
        assert {(at.topic_id, at.partition) for at in log.asked} == {(GROWN.id, 3)}

    simulated(scenario)


@pytest.mark.parametrize("ask", [lists_offsets, asks_for_an_epoch, fetches])
def test_a_topic_id_that_is_gone_is_unknown_once_this_broker_has_caught_up(ask: Reads) -> None:
    async def scenario() -> None:
        world, log = lagging(GROWN, hears=GROWN), Log()
        world.broker.cluster_log = log  # type: ignore[misc,assignment]  # a double
        error = from_status(await ask(world.broker, topic_id=MADE_AGAIN.id))
        assert isinstance(error, UnknownTopic)
        assert error.details["new_topic_id"] == GROWN.id
        assert not log.asked

    simulated(scenario)


@pytest.mark.parametrize("ask", [lists_offsets, asks_for_an_epoch, fetches])
@pytest.mark.parametrize("topic_id", ["", GROWN.id], ids=["by name", "by id"])
def test_a_read_over_grpc_may_be_repeated_as_long_as_this_broker_does_not_hear_of_the_partition(ask: Reads, topic_id: str) -> None:
    async def scenario() -> None:
        world = World(topic(), GROWN)
        world.broker.cluster_log = world.broker.local_log = log = Log()  # type: ignore[misc,assignment]  # a double
        assert isinstance(from_status(await ask(world.broker, topic_id=topic_id)), Unavailable)
        forwarded = from_status(await ask(world.broker, forwarded=True, topic_id=topic_id))
        assert isinstance(forwarded, UnknownPartition), "the other broker repeats it"
        assert not log.asked

    simulated(scenario)


async def deletes(broker: Any) -> None:
    service = GrpcLogService.__new__(GrpcLogService)
    service._broker = broker
    await service.delete_records(log_pb2.DeleteRecordsRequest(topic="orders", partition=3, before_offset=5), False)


async def explains(broker: Any) -> None:
    await ClusterService(broker).explain(admin_pb2.ExplainOffsetRequest(topic="orders", partition=3, offset=5), False)


@pytest.mark.parametrize("ask", [deletes, explains])
def test_a_call_over_grpc_waits_until_this_broker_has_heard_of_the_partition(ask: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario() -> None:
        world, log = lagging(topic(), hears=GROWN), Log()
        broker = SimpleNamespace(topic_cache=world.view, cluster_log=log)
        await ask(broker)
        assert [at.partition for at in log.asked] == [3]

    simulated(scenario)
