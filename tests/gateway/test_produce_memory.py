"""What many producers cost a broker whose bucket is slow, as a process of its own: the bounds of its settings, not more."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gateway.proto import admin_pb2, log_pb2
from gateway.settings import GatewaySettings
from segments.record_columns import encode_records
from segments.settings import MIB, SegmentSettings
from tests.gateway.slow_broker import SlowBroker, slow_broker
from tests.gateway.stubs import topics_stub

pytestmark = pytest.mark.slow

PUT_S = 2.0
MESSAGES = 20
"""Of each producer."""
COMMITTED = 8
"""After so many the first PUTs are done: what could come had all that time to come."""
HOT_POOL_BYTES = 1 * MIB
BOUND_BYTES = SegmentSettings().buffer_bytes_max + GatewaySettings().grpc_waiting_bytes_max + HOT_POOL_BYTES
KEPT_BYTES = 64 * MIB
"""By the allocator, for what comes next (gateway/freed_memory.py)."""
CONNECTION_BYTES = MIB // 8
"""A connection and its stream, with what came on it before anybody read."""
TRIES = 3
"""gRPC reads a message of each producer while the broker gets no processor to hold them back with (docs/known-gaps.md): what a
busy machine does once, and a broker that is not bounded each time."""

Producer = Callable[[grpc.aio.Channel], AsyncIterator[bytes]]
"""Sends MESSAGES of 1 MiB, and gives the answers."""


async def on_a_stream(channel: grpc.aio.Channel) -> AsyncIterator[bytes]:
    call: Any = channel.stream_stream("/tidelog.v1.Log/ProduceStream")()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(_write_all(call))
        try:
            async for answer in call:
                yield answer
        finally:
            writing.cancel()
            call.cancel()


async def _write_all(call: Any) -> None:
    with suppress(asyncio.InvalidStateError):  # the stream has ended: whoever reads is told how
        for _ in range(MESSAGES):
            await call.write(_message())


async def in_calls(channel: grpc.aio.Channel) -> AsyncIterator[bytes]:
    produce: Any = channel.unary_unary("/tidelog.v1.Log/Produce")
    for _ in range(MESSAGES):
        yield await produce(_message())


@functools.cache
def _message() -> bytes:
    batch = encode_records([(None, b"x" * (MIB - 100), (), 0)])
    return log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="t", partition=0, record_batch=batch)]).SerializeToString()


@pytest.mark.parametrize(("producer", "producers"), [(on_a_stream, 100), (in_calls, 300)])
def test_many_producers_of_a_slow_bucket_take_no_more_than_the_settings_say(
    tmp_path: Path, producer: Producer, producers: int
) -> None:
    bound = BOUND_BYTES + KEPT_BYTES + producers * CONNECTION_BYTES
    grown = list[int]()
    while not grown or (grown[-1] > bound and len(grown) < TRIES):
        with slow_broker(tmp_path / f"{len(grown)}", put_s=PUT_S, hot_pool_bytes_max=HOT_POOL_BYTES) as broker:
            grown.append(asyncio.run(_grown_bytes(broker, producer, producers)))
    assert grown[-1] <= bound, f"{[size // MIB for size in grown]} MiB"


async def _grown_bytes(broker: SlowBroker, producer: Producer, producers: int) -> int:
    """What the broker took at its peak, above what it had at first."""
    async with grpc.aio.insecure_channel(broker.address) as channel:
        topic = admin_pb2.Topic(name="t", partition_count=1)
        await topics_stub(channel).CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))
    before = resident_bytes(broker, "VmRSS")
    committed: list[bytes] = []
    enough = asyncio.Event()

    async def produce() -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 2 * MIB)]
        async with grpc.aio.insecure_channel(broker.address, options=options) as channel:
            async for answer in producer(channel):
                if not log_pb2.ProduceResponse.FromString(answer).results[0].HasField("error"):
                    committed.append(answer)
                if len(committed) >= COMMITTED:
                    enough.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        producing = [tasks.create_task(produce()) for _ in range(producers)]
        await enough.wait()
        for task in producing:
            task.cancel()
    return resident_bytes(broker, "VmHWM") - before


def resident_bytes(broker: SlowBroker, field: str) -> int:
    """VmRSS: now, VmHWM: the most so far."""
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) << 10
