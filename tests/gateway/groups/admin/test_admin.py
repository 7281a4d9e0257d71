"""What operators ask of groups at any broker of a cluster: the coordinator answers, after one hop at most; and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from gateway.broker.broker import Broker
from gateway.groups.admin.admin import GroupAdmin
from gateway.proto import groups_pb2
from gateway.routing.peer_channels import FORWARDED_BY
from metadata.errors import (
    GroupNotEmpty,
    InvalidArgument,
    InvalidGroupName,
    InvalidName,
    NotCoordinator,
    UnknownGroup,
    UnknownTopic,
)
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER
from metadata.groups.offsets import CommittedOffset
from metadata.topics.cache import TopicCache
from metadata.topics.topic import Topic
from tests.gateway.cluster.test_session_manager import partition_of
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.group_calls import GroupCalls, refused
from tests.kit.segments.batches import batch_of, header_of

pytestmark = pytest.mark.slow
PARTITIONS = 4
BILLING = groups_pb2.DescribeGroupRequest(group="billing")


def topic_part(topic: str, *partitions: int) -> groups_pb2.TopicPartitions:
    return groups_pb2.TopicPartitions(topic=topic, partitions=partitions)


async def seek(
    operations: GroupAdmin, *topics: groups_pb2.TopicPartitions, group: str = "billing", **to: Any
) -> Sequence[groups_pb2.MovedOffset]:
    return (await operations.seek(groups_pb2.SeekGroupRequest(group=group, topics=topics, **to))).moved


async def delete_offsets(operations: GroupAdmin, *topics: groups_pb2.TopicPartitions) -> list[tuple[int, int]]:
    answer = await operations.delete_offsets(groups_pb2.DeleteOffsetsRequest(group="billing", topics=topics))
    return [(row.partition, row.offset) for row in answer.deleted]


def without_ages(group: groups_pb2.GroupDescription) -> groups_pb2.GroupDescription:
    """The ages of records differ from one question to the next."""
    same = groups_pb2.GroupDescription.FromString(group.SerializeToString())
    for each in (same, *same.lags):
        each.ClearField("lag_seconds")
    return same


class Brokers:
    def __init__(self, cluster: Cluster, topic: Topic) -> None:
        self.cluster = cluster
        self.topic = topic

    def coordinator(self, group: str) -> Broker:
        found = self.cluster.brokers[0].groups.coordinator(group).broker_id
        return next(each for each in self.cluster.brokers if each.broker_id == found)

    def other(self, group: str) -> Broker:
        return next(each for each in self.cluster.brokers if each is not self.coordinator(group))

    async def commit(self, group: str, offset: int = 1) -> None:
        offsets = {
            partition_of(self.topic, number): CommittedOffset(offset=offset, committed_at_ms=0) for number in range(PARTITIONS)
        }
        assert await self.coordinator(group).groups.commit(group, NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets) == {}


def serve(tmp_path: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    async def prepared(cluster: Cluster) -> None:
        topic = await cluster.brokers[0].create_topic("orders", PARTITIONS)
        for broker in cluster.brokers:
            assert await broker.topic_cache.wait_for(topic.revision, timeout_s=60)
        for number in range(PARTITIONS):
            at = partition_of(topic, number)
            batch = batch_of(b"a", b"b", b"c")
            await (await cluster.led(at)).produce(at, batch, header_of(batch))
        await scenario(Brokers(cluster, topic))

    with_cluster(tmp_path, prepared)


def test_every_broker_describes_a_group_the_same(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.commit("billing")
        here = await brokers.coordinator("billing").group_operations.describe(BILLING)
        there = await brokers.other("billing").group_operations.describe(BILLING)
        assert without_ages(there) == without_ages(here)
        assert there.coordinator == brokers.coordinator("billing").broker_id
        assert [(row.committed_offset, row.high_watermark, row.lag_records, row.HasField("error")) for row in there.lags] == [
            (1, 3, 2, False)
        ] * PARTITIONS
        assert all(row.lag_seconds > 0 for row in there.lags)
        for broker in brokers.cluster.brokers:
            (listed,) = (await broker.group_operations.list_groups(groups_pb2.ListGroupsRequest())).groups
            assert (listed.group, listed.coordinator) == ("billing", there.coordinator)

    serve(tmp_path, scenario)


def test_every_broker_moves_and_deletes_at_the_coordinator(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.commit("billing")
        other = brokers.other("billing").group_operations
        rows = await seek(other, topic_part("orders", 0), latest=True, validate_only=True)
        assert [(row.before, row.after) for row in rows] == [(1, 3)]
        rows = await seek(other, shift=1)
        assert [(row.partition, row.before, row.after, row.HasField("error")) for row in rows] == [
            (partition, 1, 2, False) for partition in range(PARTITIONS)
        ]
        assert await delete_offsets(other, topic_part("orders", 0, 1)) == [(0, 2), (1, 2)]
        await other.delete(groups_pb2.DeleteGroupRequest(group="billing", validate_only=True))
        assert len((await other.describe(BILLING)).lags) == 2
        await other.delete(groups_pb2.DeleteGroupRequest(group="billing"))
        with pytest.raises(UnknownGroup):
            await other.describe(BILLING)

    serve(tmp_path, scenario)


def test_a_topic_that_was_just_made_elsewhere_is_heard_of_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator has not heard of it: neither a seek there, nor a deletion, must call it unknown."""

    async def scenario(brokers: Brokers) -> None:
        operations = brokers.coordinator("billing").group_operations
        cache, get, catch_up = brokers.coordinator("billing").topic_cache, TopicCache.get, TopicCache.catch_up_with_all
        lags = True

        def get_if_heard_of(self: TopicCache, name: str) -> Topic:
            if lags and name == "orders" and self is cache:
                raise UnknownTopic("there is no topic orders")
            return get(self, name)

        async def hear(self: TopicCache, *, timeout_s: float) -> None:
            nonlocal lags
            await catch_up(self, timeout_s=timeout_s)
            lags = False

        monkeypatch.setattr(TopicCache, "get", get_if_heard_of)
        monkeypatch.setattr(TopicCache, "catch_up_with_all", hear)
        moved = await seek(operations, topic_part("orders", 1), latest=True)
        assert [(row.partition, row.after, row.HasField("error")) for row in moved] == [(1, 3, False)]
        lags = True
        assert await delete_offsets(operations, topic_part("orders", 1)) == [(1, 3)]
        with pytest.raises(UnknownTopic):
            await seek(operations, topic_part("gone", 1), latest=True)

    serve(tmp_path, scenario)


