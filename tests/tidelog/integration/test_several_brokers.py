"""The SDK with real brokers that share a bucket: it goes to the leaders, and follows them; topics are made again under load."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import tidelog
from metadata.errors import InvalidArgument, OutcomeUnknown, UnknownTopic
from metadata.model import Partition, TopicId, TopicPartition
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.tidelog.producing import outcome_of, quick, until
from tidelog.producer.producer import Delivery
from tidelog.transport.descriptions import EpochEnd

pytestmark = pytest.mark.slow
PARTITIONS = 4


def connected(cluster: Cluster) -> tidelog.Client:
    return tidelog.connect(*(f"grpc://{broker.grpc_address}" for broker in cluster.brokers), **quick())


async def leaders_of(log: tidelog.Client, topic: str) -> list[str]:
    """Broker ids, by partition."""
    return [state.leader for state in (await log.topics.describe(topic)).partitions]


async def drain(log: tidelog.Client, broker_id: str, topic: str) -> None:
    """Returns when the others lead all of the topic."""
    await log.drain_broker(broker_id)
    while {"", broker_id} & set(await leaders_of(log, topic)):  # noqa: ASYNC110  # no event shows it
        await asyncio.sleep(0.05)


def test_each_partition_is_sent_to_its_leader_and_follows_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with connected(cluster) as log:
            topic = await log.topics.create("orders", partitions=PARTITIONS)
            for n in range(PARTITIONS):
                await log.produce("orders", n, partition=n)

            def is_direct() -> bool:
                queues = log._producer._topics.books["orders"].queues
                partitions = [TopicPartition(TopicId(topic.id), Partition(queue.partition)) for queue in queues]
                return [queue.way.address for queue in queues] == [cluster.leader(led).grpc_address for led in partitions]

            await until(is_direct)
            assert len(set(await leaders_of(log, "orders"))) == 2
            sent: list[Delivery] = []
            draining = asyncio.ensure_future(drain(log, "broker-0", "orders"))
            while not draining.done() or not is_direct():
                sent += [await log.send("orders", len(sent), partition=n) for n in range(PARTITIONS)]
                await asyncio.sleep(0)
            await draining
            await log.flush()
            acks = [await delivery for delivery in sent]
            for partition in range(PARTITIONS):
                offsets = [ack.offset for ack in acks if ack.partition == partition]
                assert offsets == list(range(1, 1 + len(offsets))), "in order, each once"
            assert len([record async for record in log.consume("orders", follow=False)]) == PARTITIONS + len(sent)

    with_cluster(tmp_path, scenario)


def test_a_reader_learns_where_the_records_of_each_leader_epoch_end(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with connected(cluster) as log:
            await log.topics.create("orders", partitions=1)
            [leader] = await leaders_of(log, "orders")
            assert await log.offset_for_leader_epoch("orders", 0, 0) in (None, EpochEnd(leader_epoch=0, end_offset=0))
            for n in range(3):
                await log.produce("orders", n)
            await drain(log, leader, "orders")
            for n in range(4):
                await log.produce("orders", n)
            state = (await log.topics.describe("orders")).partitions[0]
            assert state.leader_epoch > 0
            assert await log.offset_for_leader_epoch("orders", 0, 0) == EpochEnd(leader_epoch=0, end_offset=3)
            last = EpochEnd(leader_epoch=state.leader_epoch, end_offset=7)
            assert await log.offset_for_leader_epoch("orders", 0, state.leader_epoch) == last
            with pytest.raises(InvalidArgument):
                await log.offset_for_leader_epoch("orders", 0, -1)

    with_cluster(tmp_path, scenario)


def test_no_record_of_a_topic_that_is_deleted_lands_in_the_one_that_is_made_after_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with connected(cluster) as log:
            await log.topics.create("orders", partitions=PARTITIONS)
            sent: list[tuple[int, Delivery]] = []
            refused = 0
            is_over = asyncio.Event()

            async def send() -> None:
                nonlocal refused
                n = 0
                while not is_over.is_set():
                    n += 1
                    try:
                        sent.append((n, await log.send("orders", n, partition=n % PARTITIONS)))
                    except UnknownTopic:
                        refused += 1
                    await asyncio.sleep(0.001)  # the brokers share this loop

            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(send())
                for _ in range(3):
                    count = len(sent)
                    await until(lambda count=count: len(sent) >= count + 100)  # type: ignore[misc]
                    await log.topics.delete("orders")
                    await log.topics.create("orders", partitions=PARTITIONS)
                before = len(sent)
                await until(lambda: len(sent) >= before + 100)
                is_over.set()
                await sending
            outcomes = {n: await outcome_of(delivery) for n, delivery in sent}
            found = {(record.partition, record.offset): record.json() async for record in log.consume("orders", follow=False)}
            assert max(Counter(found.values()).values()) == 1
            for n, outcome in outcomes.items():
                assert isinstance(outcome, tidelog.Ack | OutcomeUnknown | UnknownTopic), outcome
                if isinstance(outcome, UnknownTopic):
                    assert n not in found.values(), "it was refused"
            last = [(n, outcome) for n, outcome in outcomes.items() if isinstance(outcome, tidelog.Ack)][-50:]
            for n, ack in last:
                assert found[ack.partition, ack.offset] == n

    with_cluster(tmp_path, scenario)
