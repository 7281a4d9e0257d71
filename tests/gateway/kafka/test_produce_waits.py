"""A Produce that waits for memory waits no longer than the broker allows, and is refused if its rights end meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.hot_messages import PartitionProduceData, ProduceRequest, TopicProduceData
from gateway.settings import GatewaySettings
from segments.byte_budget import Admission
from tests.gateway.kafka.test_plain import logged_in
from tests.kit.gateway.access.guarded_broker import Guarded, serve
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow
INT32_MAX = 2**31 - 1
TOPIC_AUTHORIZATION_FAILED, REQUEST_TIMED_OUT = 29, 7


async def writer(guarded: Guarded, client: KafkaCaller) -> str:
    """Logs in a client that may write topic `orders`. Returns its API key."""
    await guarded.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
    key = await guarded.key("writer")
    await guarded.allow("writer", "write", "topic", "orders")
    await logged_in(client, key)
    return key


def all_memory(guarded: Guarded) -> Admission:
    log: Any = guarded.broker.cluster_log
    held: Admission | None = log.admit_now(log._budget.bytes_max)
    assert held is not None
    return held


def send(client: KafkaCaller, timeout_ms: int) -> None:
    records = PartitionProduceData(index=0, records=memoryview(batch_of(b"a")))
    data = TopicProduceData(name="orders", partition_data=[records])
    client.send("Produce", 9, ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[data]))


async def error_code(client: KafkaCaller) -> int:
    [topic] = (await client.answer("Produce", 9)).responses
    [partition] = topic.partition_responses
    return int(partition.error_code)


def test_records_whose_right_was_revoked_while_they_waited_are_refused(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            await writer(guarded, client)
            held = all_memory(guarded)
            send(client, 30_000)
            await asyncio.sleep(0.3)
            await guarded.allow("writer", "write", "topic", "orders", effect="deny")
            held.release()
            assert await error_code(client) == TOPIC_AUTHORIZATION_FAILED

    serve(tmp_path, scenario, kafka="127.0.0.1:0")


def test_a_request_waits_no_longer_than_the_broker_allows(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            await writer(guarded, client)
            held = all_memory(guarded)
            send(client, INT32_MAX)
            assert await asyncio.wait_for(error_code(client), 60) != 0
            held.release()

    serve(tmp_path, scenario, kafka="127.0.0.1:0", gateway=GatewaySettings(produce_timeout_ms=500))