def test_refusals_come_back_as_the_coordinator_raised_them(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        async with grpc.aio.insecure_channel(brokers.other("billing").grpc_address) as channel:
            await GroupCalls(channel).alone()
        other = brokers.other("billing").group_operations
        assert (await other.describe(BILLING)).members
        with pytest.raises(GroupNotEmpty):
            await other.delete(groups_pb2.DeleteGroupRequest(group="billing"))
        with pytest.raises(GroupNotEmpty):
            await seek(other, topic_part("orders"), latest=True)
        with pytest.raises(UnknownTopic):
            await seek(other, topic_part("nope"), group="payments", latest=True)
        for topic, error in (
            (topic_part("no/name"), InvalidName),
            (topic_part("orders", -1), InvalidArgument),
            (groups_pb2.TopicPartitions(topic="orders", topic_id="ä"), InvalidArgument),
        ):
            with pytest.raises(error):
                await seek(other, topic, latest=True)
            with pytest.raises(error):
                await delete_offsets(other, topic)
        for group in ("", "line\n"):
            with pytest.raises(InvalidGroupName):
                await seek(other, group=group, latest=True)
            with pytest.raises(InvalidGroupName):
                await other.describe(groups_pb2.DescribeGroupRequest(group=group))

    serve(tmp_path, scenario)


def test_a_call_that_was_forwarded_is_not_forwarded_again(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.commit("billing")
        async with grpc.aio.insecure_channel(brokers.other("billing").grpc_address) as channel:
            stub: Any = GroupCalls(channel).stub
            for call, request in (
                (stub.DescribeGroup, groups_pb2.DescribeGroupRequest(group="billing")),
                (stub.DeleteGroup, groups_pb2.DeleteGroupRequest(group="billing")),
                (stub.SeekGroup, groups_pb2.SeekGroupRequest(group="billing", latest=True)),
                (
                    stub.DeleteOffsets,
                    groups_pb2.DeleteOffsetsRequest(group="billing", topics=[groups_pb2.TopicPartitions(topic="orders")]),
                ),
            ):
                assert isinstance(await refused(call(request, metadata=((FORWARDED_BY, "broker-9"),))), NotCoordinator)

    serve(tmp_path, scenario)


def test_only_the_coordinator_exports_the_metrics_of_a_group(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.commit("billing")
        line = 'tidelog_group_lag_records{group="billing",topic="orders"} 8.0'
        detail = 'kafka_consumergroup_lag{consumergroup="billing",partition="3",topic="orders"} 2.0'
        for broker in brokers.cluster.brokers:
            await broker._groups._upkeep.figures.refresh()
            async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
                is_here = broker is brokers.coordinator("billing")
                async with session.get("/metrics") as answer:
                    assert answer.status == 200
                    assert answer.headers["content-type"].startswith("text/plain; version=")
                    assert (line in (await answer.text()).splitlines()) is is_here
                async with session.get("/metrics/detail") as answer:
                    assert (detail in (await answer.text()).splitlines()) is is_here
                async with session.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}) as answer:
                    assert answer.headers["content-type"].startswith("application/openmetrics-text")
                    assert (await answer.text()).endswith("# EOF\n")

    serve(tmp_path, scenario)
