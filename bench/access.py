"""Measures what authentication and ACLs cost a produce: with an API key and a hundred ACLs, and without authentication.

The two brokers take turns, so that what the machine does meanwhile meets both alike. What counts is the broker's CPU for a request:
where a broker is the bottleneck, its throughput is one over that; rates of a client on the same cores are noise beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.batches import MESSAGE_BYTES_MAX, produce_request, record_batch, records_in
from bench.broker import Served, broker
from bench.figures import Figure, Target, median, spread
from bench.grpc_client import produce
from bench.http_client import post, post_request
from bench.load import Load, Outcome
from bench.run import ROUNDS, Run, alternate
from gateway.access.authentication import Authenticator
from gateway.access.authorization import check_topic
from gateway.access.guard import AccessGuard
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from gateway.http.guard import HttpGuard
from gateway.http.request import Message, Receive, Send
from metadata.access.acl import Acl
from metadata.access.api_key import KEY_ID_BYTES, SECRET_BYTES, new_key
from metadata.access.cache import AccessCache
from metadata.access.registry import AccessRegistry
from metadata.store.sqlite.store import SqliteStore
from tidelog import connect_sync

PARTITIONS: Final = 6
# That have nothing to do with the topic: a cluster has more than one.
ACLS: Final = 100
# Of a round at the guard alone.
REQUESTS: Final = 20_000
# Connections, and requests under way on each.
BATCHES, SMALL, HTTP = Load(4, 8, 0), Load(4, 64, 0), Load(24, 1, 0)
PATH: Final = "/v1/topics/records/records?partition=0"


class Cost(NamedTuple):
    # Of the broker, for a request.
    cpu_us: float
    requests_per_s: float


def measure(run: Run) -> list[Figure]:
    batch = record_batch(records_in(MESSAGE_BYTES_MAX))
    large = [produce_request("records", batch, range(partition, partition + 1)) for partition in range(PARTITIONS)]
    small = [produce_request("records", record_batch(1), range(partition, partition + 1)) for partition in range(PARTITIONS)]
    body = msgspec.json.encode({"records": [{"value": "x" * 100}]})
    with run.new_directory("access-key") as directory:
        _, admin = new_key(principal="admin", id_bytes=bytes(KEY_ID_BYTES), secret_bytes=bytes(SECRET_BYTES), now_ms=0)
        key_file = directory / "key"
        key_file.write_text(admin.reveal())
        flags = ["--authentication", "true", "--admin-key-file", str(key_file), "--audit-log", "off"]
        with broker(run, "access-off") as open_, broker(run, "access-on", flags=flags) as closed:
            open_.create_topic("records", PARTITIONS)
            key = _prepared(closed, admin.reveal())

            def over_grpc(requests: list[bytes], load: Load) -> tuple[Callable[[], Cost], Callable[[], Cost]]:
                load = Load(load.connections, load.window, run.seconds)
                return (
                    lambda: _cost(open_, lambda: run.client.run(produce, open_.grpc_address, requests, load)),
                    lambda: _cost(closed, lambda: run.client.run(produce, closed.grpc_address, requests, load, key=key)),
                )

            def over_http() -> tuple[Callable[[], Cost], Callable[[], Cost]]:
                load = Load(HTTP.connections, HTTP.window, run.seconds)
                plain = post_request(open_.http_url, PATH, body, "application/json")
                shown = post_request(closed.http_url, PATH, body, "application/json", key=key)
                return (
                    lambda: _cost(open_, lambda: run.client.run(post, open_.http_url, plain, load)),
                    lambda: _cost(closed, lambda: run.client.run(post, closed.http_url, shown, load)),
                )

            return [
                Figure(
                    "the guard alone, at the HTTP listener",
                    _guard_us(),
                    "µs",
                    note="of CPU a request: what the machine's noise can't hide",
                ),
                _figure("gRPC stream, batches of 1 MiB", *alternate(*over_grpc(large, BATCHES)), most=1.03),
                _figure("gRPC stream, batches of one record", *alternate(*over_grpc(small, SMALL)), most=1.10),
                _figure("HTTP, JSON of one record", *alternate(*over_http()), most=1.10),
            ]


def _prepared(served: Served, admin: str) -> str:
    """The key of a principal that may produce, among others that may do other things."""
    with connect_sync(served.http_url, api_key=admin) as log:
        log.topics.create("records", partitions=PARTITIONS)
        for number in range(ACLS):
            log.access.add_acl("bench", "write", "topic", f"other-{number}")
        log.access.add_acl("bench", "write", "topic", "rec", pattern="prefix")
        _, key = log.access.create_key("bench")
    return key


def _cost(served: Served, load: Callable[[], Outcome]) -> Cost:
    before_s = served.cpu_seconds()
    outcome = load()
    return Cost(1e6 * (served.cpu_seconds() - before_s) / outcome.requests, outcome.requests_per_second)


def _figure(what: str, without: list[Cost], having: list[Cost], *, most: float) -> Figure:
    ratios = [closed.cpu_us / open_.cpu_us for open_, closed in zip(without, having, strict=True)]
    slower = [closed.requests_per_s / open_.requests_per_s for open_, closed in zip(without, having, strict=True)]
    note = (
        f"{spread(ratios)}; µs of CPU a request: {median(cost.cpu_us for cost in without):,.0f} without, "
        f"{median(cost.cpu_us for cost in having):,.0f} with; rate beside without {median(slower):.2f} ×"
    )
    return Figure(f"{what}: CPU with authentication beside without", median(ratios), "×", Target(most=most), note)


def _guard_us() -> float:
    """CPU of one request through the guard, with nothing behind it, among ACLS bindings; the least of some rounds."""

    async def least() -> float:
        store = SqliteStore(Path(":memory:"))
        records, cache = AccessRegistry(store), AccessCache(store)
        made = await records.create_key("bench")
        for number in range(ACLS):
            await records.add_acl(Acl(principal="bench", operation="write", resource="topic", name=f"other-{number}"))
        await records.add_acl(Acl(principal="bench", operation="write", resource="topic", name="records"))
        following = asyncio.ensure_future(cache.run())
        await cache.read(timeout_s=30)
        authentication = Authenticator(AccessSettings(), cache, now_ms=_now_ms)
        guard = AccessGuard(cache, authentication, PrincipalQuotas(cache, time.monotonic), None, None, now_ms=_now_ms)
        listener, shown = HttpGuard(guard), f"Bearer {made.text.reveal()}".encode()
        rounds = [await _round_us(listener, shown) for _ in range(ROUNDS)]
        following.cancel()
        await asyncio.wait([following])
        await store.close()
        return min(rounds)

    return asyncio.run(least())


async def _round_us(listener: HttpGuard, shown: bytes) -> float:
    async def answer(receive: Receive, send: Send) -> None:
        check_topic("records")

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    parts = PATH.partition("?")[0].split("/")
    started_s = time.process_time()
    for _ in range(REQUESTS):
        headers = [
            (b"host", b"localhost"),
            (b"authorization", bytes(bytearray(shown))),
        ]  # new bytes each time, as a parser makes them
        scope = {"method": "POST", "path": PATH, "headers": headers, "client": ("127.0.0.1", 1)}
        await listener.answer(scope, receive, send, parts, "", answer)
    return 1e6 * (time.process_time() - started_s) / REQUESTS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
