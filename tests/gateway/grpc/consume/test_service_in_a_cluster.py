"""Consume where brokers are several: any of them serves any stream, wherever the leaders and the coordinator are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest

from gateway.broker.broker import Broker
from metadata.errors import Stopping
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.routing.test_cluster_log import PARTITIONS, channel_to, made
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.consume_streams import PLENTY, ConsumeStream, GoodClient, append, start
from tests.kit.gateway.group_calls import GroupCalls
from tests.kit.gateway.small_broker import until

pytestmark = pytest.mark.slow


def coordinator_of(cluster: Cluster) -> Broker:
    found = cluster.brokers[0].groups.coordinator("billing")
    return next(broker for broker in cluster.brokers if broker.broker_id == found.broker_id)


def read_by(clients: Iterable[GoodClient]) -> list[bytes]:
    return sorted(value for client in clients for value in client.stream.values)


def test_partitions_that_others_lead_are_read_and_followed_through_a_drain(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        stays, leaves = cluster.brokers[0], cluster.brokers[2]
        async with channel_to(stays) as channel:
            stream = ConsumeStream(channel)
            await stream.send(start=start(), credit_bytes=PLENTY)
            for number in range(PARTITIONS):
                await append(channel, b"%d-before" % number, partition=number)
            await stream.until_read(PARTITIONS)
            await stays.drain(leaves.broker_id, draining=True)
            await until(lambda: all(cluster.leader(partition_of(topic, number)) is not leaves for number in range(PARTITIONS)))
            for number in range(PARTITIONS):
                await append(channel, b"%d-behind" % number, partition=number)
            await stream.until_read(2 * PARTITIONS)
            for number in range(PARTITIONS):
                assert stream.read["orders", number] == [(0, b"%d-before" % number), (1, b"%d-behind" % number)]
            stream.call.cancel()

    with_cluster(tmp_path, scenario, count=3)


def test_members_at_brokers_that_do_not_coordinate_their_group_share_its_partitions(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await made(cluster)
        elsewhere = [broker for broker in cluster.brokers if broker is not coordinator_of(cluster)]
        async with AsyncExitStack() as channels, asyncio.TaskGroup() as tasks:
            opened = [await channels.enter_async_context(channel_to(broker)) for broker in elsewhere]
            clients = [GoodClient(channel) for channel in opened]
            running = [tasks.create_task(client.run()) for client in clients]
            await until(lambda: [len(client.stream.owned) for client in clients] == [3, 3])
            await write(opened[0], "a")
            await until(lambda: len(read_by(clients)) == PARTITIONS)
            running[0].cancel()
            clients[0].stream.call.cancel()
            await until(lambda: len(clients[1].stream.owned) == PARTITIONS)
            await write(opened[1], "b")
            await until(lambda: {*values("b")} <= {*read_by(clients)})
            assert {*read_by(clients)} == {*values("a"), *values("b")}
            await clients[1].stream.send(leave=True)

    with_cluster(tmp_path, scenario, count=3)


async def write(channel: grpc.aio.Channel, turn: str) -> None:
    for number, value in enumerate(values(turn)):
        await append(channel, value, partition=number)


def values(turn: str) -> list[bytes]:
    return [b"%s-%d" % (turn.encode(), number) for number in range(PARTITIONS)]


@pytest.mark.parametrize("coordinates", [True, False])
def test_a_broker_that_stops_loses_no_commit_and_its_members_go_on_elsewhere_at_once(tmp_path: Path, coordinates: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await made(cluster)
        coordinator = coordinator_of(cluster)
        stops = next(broker for broker in cluster.brokers if (broker is coordinator) == coordinates)
        stays = next(broker for broker in cluster.brokers if broker is not stops)
        async with AsyncExitStack() as channels:
            here = await channels.enter_async_context(channel_to(stops))
            there = await channels.enter_async_context(channel_to(stays))
            clients = [GoodClient(here), GoodClient(there)]
            async with asyncio.TaskGroup() as tasks:
                moved = tasks.create_task(run_until_stopped(clients[0]))
                tasks.create_task(clients[1].run())
                await until(lambda: [len(client.stream.owned) for client in clients] == [3, 3])
                await write(there, "a")
                await until(lambda: len(read_by(clients)) == PARTITIONS)
                stops.stop()
                await moved
                clients.append(GoodClient(there))
                tasks.create_task(clients[2].run())
                await until(lambda: [len(client.stream.owned) for client in clients] == [0, 3, 3])
                await write(there, "b")
                await until(lambda: {*values("b")} <= {*read_by(clients)})
                assert read_by(clients) == sorted([*values("a"), *values("b")]), "nothing twice"
                assert clients[1].lost == []
                offsets = (await GroupCalls(there).offsets()).offsets
                assert sorted(each.partition for each in offsets) == list(range(PARTITIONS))
                for client in clients[1:]:
                    await client.stream.send(leave=True)

    with_cluster(tmp_path, scenario, count=3)


async def run_until_stopped(client: GoodClient) -> None:
    """Where a message of the client meets the end of the stream half-way, gRPC hides from it why the stream has ended."""
    try:
        await client.run()
    except Stopping:
        return
    assert client.stream.met_the_end
