"""Compressed batches of one Produce: a millisecond of work at once, and the others together in a thread, in order."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.records.append import OPENED_AT_ONCE_BYTES
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.kafka_connection import connected, send
from tests.kit.gateway.kafka_listener_alone import TOPIC, OneTopicLog, requests_alone
from tests.kit.gateway.small_broker import until

VERSION = 12


class Sent(OneTopicLog):
    def __init__(self) -> None:
        super().__init__()
        self.record_counts: list[int] = []

    def append(self, partition: Any, batch: Any, header: Any, admission: Any, **terms: Any) -> Any:
        self.record_counts.append(header.record_count)
        return super().append(partition, batch, header, admission, **terms)


def batch_of_zeros(size_bytes: int, records: int) -> bytes:
    return encode_records([(None, bytes(size_bytes // records), (), 0)] * records, codec=Codec.ZSTD)


def answered(*batches: bytes) -> tuple[list[int], list[int], int]:
    """The error code of each batch, the record counts of what was appended, in order, and how often a thread was taken."""

    async def scenario() -> tuple[list[int], list[int], int]:
        log = Sent()
        requests = requests_alone(log)
        threads = requests._produce._threads
        hops = 0
        run = threads.run

        async def counted(work: Callable[[], Any]) -> Any:
            nonlocal hops
            hops += 1
            return await run(work)

        threads.run = counted  # type: ignore[method-assign]
        connection, transport = connected(requests)
        data = [PartitionProduceData(index=0, records=memoryview(batch)) for batch in batches]
        message = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=TOPIC.name, partition_data=data)])
        send(connection, INSTALLED.encode_request_frame(KEYS["Produce"], message, VERSION, 1))
        await until(lambda: len(transport.written) > 4)
        size = 4 + struct.unpack_from(">i", transport.written)[0]
        [topic] = INSTALLED.decode_response(KEYS["Produce"], bytes(transport.written[4:size]), VERSION)[1].responses
        transport.abort()
        await asyncio.sleep(0)
        return [each.error_code for each in topic.partition_responses], log.record_counts, hops

    return asyncio.run(scenario())


def test_batches_that_open_to_little_together_take_no_thread() -> None:
    assert answered(*[batch_of_zeros(OPENED_AT_ONCE_BYTES // 4, 1 + at) for at in range(3)]) == ([0] * 3, [1, 2, 3], 0)


def test_batches_that_open_to_much_together_take_one_thread_and_keep_their_order() -> None:
    batches = [batch_of_zeros(2 * OPENED_AT_ONCE_BYTES // 3, 1 + at) for at in range(4)]
    assert answered(*batches) == ([0] * 4, [1, 2, 3, 4], 1)


def test_a_batch_that_is_refused_in_a_thread_has_its_error_and_the_others_are_appended() -> None:
    batches = [batch_of_zeros(2 * OPENED_AT_ONCE_BYTES // 3, 1 + at) for at in range(4)]
    damaged = bytearray(batches[2])
    damaged[-1] ^= 1
    codes, appended, hops = answered(batches[0], batches[1], bytes(damaged), batches[3])
    assert (codes, appended, hops) == ([0, 0, 2, 0], [1, 2, 4], 1)
