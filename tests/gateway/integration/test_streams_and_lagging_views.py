"""Streams that meet a leader whose own view has not heard yet of the partitions that it leads: they are read once it has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.broker.broker import Broker
from metadata.topics.topic import Topic
from tests.gateway.cluster.test_session_manager import partition_of
from tests.gateway.integration.test_streams_between_leaders import Stream, write
from tests.gateway.routing.test_cluster_log import PARTITIONS, channel_to, client_of, made
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.gateway.consume_streams import PLENTY, ConsumeStream, append, start
from tests.kit.gateway.small_broker import until

pytestmark = pytest.mark.slow

GROWN = 2 * PARTITIONS


class Lag:
    """The view that one broker answers with: the state before the topic has grown."""

    def __init__(self) -> None:
        self.refused = 0
        """So often it was asked."""


@contextmanager
def lagging(broker: Broker, before: Topic) -> Iterator[Lag]:
    lag, get = Lag(), broker.topic_cache.get

    def get_old(name: str) -> Topic:
        lag.refused += 1
        return before if name == before.name else get(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(broker.topic_cache, "get", get_old)
        yield lag


async def grown(cluster: Cluster, topic: Topic) -> Topic:
    """The topic with twice the partitions, once the first broker knows who leads them."""
    after = await cluster.brokers[0].alter_topic(topic.name, partition_count=GROWN)
    view = cluster.brokers[0].view
    await until(lambda: all(view.leader(partition_of(after, number)) is not None for number in range(GROWN)))
    for number in range(GROWN):
        await cluster.led(partition_of(after, number))
    assert any(cluster.leader(partition_of(after, number)) is cluster.brokers[1] for number in range(PARTITIONS, GROWN))
    return after


async def refused_again(lag: Lag) -> None:
    """Until the lagging leader has been asked at least twice more."""
    seen = lag.refused
    await until(lambda: lag.refused >= seen + 2)


def test_a_consume_stream_reads_partitions_whose_leader_had_not_heard_of_them_when_they_were_added(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        async with channel_to(cluster.brokers[0]) as channel:
            stream = ConsumeStream(channel)
            await stream.send(start=start(), credit_bytes=PLENTY)
            await stream.until("progress")
            before = replace(cluster.brokers[1].topic_cache.get("orders"))
            with lagging(cluster.brokers[1], before) as lag:
                await grown(cluster, topic)
                await refused_again(lag)
            for number in range(GROWN):
                await append(channel, b"%d" % number, partition=number)
            await stream.until_read(GROWN)
            assert sorted(stream.values) == sorted(b"%d" % number for number in range(GROWN))
            stream.call.cancel()

    with_cluster(tmp_path, scenario)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_an_http_stream_reads_partitions_whose_leader_had_not_heard_of_them_when_they_were_added(
    tmp_path: Path, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.records.stream.PING_MS", 50)  # so soon the stream looks at the topic again

    async def scenario(cluster: Cluster) -> None:
        topic, _, _ = await made(cluster)
        stream = Stream()
        async with client_of(cluster.brokers[0]) as client, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(stream.read(client.session, accept))
            await write(client, 0, 100)
            await until(lambda: stream.seen[0] == [100])
            before = replace(cluster.brokers[1].topic_cache.get("orders"))
            with lagging(cluster.brokers[1], before) as lag:
                await grown(cluster, topic)
                await refused_again(lag)
            for number in range(GROWN):
                await write(client, number, number)
            await until(lambda: stream.error is not None or all(stream.seen[number][-1:] == [number] for number in range(GROWN)))
            assert stream.error is None
            reading.cancel()

    with_cluster(tmp_path, scenario)
