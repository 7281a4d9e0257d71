"""Fetches within a session over a socket: each looks up what has news, and waits, fails and ends as a fetch of everything does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import uvloop

from gateway.broker.broker import Broker
from gateway.kafka.errors import ErrorCode
from gateway.kafka.fetch_sessions import GRANTED_SPARE, SessionWatch
from gateway.kafka.protocol.hot_messages import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from gateway.records.response_budget import Reservation
from metadata.model import Partition, TopicPartition
from metadata.topics.topic import Topic
from segments.read.log_reader import LogReader
from segments.read.reader_notifier import PartitionWatch
from tests.kit.gateway.access.guarded_broker import Guarded, serve
from tests.kit.gateway.broker_cluster import broker_cluster
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller, kafka_caller_as
from tests.kit.gateway.small_broker import PATIENCE_S
from tests.kit.metadata.stores import until
from tests.kit.segments.batches import batch_of, header_of

pytestmark = pytest.mark.slow

PARTITIONS = 20
VERSION = 12


class Consumer:
    """A client with one session over partitions of a topic."""

    def __init__(self, client: KafkaCaller, topic: Topic) -> None:
        self._client = client
        self._topic = topic
        self._session_id, self._epoch = 0, 0

    def send(
        self, offsets: dict[int, int] | None = None, *, wait_ms: int = 30_000, min_bytes: int = 1, max_bytes: int = 1 << 20
    ) -> None:
        partitions = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in (offsets or {}).items()
        ]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[FetchTopic(topic=self._topic.name, partitions=partitions)] if partitions else (),
        )
        self._client.send("Fetch", VERSION, request)
        self._epoch += 1

    async def moved(self, before: str, after: str) -> None:
        """Fetches once, with partition 0 of one topic in place of that of another one."""
        request = FetchRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[FetchTopic(topic=after, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
            forgotten_topics_data=[ForgottenTopic(topic=before, partitions=[0])],
        )
        self._client.send("Fetch", VERSION, request)
        self._epoch += 1
        await self.receive()

    async def receive(self) -> dict[int, Any]:
        """Returns the answered partitions by number."""
        answer = await self._client.answer("Fetch", VERSION)
        assert answer.error_code == 0
        self._session_id = answer.session_id
        return {each.partition_index: each for named in answer.responses for each in named.partitions}

    async def fetch(self, offsets: dict[int, int] | None = None, *, wait_ms: int = 0, **terms: int) -> dict[int, Any]:
        self.send(offsets, wait_ms=wait_ms, **terms)
        return await self.receive()


async def produce(broker: Broker, topic: Topic, number: int) -> None:
    batch = batch_of(b"v")
    await broker.log.produce(TopicPartition(topic.id, Partition(number)), batch, header_of(batch))


def has_records(answer: Any) -> bool:
    return any(answer.records)


@contextmanager
def counted_lookups() -> Iterator[Counter[int]]:
    """Counts the look-ups of each partition."""
    counted: Counter[int] = Counter()
    look_up = LogReader._look_up

    def counting(self: LogReader, led: Any, target: Any, *how: Any) -> Any:
        counted[target.partition.partition] += 1
        return look_up(self, led, target, *how)

    with patch.object(LogReader, "_look_up", counting):
        yield counted


async def opened(client: KafkaCaller, topic: Topic, offset: int = 0) -> Consumer:
    """A consumer whose session has looked up everything once, so that all of it is at rest."""
    consumer = Consumer(client, topic)
    await consumer.fetch(dict.fromkeys(range(topic.partition_count), offset))
    await consumer.fetch()
    return consumer


def run(tmp_path: Path, scenario: Callable[[Broker, Topic, Consumer], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 1, kafka="127.0.0.1:0") as cluster:
            [broker] = cluster.brokers
            topic = await broker.create_topic("orders", PARTITIONS)
            async with kafka_caller(broker) as client:
                await scenario(broker, topic, await opened(client, topic))

    uvloop.run(whole())


def test_a_commit_lets_a_session_look_up_the_partition_that_has_it_and_an_idle_poll_none(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        with counted_lookups() as counted:
            assert await consumer.fetch(wait_ms=100) == {}
            assert not counted
            consumer.send()
            await asyncio.sleep(0.05)
            await produce(broker, topic, 7)
            answer = await consumer.receive()
            assert list(answer) == [7]
            assert has_records(answer[7])
            assert counted == {7: 1}
            assert await consumer.fetch({7: 1}, wait_ms=100) == {}
            assert counted == {7: 3}, "its new offset, before the wait and at its end"
            counted.clear()
            assert await consumer.fetch(wait_ms=100) == {}
            assert not counted

    run(tmp_path, scenario)


def test_a_handover_ends_the_wait_of_a_session_and_its_end_is_answered_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        partitions = broker.log.partitions
        moving = TopicPartition(topic.id, Partition(3))
        consumer.send()
        await asyncio.sleep(0.05)
        partitions.stop_reads([moving])
        answer = await consumer.receive()
        assert {number: each.error_code for number, each in answer.items()} == {3: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert list(await consumer.fetch()) == [3], "the error lasts"
        partitions.resume(moving)
        assert {number: each.error_code for number, each in (await consumer.fetch()).items()} == {3: 0}
        assert await consumer.fetch() == {}
        consumer.send()
        await produce(broker, topic, 3)
        assert has_records((await consumer.receive())[3])

    run(tmp_path, scenario)


def test_a_deleted_topic_ends_the_wait_of_a_session_also_while_its_leader_keeps_the_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        consumer.send()
        await asyncio.sleep(0.05)
        broker.topic_cache._remove(topic.name)  # no controller works, so that no leader is asked to close them
        answer = await consumer.receive()
        assert len(answer) == PARTITIONS
        assert {each.error_code for each in answer.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    run(tmp_path, scenario)


def test_a_log_start_that_rises_is_answered_without_records(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        await produce(broker, topic, 4)
        assert list(await consumer.fetch()) == [4]
        assert list(await consumer.fetch({4: 1})) == []
        await broker.log.manifests.delete_records(TopicPartition(topic.id, Partition(4)), 1)
        answer = await consumer.fetch()
        assert {number: each.log_start_offset for number, each in answer.items()} == {4: 1}
        assert await consumer.fetch() == {}

    run(tmp_path, scenario)


def test_records_that_are_too_few_are_waited_with_and_counted_with_those_of_other_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        size = len(batch_of(b"v"))
        consumer.send(min_bytes=3 * size)
        for number in (2, 9, 5):
            await asyncio.sleep(0.05)
            await produce(broker, topic, number)
        answer = await consumer.receive()
        assert sorted(number for number, each in answer.items() if has_records(each)) == [2, 5, 9]
        few = await consumer.fetch(dict.fromkeys((2, 9, 5), 1), wait_ms=100, min_bytes=size)
        assert few == {}
        consumer.send(wait_ms=2_000, min_bytes=99 * size)
        await produce(broker, topic, 2)
        assert list(await consumer.receive()) == [2], "at the end of the wait, what there is"

    run(tmp_path, scenario)


def test_no_partition_starves_where_each_answer_is_full(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        busy = dict.fromkeys((1, 6, 11), 0)
        for number in busy:
            await produce(broker, topic, number)
        moved: dict[int, int] = {}
        answered: list[int] = []
        for _ in range(9):
            answer = await consumer.fetch(moved, wait_ms=30_000, max_bytes=1)
            moved = {number: busy[number] + 1 for number, each in answer.items() if has_records(each)}
            busy |= moved
            answered += moved
            for number in moved:
                await produce(broker, topic, number)
        assert answered == [1, 6, 11] * 3

    run(tmp_path, scenario)


def test_without_memory_for_an_answer_a_session_waits_for_it_and_is_answered(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        with patch.object(Reservation, "ask_now", lambda *_, **__: False):
            consumer.send()
            await asyncio.sleep(0.05)
            await produce(broker, topic, 7)
            assert list(await consumer.receive()) == [7]
            await consumer.fetch({7: 1})
        assert await consumer.fetch() == {}

    run(tmp_path, scenario)


def test_the_next_request_ends_a_wait_and_what_came_meanwhile_is_not_lost(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        consumer.send()
        await asyncio.sleep(0.05)
        await produce(broker, topic, 8)
        first = await consumer.receive()
        consumer.send({8: 1})
        consumer.send()
        second = await consumer.receive()
        await produce(broker, topic, 9)
        third = await consumer.receive()
        assert [list(answer) for answer in (first, second, third)] == [[8], [], [9]]

    run(tmp_path, scenario)


def test_a_session_that_is_closed_and_one_that_is_evicted_leave_nothing_behind(tmp_path: Path) -> None:
    async def scenario(broker: Broker, topic: Topic, consumer: Consumer) -> None:
        reads = broker.log.reads
        assert reads.readers_waiting == PARTITIONS
        consumer.send()
        await asyncio.sleep(0.05)
        async with kafka_caller(broker) as other:
            closing = FetchRequest(session_id=consumer._session_id, session_epoch=-1)
            assert (await other.ask("Fetch", VERSION, closing)).error_code == 0
            await until(lambda: reads.readers_waiting == PARTITIONS)  # of the poll that still waits
            await produce(broker, topic, 2)
            assert list(await consumer.receive()) == [2]
        assert reads.readers_waiting == 0

    run(tmp_path, scenario)


def test_a_right_that_is_revoked_while_partitions_are_at_rest_ends_the_wait_of_their_session(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        topic = await cluster.broker.create_topic("orders", PARTITIONS)
        acl_id = await cluster.allow("reader", "read", "topic", "orders")
        key = await cluster.key("reader")
        async with kafka_caller_as(cluster.broker, key) as client:
            consumer = await opened(client, topic)
            with counted_lookups() as counted:
                assert await consumer.fetch(wait_ms=50) == {}
                assert not counted
            consumer.send()
            await asyncio.sleep(0.05)
            await cluster.as_admin("DELETE", f"/v1/acls/{acl_id}")
            answer = await consumer.receive()
            assert {each.error_code for each in answer.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert len(answer) == PARTITIONS
            await cluster.allow("reader", "read", "topic", "orders")
            assert {each.error_code for each in (await consumer.fetch()).values()} == {0}
            assert await consumer.fetch() == {}

    serve(tmp_path, scenario, kafka="127.0.0.1:0")


def test_a_session_that_goes_from_topic_to_topic_keeps_the_rights_of_few(tmp_path: Path) -> None:
    """Names of topics that do not exist count as well."""

    async def scenario(cluster: Guarded) -> None:
        topic = await cluster.broker.create_topic("orders-0", 1)
        await cluster.allow("reader", "read", "topic", "orders-", pattern="prefix")
        key = await cluster.key("reader")
        kept: list[int] = []

        def follow(self: SessionWatch, key: Any, partition: TopicPartition | None) -> None:
            kept.append(len(self.granted))
            PartitionWatch.follow(self, key, partition)

        with patch.object(SessionWatch, "follow", follow, create=True):
            async with kafka_caller_as(cluster.broker, key) as client:
                consumer = await opened(client, topic)
                for number in range(1, 3 * GRANTED_SPARE):
                    await consumer.moved(f"orders-{number - 1}", f"orders-{number}")
        assert len(kept) >= 3 * GRANTED_SPARE
        assert GRANTED_SPARE < max(kept) <= GRANTED_SPARE + 4

    serve(tmp_path, scenario, kafka="127.0.0.1:0")
