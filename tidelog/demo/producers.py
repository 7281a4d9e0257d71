"""The demo's two producers: one half of the rows goes over HTTP, the other over gRPC. Both survive a broker that is killed.

    HTTP   JSON requests, each with an Idempotency-Key; a few workers, each with carriers of its own and one request under way
    gRPC   the SDK: it gathers batches, sends them idempotently, and again in order when its stream breaks

A carrier belongs to one worker or one client, so its rows are sent in one order. Invariant: a row counts as acknowledged when its
offset is known, and not before.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from metadata.errors import TidelogError, Unavailable
from tidelog.client import connect
from tidelog.demo.flights import spread
from tidelog.producer.producer import Delivery
from tidelog.settings import KIB, MIB

HTTP_WORKERS: Final = 8
HTTP_ROWS_PER_REQUEST: Final = 500
# Even a short run is cut into so many steps, so that the kill finds some of them under way.
REQUESTS_LEAST: Final = 40
RETRY_PAUSE_S: Final = 0.1
# How long one request may go without an answer, over all its attempts.
PATIENCE_S: Final = 60.0
# What the SDK holds unanswered: enough to keep the broker busy, little enough to see how fast it answers.
GRPC_BUFFER_BYTES_MAX: Final = 4 * MIB
GRPC_BUFFER_BYTES_LEAST: Final = 8 * KIB
GRPC_ROWS_PER_STEP: Final = 200

# Key and value of each row, in the order in which they are to be sent.
Rows = Sequence[tuple[str, bytes]]


class Half:
    """The rows of one producer, and its progress."""

    def __init__(self, listener: str, rows: Rows, half_way: asyncio.Event | None = None) -> None:
        self.listener = listener
        self.rows = rows
        # Rows that left for the broker at least once.
        self.sent = 0
        self.acknowledged = 0
        # By partition and offset, as the acknowledgement has them: the value that is to be there.
        self.values: dict[tuple[int, int], bytes] = {}
        # When each row was sent and acknowledged, by the clock of time.perf_counter.
        self.times: list[tuple[float, float]] = []
        self.begun = asyncio.Event()
        self.half_way = half_way or asyncio.Event()

    def take_in(self, position: tuple[int, int], value: bytes, sent_s: float = 0.0) -> None:
        self.values[position] = value
        self.times.append((sent_s, time.perf_counter()))
        self.acknowledged += 1
        self.begun.set()
        if 2 * self.acknowledged >= len(self.rows):
            self.half_way.set()


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def produce_over_http(half: Half, url: str, topic: str) -> None:
    """Raises the refusal of a request that no retry mends, Unavailable when the broker stays away."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as workers:
        for carriers in spread((carrier for carrier, _ in half.rows), HTTP_WORKERS):
            rows = [row for row in half.rows if row[0] in carriers]
            workers.create_task(_http_worker(half, rows, session, f"{url}/v1/topics/{topic}/records"))


async def _http_worker(half: Half, rows: Rows, session: aiohttp.ClientSession, url: str) -> None:
    rows_per_request = max(1, min(HTTP_ROWS_PER_REQUEST, len(half.rows) // REQUESTS_LEAST))
    for start in range(0, len(rows), rows_per_request):
        batch = rows[start : start + rows_per_request]
        half.sent += len(batch)
        sent_s = time.perf_counter()
        # Values are JSON as they are, and carriers are two letters or digits.
        records = b",".join(b'{"key":"%b","value":%b}' % (key.encode(), value) for key, value in batch)
        values = await _post_until_taken(session, url, b'{"records":[%b]}' % records)
        for position, (_, value) in zip(values, batch, strict=True):
            half.take_in(position, value, sent_s)


async def _post_until_taken(session: aiohttp.ClientSession, url: str, body: bytes) -> list[tuple[int, int]]:
    """Returns partition and offset of each record. Each attempt has the same Idempotency-Key, so a repeat writes nothing twice."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_hex(16)}
    gives_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with session.post(url, data=body, headers=headers) as response:
                return _positions(response.status, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trouble: TidelogError = Unavailable(f"{url}: {error or type(error).__name__}")
        except Unavailable as error:
            trouble = error
        if time.monotonic() > gives_up_s:
            raise trouble
        await asyncio.sleep(RETRY_PAUSE_S)


def _positions(status: int, body: bytes) -> list[tuple[int, int]]:
    """Raises Unavailable if a retry may mend what the broker refused."""
    try:
        answer: dict[str, Any] = msgspec.json.decode(body)
    except msgspec.DecodeError:
        answer = {}
    problems = [answer] if status != 200 else [result["error"] for result in answer["results"] if "error" in result]
    for problem in problems:
        kind = Unavailable if problem.get("retryable") else TidelogError
        raise kind(f"HTTP {status}: {problem.get('detail', body[:200])}", hint=problem.get("hint", ""))
    return [(result["partition"], result["offset"]) for result in answer["results"]]


# ── gRPC ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def produce_over_grpc(half: Half, address: str, topic: str) -> None:
    """Raises the error of a record that could not be delivered."""
    bytes_in_all = sum(len(value) for _, value in half.rows)
    buffer_bytes_max = max(GRPC_BUFFER_BYTES_LEAST, min(GRPC_BUFFER_BYTES_MAX, bytes_in_all // REQUESTS_LEAST))
    rows_per_step = max(1, min(GRPC_ROWS_PER_STEP, len(half.rows) // REQUESTS_LEAST))
    sent: asyncio.Queue[list[tuple[float, bytes, Delivery]]] = asyncio.Queue()  # bounded by the buffer of the SDK
    async with (
        connect(f"grpc://{address}", buffer_bytes_max=buffer_bytes_max, batch_bytes_max=buffer_bytes_max // 4) as log,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(_collect(half, sent))
        for start in range(0, len(half.rows), rows_per_step):
            step: list[tuple[float, bytes, Delivery]] = []
            for carrier, value in half.rows[start : start + rows_per_step]:
                delivery = await log.send(topic, value, key=carrier)
                half.sent += 1
                step.append((time.perf_counter(), value, delivery))
            sent.put_nowait(step)


async def _collect(half: Half, sent: asyncio.Queue[list[tuple[float, bytes, Delivery]]]) -> None:
    """Awaits the deliveries in the order of sending."""
    while half.acknowledged < len(half.rows):
        for sent_s, value, delivery in await sent.get():
            ack = await delivery
            half.take_in((ack.partition, ack.offset), value, sent_s)
