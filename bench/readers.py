"""Many readers of one topic over gRPC, each with a connection of its own. Runs in a process of its own (load.py)."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import grpc.aio
import uvloop

from bench.grpc_client import OPTIONS
from gateway.proto import log_pb2

FETCH_S_MAX = 30.0


class Read(NamedTuple):
    """What one reader got."""

    # Of batches.
    size_bytes: int
    first_answer_s: float
    last_answer_s: float


def follow_all(address: str, topic: str, partitions: int, readers: int, *, quiet_s: float) -> list[Read]:
    """Each reads the topic from its beginning until nothing has come for `quiet_s` after the first bytes."""

    async def run() -> list[Read]:
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(_follow(address, topic, partitions, quiet_s)) for _ in range(readers)]
        return [reader.result() for reader in following]

    return uvloop.run(run())


async def _follow(address: str, topic: str, partitions: int, quiet_s: float) -> Read:
    positions = dict.fromkeys(range(partitions), 0)
    size_bytes = 0
    first_answer_s = last_answer_s = 0.0
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        fetch: Any = channel.unary_unary("/tidelog.v1.Log/Fetch", response_deserializer=log_pb2.FetchResponse.FromString)
        while not size_bytes or time.perf_counter() - last_answer_s < quiet_s:
            received = _take_in(await fetch(_fetch_request(topic, positions), timeout=FETCH_S_MAX), positions)
            if received:
                last_answer_s = time.perf_counter()
                first_answer_s = first_answer_s or last_answer_s
                size_bytes += received
    return Read(size_bytes, first_answer_s, last_answer_s)


def _fetch_request(topic: str, positions: dict[int, int]) -> bytes:
    """A long poll of all of them, in the order of `positions`."""
    return log_pb2.FetchRequest(
        partitions=[
            log_pb2.FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=4 << 20)
            for partition, offset in positions.items()
        ],
        max_bytes=8 << 20,
        min_bytes=1,
        max_wait_ms=200,
    ).SerializeToString()


def _take_in(answer: log_pb2.FetchResponse, positions: dict[int, int]) -> int:
    """Moves the positions on; the partitions that brought something go last. Bytes of batches."""
    received = 0
    for found in answer.partitions:
        if found.HasField("error"):
            raise RuntimeError(f"the broker refused a fetch: {found.error.message}")
        if found.next_offset > positions[found.partition]:
            received += len(found.record_batches)
            del positions[found.partition]
            positions[found.partition] = found.next_offset
    return received
