"""Produce requests without a batch to append, such as those above request_bytes_max: when they are answered, and what the log says.
Without a broker, on a virtual clock."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.records.oversized_requests import CLIENT_ID_MAX, OVERSIZED_PAUSE_S, WARNED_MAX, WARNING_INTERVAL_S, OversizedRequests
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED
from tests.kit.gateway.kafka_connection import HeldTransport, connected, send
from tests.kit.gateway.kafka_listener_alone import REQUEST_BYTES_MAX, TOPIC, OneTopicLog, requests_alone
from tests.kit.segments.batches import batch_of
from tests.simulation.virtual_loop import run as run_virtually

VERSION = 9
UNKNOWN_TOPIC, MESSAGE_TOO_LARGE = 3, 10
SMALL, LARGE = batch_of(b"x" * 900_000), batch_of(b"x" * 2_000_000)


def produce(batches: Sequence[bytes], *, acks: int = -1, topic: str = TOPIC.name, client_id: str = "app") -> bytes:
    partitions = [PartitionProduceData(index=number % 2, records=memoryview(each)) for number, each in enumerate(batches)]
    data = [TopicProduceData(name=topic, topic_id=bytes(16), partition_data=partitions)]
    request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1_000, topic_data=data)
    return bytes(INSTALLED.encode_request_frame(KEYS["Produce"], request, VERSION, 1, client_id))


def codes(transport: HeldTransport) -> list[list[int]]:
    """The codes of each answer."""
    found, data = [], bytes(transport.written)
    while data:
        [size] = struct.unpack_from(">i", data)
        _, answer = INSTALLED.decode_response(KEYS["Produce"], data[4 : 4 + size], VERSION)
        found.append([each.error_code for topic in answer.responses for each in topic.partition_responses])
        data = data[4 + size :]
    return found


def alone(scenario: Callable[[Any, HeldTransport], Awaitable[None]]) -> None:
    async def main() -> None:
        connection, transport = connected(requests_alone(OneTopicLog()))
        await scenario(connection, transport)
        transport.abort()
        await asyncio.sleep(0.01)

    run_virtually(main())


def test_the_answer_to_a_request_of_small_batches_is_held_so_that_its_client_does_not_spin() -> None:
    async def scenario(connection: Any, transport: HeldTransport) -> None:
        send(connection, produce([SMALL] * 3))
        await asyncio.sleep(OVERSIZED_PAUSE_S - 0.01)
        assert not transport.written
        await asyncio.sleep(0.02)
        assert codes(transport) == [[MESSAGE_TOO_LARGE] * 3]

    alone(scenario)


def test_the_answer_to_a_request_with_a_batch_that_is_too_large_itself_is_not_held() -> None:
    async def scenario(connection: Any, transport: HeldTransport) -> None:
        send(connection, produce([SMALL, LARGE]))
        await asyncio.sleep(0)
        assert codes(transport) == [[MESSAGE_TOO_LARGE] * 2]

    alone(scenario)


def test_requests_behind_a_held_answer_are_answered_after_it() -> None:
    async def scenario(connection: Any, transport: HeldTransport) -> None:
        send(connection, produce([SMALL] * 3) + produce([batch_of(b"a")]))
        await asyncio.sleep(OVERSIZED_PAUSE_S + 0.01)
        assert codes(transport) == [[MESSAGE_TOO_LARGE] * 3, [0]]

    alone(scenario)


def test_a_connection_that_ends_while_its_answer_is_held_leaves_no_task_behind() -> None:
    async def scenario(connection: Any, transport: HeldTransport) -> None:
        tasks = len(asyncio.all_tasks())
        send(connection, produce([SMALL] * 3))
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) > tasks
        transport.abort()
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == tasks
        assert not transport.written

    alone(scenario)


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_refused_request_is_logged_with_its_client_and_the_limit(acks: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(connection: Any, transport: HeldTransport) -> None:
        send(connection, produce([SMALL] * 3, acks=acks))
        await asyncio.sleep(0.01)

    alone(scenario)
    [line] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert line.startswith("produce refused client=192.0.2.1 client_id='app' listener=kafka: the request has 2700")
    assert f"the broker takes {REQUEST_BYTES_MAX}. Send smaller requests (max.request.size" in line


def test_a_client_is_warned_about_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    oversized = OversizedRequests(REQUEST_BYTES_MAX)
    for now_s in (0.0, 1.0, WARNING_INTERVAL_S - 0.1, WARNING_INTERVAL_S, WARNING_INTERVAL_S + 1):
        oversized.warn(5 << 20, host="192.0.2.1", client_id="a\nb", listener="kafka", now_s=now_s)
    assert len(caplog.records) == 2
    assert all("client_id='a\\nb'" in each.getMessage() for each in caplog.records)
    oversized.warn(5 << 20, host="192.0.2.1", client_id="other", listener="kafka", now_s=WARNING_INTERVAL_S + 1)
    assert len(caplog.records) == 3


def test_the_clients_that_were_warned_about_take_bounded_memory() -> None:
    oversized = OversizedRequests(REQUEST_BYTES_MAX)
    for number in range(3 * WARNED_MAX):
        oversized.warn(5 << 20, host="192.0.2.1", client_id=f"{number:0{2 * CLIENT_ID_MAX}}"[::-1], listener="kafka", now_s=0.0)
        assert len(oversized._warned_s) <= WARNED_MAX
    assert all(len(client_id) == CLIENT_ID_MAX for _, client_id in oversized._warned_s)


def test_a_request_without_a_batch_to_append_waits_for_no_memory() -> None:
    async def main() -> None:
        log = OneTopicLog()
        held = log.admit_now(log.budget.bytes_max)
        assert held is not None
        requests = requests_alone(log)
        first, waiting = connected(requests)
        send(first, produce([batch_of(b"a")]))
        await asyncio.sleep(0.01)
        assert not waiting.written
        connection, transport = connected(requests)
        send(connection, produce([batch_of(b"a")], topic="missing"))
        await asyncio.sleep(0)
        assert codes(transport) == [[UNKNOWN_TOPIC]]
        held.release()
        await asyncio.sleep(0.01)
        assert codes(waiting) == [[0]]
        assert log.budget.bytes_used == 0
        for each in (waiting, transport):
            each.abort()
        await asyncio.sleep(0.01)

    run_virtually(main())
