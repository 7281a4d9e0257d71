"""Batches behind a refused one are refused like it, wherever the listener refuses that one: without a broker or a socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.kafka.produce import BY_ID
from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.records.append import OPENED_AT_ONCE_BYTES
from metadata.errors import OutOfOrderSequence, UnknownTopic
from metadata.model import LeaderEpoch, Offset
from metadata.topics.topic import Topic
from segments.log.append_result import PendingAppend
from segments.partition.partition_log import Appended
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.kafka_connection import connected, send
from tests.kit.gateway.kafka_listener_alone import LOG_BYTES_MAX, TOPIC, OneTopicLog, requests_alone
from tests.kit.gateway.small_broker import until
from tests.kit.segments.batches import TIMESTAMP_MS, batch_of, sequenced_batch

PRODUCER = 5
BY_NAME = BY_ID - 1
CORRUPT, UNKNOWN_TOPIC, NOT_LEADER, THROTTLED, OUT_OF_ORDER, UNKNOWN_TOPIC_ID = 2, 3, 6, 19, 45, 100
Sent = tuple[int, bytes]


class Log(OneTopicLog):
    """Takes the batches of one idempotent producer in their order. Those of other producers stay undecided."""

    def __init__(self) -> None:
        super().__init__()
        self.next_sequence = 0

    def append(self, partition: Any, batch: Any, header: Any, admission: Any, **terms: Any) -> PendingAppend:
        if header.producer_id < 0:
            return PendingAppend(Appended(Offset(0), Offset(0), LeaderEpoch(0)), cast(Any, _Undecided()))
        if header.base_sequence != self.next_sequence:
            raise OutOfOrderSequence(f"{header.base_sequence} is not {self.next_sequence}")
        self.next_sequence += 1
        return super().append(partition, batch, header, admission, **terms)


class _Undecided:
    """A segment whose commit is under way."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Client:
    """A producer's connection to a listener that serves one topic."""

    def __init__(self, *, version: int = BY_NAME) -> None:
        self.log = Log()
        self.requests = requests_alone(self.log)
        self.version = version
        self.connection, self.transport = connected(self.requests)

    @property
    def topics(self) -> Any:
        return self.requests._produce._broker.topic_cache

    def send(self, *batches: Sent, timeout_ms: int = 20_000) -> None:
        """Sends one request with these batches, each with its partition."""
        data = [PartitionProduceData(index=partition, records=memoryview(batch)) for partition, batch in batches]
        topic = TopicProduceData(name=TOPIC.name, topic_id=bytes.fromhex(TOPIC.id), partition_data=data)
        message = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic])
        send(self.connection, INSTALLED.encode_request_frame(KEYS["Produce"], message, self.version, 1))

    async def answer(self) -> list[int]:
        """Returns the error codes of the next answer."""
        written = self.transport.written
        await until(lambda: len(written) > 4)
        size = 4 + struct.unpack_from(">i", written)[0]
        frame = bytes(written[4:size])
        del written[:size]
        [topic] = INSTALLED.decode_response(KEYS["Produce"], frame, self.version)[1].responses
        return [each.error_code for each in topic.partition_responses]

    async def sent(self, sequence: int, partition: int = 0) -> int:
        self.send((partition, sequenced_batch(PRODUCER, sequence)))
        [code] = await self.answer()
        return code

    async def close(self) -> None:
        self.transport.abort()
        await asyncio.sleep(0)


def unknown(*_: object) -> Topic:
    raise UnknownTopic("this broker has not heard of the topic")


async def refused_for_want_of_memory(client: Client) -> int:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=1,
        is_transactional=False,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    builder.append(0, timestamp=TIMESTAMP_MS, key=None, value=bytes(OPENED_AT_ONCE_BYTES), headers=[])
    held = client.log.admit_now(LOG_BYTES_MAX)
    assert held is not None
    client.send((0, bytes(builder.build())), timeout_ms=1)
    [code] = await client.answer()
    held.release()
    return code


async def refused_without_its_topic(client: Client) -> int:
    known = client.topics
    broker: Any = client.requests._produce._broker
    broker.topic_cache = type("Lagging", (), {"get": unknown, "by_id": unknown})()
    code = await client.sent(0)
    broker.topic_cache = known
    return code


async def refused_without_its_partition(client: Client) -> int:
    before = client.topics.get
    fewer = Topic(id=TOPIC.id, name=TOPIC.name, partition_count=1, settings={}, created_at_ms=0)
    client.topics.get = lambda name: fewer
    code = await client.sent(0, partition=1)
    client.topics.get = before
    return code


async def refused_as_damaged(client: Client) -> int:
    batch = bytearray(sequenced_batch(PRODUCER, 0))
    batch[-1] ^= 1
    client.send((0, bytes(batch)))
    [code] = await client.answer()
    return code


@pytest.mark.parametrize(
    ("refused", "version", "code"),
    [
        (refused_for_want_of_memory, BY_NAME, THROTTLED),
        (refused_without_its_topic, BY_NAME, UNKNOWN_TOPIC),
        (refused_without_its_topic, BY_ID, UNKNOWN_TOPIC_ID),
        (refused_as_damaged, BY_NAME, CORRUPT),
    ],
)
def test_a_batch_behind_one_that_clients_send_again_is_refused_like_it(
    refused: Callable[[Client], Any], version: int, code: int
) -> None:
    async def scenario() -> None:
        client = Client(version=version)
        assert await refused(client) == code
        assert [await client.sent(1), await client.sent(2)] == [code, code]
        assert [await client.sent(sequence) for sequence in (0, 1, 2)] == [0, 0, 0]
        assert await client.sent(7) == OUT_OF_ORDER
        await client.close()

    asyncio.run(scenario())


def test_a_batch_behind_one_for_a_partition_that_the_broker_has_not_heard_of_is_refused_like_it() -> None:
    async def scenario() -> None:
        client = Client()
        assert await refused_without_its_partition(client) == UNKNOWN_TOPIC
        assert await client.sent(1, partition=1) == UNKNOWN_TOPIC
        assert await client.sent(1, partition=0) == OUT_OF_ORDER, "another partition"
        await client.close()

    asyncio.run(scenario())


def test_a_batch_whose_header_is_damaged_covers_none() -> None:
    async def scenario() -> None:
        client = Client()
        client.send((0, sequenced_batch(PRODUCER, 0)[:-1]))
        assert await client.answer() != [0]
        assert await client.sent(1) == OUT_OF_ORDER
        await client.close()

    asyncio.run(scenario())


def test_a_batch_behind_a_refused_one_is_refused_like_it_while_the_request_of_that_one_waits() -> None:
    async def scenario() -> None:
        client = Client()
        damaged = bytearray(sequenced_batch(PRODUCER, 0))
        damaged[-1] ^= 1
        client.send((0, batch_of(b"another partition, say")), (0, bytes(damaged)), timeout_ms=20)
        client.send((0, sequenced_batch(PRODUCER, 1)))
        assert (await client.answer())[1] == CORRUPT
        assert await client.answer() == [CORRUPT]
        await client.close()

    asyncio.run(scenario())
