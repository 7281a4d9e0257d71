"""How far a broker grows while many producers wait for a slow bucket, against the bound that its settings name.

This is a benchmark and no test, because gRPC receives a message of each producer before the broker gets a processor to hold them
back with: on a busy machine the peak depends on the scheduler (docs/known-gaps.md).
tests/gateway/grpc/produce/test_receive_budget.py holds the admission itself, without a scheduler.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio

from bench.figures import Figure, Target
from bench.run import Run
from bench.slow_broker import SlowBroker, slow_broker
from gateway.process.runtime_tuning import KEPT_BYTES_MAX
from gateway.proto import admin_pb2, log_pb2
from gateway.settings import GatewaySettings
from segments.records.columns import encode_records
from segments.settings import MIB, SegmentSettings
from tests.kit.gateway.stubs import topics_stub

# How long each PUT takes.
PUT_S = 2.0
# How many messages each producer sends.
MESSAGES = 20
# After so many commits the first PUTs are done, so whatever the broker would take in has arrived.
COMMITTED = 8
HOT_POOL_BYTES = 1 * MIB
# What one connection and its stream hold before the broker reads from it.
CONNECTION_BYTES = MIB // 8
BOUND_BYTES = SegmentSettings().buffer_bytes_max + GatewaySettings().grpc_waiting_bytes_max + HOT_POOL_BYTES + KEPT_BYTES_MAX

Producer = Callable[[grpc.aio.Channel], AsyncIterator[bytes]]


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
    with suppress(asyncio.InvalidStateError):  # the stream has ended: its reader gets the status
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


def measure(run: Run) -> list[Figure]:
    """Measures streams and unary calls, each at a broker of its own."""
    return [
        _grown(run, "100 streams", on_a_stream, 100),
        _grown(run, "300 unary calls", in_calls, 300),
    ]


def _grown(run: Run, name: str, producer: Producer, producers: int) -> Figure:
    bound = BOUND_BYTES + producers * CONNECTION_BYTES
    with (
        run.new_directory("slow-broker") as directory,
        slow_broker(directory, put_s=PUT_S, tail_cache_bytes_max=HOT_POOL_BYTES) as broker,
    ):
        grown = asyncio.run(_grown_bytes(broker, producer, producers))
    note = f"grew by {grown // MIB} MiB of {bound // MIB}, 1 MiB batches, {PUT_S:g} s a PUT"
    return Figure(f"{name} of a slow bucket: growth of the broker, of its bound", grown / bound, "", Target(most=1), note)


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
