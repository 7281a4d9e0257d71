"""Load over gRPC: ready ProduceRequests, written and answered as bytes, so that the client costs as little as it can.

Runs in the client's process (load.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from bench.load import Load, Outcome
from bench.thrown_away_tls import ThrownAwayTls, TlsFiles
from gateway.proto import log_pb2
from segments.object_store.directory import DirectoryObjectStore

WARM_UP_ROUNDS = 5

_PRODUCE_STREAM = "/tidelog.v1.Log/ProduceStream"
OPTIONS = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each stream
)


def produce(
    address: str,
    requests: Sequence[bytes],
    load: Load,
    *,
    requests_per_second: float = 0.0,
    ca: Path | None = None,
    as_with_tls: TlsFiles | None = None,
    key: str = "",
) -> Outcome:
    """One ProduceStream for each connection, each sending the requests in turn from another one on.

    All of them together send at most `requests_per_second`, unless it is 0. With `ca`, over TLS; with `as_with_tls`, in
    plain, at the cost of TLS (see thrown_away_tls.py); with `key`, as the principal of this API key. Raises when a batch is
    refused.
    """
    thrown_away = ThrownAwayTls(as_with_tls) if as_with_tls is not None else None

    async def run() -> Outcome:
        pace_s = load.connections / requests_per_second if requests_per_second else 0.0
        async with asyncio.timeout(load.seconds + 60), asyncio.TaskGroup() as tasks:
            streams = [
                tasks.create_task(
                    _produce_on_one_stream(address, [*requests[first:], *requests[:first]], load, pace_s, ca, key, thrown_away)
                )
                for first in (len(requests) * index // load.connections for index in range(load.connections))
            ]
        outcomes = [stream.result() for stream in streams]
        return Outcome(
            sum(outcome.requests for outcome in outcomes),
            min(outcome.started_s for outcome in outcomes),
            min(outcome.first_answer_s for outcome in outcomes),
            max(outcome.last_answer_s for outcome in outcomes),
        )

    return uvloop.run(run())


async def _produce_on_one_stream(
    address: str,
    requests: Sequence[bytes],
    load: Load,
    pace_s: float,
    ca: Path | None,
    key: str,
    thrown_away: ThrownAwayTls | None,
) -> Outcome:
    async with _channel(address, ca) as channel:
        await channel.channel_ready()
        shown = (("authorization", f"Bearer {key}"),) if key else None
        call: Any = channel.stream_stream(_PRODUCE_STREAM)(metadata=shown)
        room = asyncio.Semaphore(load.window)
        started_s = time.perf_counter()

        async def write() -> None:
            for count, request in enumerate(cycle(requests)):
                await room.acquire()
                if pace_s:
                    await asyncio.sleep(max(0.0, started_s + count * pace_s - time.perf_counter()))
                if time.perf_counter() - started_s >= load.seconds:
                    break
                if thrown_away is not None:
                    thrown_away.encrypt(request)
                try:
                    await call.write(request)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the stream has ended; the reader meets the reason
            await call.done_writing()

        answered, first_answer_s, last_answer_s = 0, 0.0, 0.0
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            while (answer := await call.read()) is not grpc.aio.EOF:
                check_produced(answer)
                answered += 1
                last_answer_s = time.perf_counter()
                first_answer_s = first_answer_s or last_answer_s
                room.release()
        return Outcome(answered, started_s, first_answer_s, last_answer_s)


def _channel(address: str, ca: Path | None) -> grpc.aio.Channel:
    if ca is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes()), options=OPTIONS)


def check_produced(answer: bytes) -> None:
    """Raises when a batch was refused: a benchmark that loses records measures nothing."""
    for result in log_pb2.ProduceResponse.FromString(answer).results:
        if result.HasField("error"):
            raise RuntimeError(f"the broker refused a batch: {result.error.message}")


def acks_beside_puts(
    address: str, request: bytes, directory: Path, put_bytes: int, *, rounds: int, pause_s: float
) -> tuple[list[float], list[float]]:
    """Seconds to the acknowledgement of a lone request, and seconds of a PUT into a bucket in `directory`, in turn."""

    async def run() -> tuple[list[float], list[float]]:
        acks_s: list[float] = []
        puts_s: list[float] = []
        store = await DirectoryObjectStore.open(directory, make_root=True)
        body = [bytes(put_bytes)]
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            call: Any = channel.stream_stream(_PRODUCE_STREAM)()
            for index in range(WARM_UP_ROUNDS + rounds):
                await asyncio.sleep(pause_s)
                started_s = time.perf_counter()
                await call.write(request)
                check_produced(await call.read())
                acks_s.append(time.perf_counter() - started_s)
                await asyncio.sleep(pause_s)
                started_s = time.perf_counter()
                await store.create(f"wal/{index:016x}", body)
                puts_s.append(time.perf_counter() - started_s)
            await call.done_writing()
        await store.close()
        return acks_s[WARM_UP_ROUNDS:], puts_s[WARM_UP_ROUNDS:]

    return uvloop.run(run())


@dataclass(frozen=True, slots=True)
class Paced:
    """Holds the outcomes of requests, each of which was due at a time of its own."""

    # From that time to the answer.
    waited_s: list[float]
    requests_per_second: float


def produce_on_time(address: str, requests: Sequence[bytes], *, seconds: float, requests_per_second: float) -> Paced:
    """Sends the requests in turn on one ProduceStream, each at its time, however late earlier answers are. Raises when a batch is
    refused."""

    async def run() -> Paced:
        count = max(1, round(seconds * requests_per_second))
        pace_s = 1 / requests_per_second
        waited_s: dict[int, float] = {}
        async with asyncio.timeout(seconds + 60), grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            await channel.channel_ready()
            call: Any = channel.stream_stream(_PRODUCE_STREAM)()
            began_s = time.perf_counter()

            async def write() -> None:
                for number in range(count):
                    await asyncio.sleep(max(0.0, began_s + number * pace_s - time.perf_counter()))
                    # The last value of a field counts: the request has a number of its own.
                    numbered = log_pb2.ProduceRequest(correlation_id=number + 1).SerializeToString()
                    await call.write(requests[number % len(requests)] + numbered)
                await call.done_writing()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write())
                while (answer := await call.read()) is not grpc.aio.EOF:
                    answered_s = time.perf_counter()
                    number = log_pb2.ProduceResponse.FromString(answer).correlation_id - 1
                    waited_s[number] = answered_s - began_s - number * pace_s
                    check_produced(answer)
            ended_s = time.perf_counter()
        if len(waited_s) != count:
            raise RuntimeError(f"{count} requests were sent, and {len(waited_s)} answered")
        return Paced(list(waited_s.values()), count / (ended_s - began_s))

    return uvloop.run(run())
