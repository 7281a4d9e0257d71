"""Fetch sessions over a socket: each version of Fetch that has them, and kafka-python's consumer, which keeps one per broker."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.broker.broker import Broker
from gateway.kafka.errors import ErrorCode
from gateway.kafka.protocol.hot_messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from metadata.topics.topic import Topic
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.kafka_client import KafkaTestClient, kafka_client
from tests.kit.gateway.small_broker import PATIENCE_S
from tests.kit.segments.batches import batch_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by a function that Python has deprecated
    import kafka

pytestmark = pytest.mark.slow

PARTITIONS = 4


def run(tmp_path: Path, scenario: Callable[[Broker, KafkaTestClient, Topic], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 1, kafka="127.0.0.1:0") as cluster:
            [broker] = cluster.brokers
            topic = await broker.create_topic("orders", PARTITIONS)
            async with kafka_client(address(cluster)) as client:
                await scenario(broker, client, topic)

    uvloop.run(whole())


def address(cluster: Cluster) -> str:
    [listener] = cluster.brokers[0].kafka_listeners
    return f"{listener.host}:{listener.port}"


async def produce(client: KafkaTestClient, topic: Topic, partition: int, *values: bytes) -> None:
    data = [PartitionProduceData(index=partition, records=memoryview(batch_of(*values)))]
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic.name, partition_data=data)])
    answer = await client.ask("Produce", 9, request)
    assert answer.responses[0].partition_responses[0].error_code == 0


def fetch(topic: Topic, session_id: int, epoch: int, *partitions: int, forgotten: tuple[int, ...] = ()) -> FetchRequest:
    topic_id = bytes.fromhex(topic.id)
    asked = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20) for number in partitions]
    return FetchRequest(
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic.name, topic_id=topic_id, partitions=asked)] if asked else (),
        forgotten_topics_data=[ForgottenTopic(topic=topic.name, topic_id=topic_id, partitions=forgotten)] if forgotten else (),
    )


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_session_answers_what_changed_in_each_form_of_a_fetch(tmp_path: Path, version: int) -> None:
    async def scenario(_: Broker, client: KafkaTestClient, topic: Topic) -> None:
        async def partitions(request: FetchRequest) -> list[int]:
            answer = await client.ask("Fetch", version, request)
            assert answer.error_code == 0
            assert answer.session_id == session_id
            return [each.partition_index for named in answer.responses for each in named.partitions]

        opened = await client.ask("Fetch", version, fetch(topic, 0, 0, 0, 1, 2))
        session_id = opened.session_id
        assert session_id > 0
        assert [each.partition_index for each in opened.responses[0].partitions] == [0, 1, 2]
        assert await partitions(fetch(topic, session_id, 1)) == []
        await produce(client, topic, 1, b"a")
        assert await partitions(fetch(topic, session_id, 2)) == [1]
        assert await partitions(fetch(topic, session_id, 3, 3, forgotten=(1,))) == [3]
        assert (await client.ask("Fetch", version, fetch(topic, session_id, 3))).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await client.ask("Fetch", version, fetch(topic, 77, 4))).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        other_form = 12 if version > 12 else 13
        refused = await client.ask("Fetch", other_form, fetch(topic, session_id, 4))
        assert refused.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        closed = await client.ask("Fetch", version, fetch(topic, session_id, -1, 0))
        assert (closed.session_id, closed.error_code) == (0, 0)
        assert (await client.ask("Fetch", version, fetch(topic, session_id, 4))).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(tmp_path, scenario)


def test_a_fetch_within_a_session_waits_for_records_of_any_of_its_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: KafkaTestClient, topic: Topic) -> None:
        session_id = (await client.ask("Fetch", 17, fetch(topic, 0, 0, 0, 1))).session_id
        waiting = fetch(topic, session_id, 1)
        waiting.max_wait_ms, waiting.min_bytes = 30_000, 1
        client.send("Fetch", 17, waiting)
        [listener] = broker.kafka_listeners
        async with kafka_client(f"{listener.host}:{listener.port}") as producer:
            await produce(producer, topic, 1, b"a")
            _, answer = await client.receive("Fetch", 17)
        assert [each.partition_index for each in answer.responses[0].partitions] == [1]

    run(tmp_path, scenario)


def test_a_topic_that_is_deleted_is_an_error_of_its_partitions_within_a_session(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: KafkaTestClient, topic: Topic) -> None:
        session_id = (await client.ask("Fetch", 13, fetch(topic, 0, 0, 0))).session_id
        await broker.delete_topic(topic.name)
        remade = await broker.create_topic(topic.name, 1)
        for epoch in (1, 2):
            answer = await client.ask("Fetch", 13, fetch(topic, session_id, epoch))
            assert [each.error_code for each in answer.responses[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]
        answer = await client.ask("Fetch", 13, fetch(topic, session_id, 3, forgotten=(0,)))
        assert (answer.session_id, list(answer.responses)) == (0, [])
        opened = await client.ask("Fetch", 13, fetch(remade, 0, 0, 0))
        assert opened.session_id > 0
        assert opened.responses[0].partitions[0].error_code == 0

    run(tmp_path, scenario)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_reads_all_records_through_one_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")

    async def scenario(broker: Broker, client: KafkaTestClient, topic: Topic) -> None:
        [listener] = broker.kafka_listeners
        consumer = await asyncio.to_thread(
            kafka.KafkaConsumer,
            bootstrap_servers=f"{listener.host}:{listener.port}",
            group_id=None,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        partitions = [kafka.TopicPartition(topic.name, number) for number in range(PARTITIONS)]

        def read(count: int) -> set[bytes]:
            found: list[bytes] = []
            while len(found) < count:
                found += [each.value for polled in consumer.poll(timeout_ms=1_000).values() for each in polled]
            assert len(found) == count
            return set(found)

        def sessions() -> tuple[float, float]:
            values = {sample.name: sample.value for family in broker.metrics.families() for sample in family.samples}
            return values["tidelog_kafka_fetch_sessions"], values["tidelog_kafka_fetch_session_partitions"]

        try:
            consumer.assign(partitions)
            for turn in range(3):
                values = {b"%d-%d" % (turn, number) for number in range(PARTITIONS)}
                for number in range(PARTITIONS):
                    await produce(client, topic, number, b"%d-%d" % (turn, number))
                assert await asyncio.to_thread(read, PARTITIONS) == values
            assert sessions() == (1, PARTITIONS)
            consumer.assign(partitions[:2])
            await produce(client, topic, 2, b"not assigned")
            await produce(client, topic, 1, b"assigned")
            assert await asyncio.to_thread(read, 1) == {b"assigned"}
            while sessions() != (1, 2):  # the last fetch of all partitions may have brought it
                assert not await asyncio.to_thread(consumer.poll, timeout_ms=100)
        finally:
            await asyncio.to_thread(consumer.close)

    run(tmp_path, scenario)
