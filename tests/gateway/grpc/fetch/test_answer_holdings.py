"""What a fetch holds, at both listeners: no batches while it waits for room, then no more room than its answer takes."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.fetch.service import COPIES, GrpcFetch
from gateway.http import paced_response
from gateway.http.request import Headers, Request
from gateway.proto import log_pb2
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from metadata.errors import TidelogError
from segments.object_store.interface import Buffer
from segments.read.log_reader import FetchResult
from segments.read.read_path import ReadPath
from segments.settings import KIB
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until

pytestmark = pytest.mark.slow

RECORDS = "/v1/topics/single/partitions/0/records"
SMALL_ROOM = GatewaySettings(message_bytes_max=64 * KIB, answer_bytes_max=128 * KIB)
FORMS = [log_pb2.FETCH_FORMAT_BATCHES, log_pb2.FETCH_FORMAT_RECORDS]


class Batches(list[Buffer]):
    """That may be watched going."""


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Batches]]:
    """The batches that were handed out, in the order of their reading."""
    handed_out: list[weakref.ref[Batches]] = []
    as_it_is = ReadPath.fetch

    async def watched(self: ReadPath, *arguments: Any, **options: Any) -> list[FetchResult | TidelogError]:
        found: list[FetchResult | TidelogError] = []
        for answer in await as_it_is(self, *arguments, **options):
            assert isinstance(answer, FetchResult)
            batches = Batches(answer.batches)
            handed_out.append(weakref.ref(batches))
            found.append(answer._replace(batches=batches))
        return found

    monkeypatch.setattr(ReadPath, "fetch", watched)
    return handed_out


async def fill_up(room: ResponseBudget, stack: ExitStack) -> None:
    await stack.enter_context(room.reserve()).ask(128 * KIB, bytes_least=128 * KIB, timeout_s=0)


async def produce(client: Client) -> None:
    assert (await client.produce("/v1/topics/single/records", [{"value": "x" * 1000}] * 20)).status == 200


def fetch_of(form: log_pb2.FetchFormat) -> log_pb2.FetchRequest:
    return log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic="single")], min_bytes=2, max_wait_ms=15_000, max_bytes=100 * KIB, format=form
    )


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.apache.arrow.stream", "text/event-stream"])
def test_a_request_that_waits_for_room_over_http_holds_no_batches(
    tmp_path: Path, looked_at: list[weakref.ref[Batches]], accept: str
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = broker.http._app._fetch.budget
        await produce(client)
        with ExitStack() as others:
            await fill_up(room, others)
            async with asyncio.timeout(60):
                reading = asyncio.ensure_future(client.get(f"{RECORDS}?wait_ms=60000&max_records=20", accept=accept))
                await until(lambda: room.readers_waiting == 1)
            assert looked_at
            assert not any(batches() for batches in looked_at)
        assert (await reading).status == 200

    serve(tmp_path, scenario, settings=SMALL_ROOM)


@pytest.mark.parametrize("form", FORMS)
def test_a_request_that_waits_for_room_over_grpc_holds_no_batches(
    tmp_path: Path, looked_at: list[weakref.ref[Batches]], form: log_pb2.FetchFormat
) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        endpoint = GrpcFetch(broker, InterruptibleWaits())
        await produce(client)
        with endpoint.room.reserve() as reservation:
            with ExitStack() as others:
                await fill_up(endpoint.room, others)
                fetching = asyncio.ensure_future(endpoint._fetch(fetch_of(form), reservation, broker.local_log))
                await until(lambda: endpoint.room.readers_waiting == 1)
                assert looked_at
                assert not any(batches() for batches in looked_at)
            assert len(await fetching) > 20_000

    serve(tmp_path, scenario, settings=SMALL_ROOM)


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_over_grpc_gives_back_what_it_does_not_need(tmp_path: Path, form: log_pb2.FetchFormat) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        endpoint = GrpcFetch(broker, InterruptibleWaits())
        await produce(client)
        with endpoint.room.reserve() as reservation:
            message = await endpoint._fetch(fetch_of(form), reservation, broker.local_log)
            assert endpoint.room.bytes_used == reservation.bytes_held == COPIES * len(message)
            assert endpoint.room.bytes_used_peak > reservation.bytes_held, "it had no more than it needed from the beginning"

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("accept", "sends"),
    [
        ("application/json", "send_paced"),
        ("application/x-ndjson", "send_paced"),
        ("application/vnd.apache.arrow.stream", "send_paced"),
        ("text/event-stream", "stream_paced"),
    ],
)
def test_an_answer_over_http_gives_back_what_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: str, sends: str
) -> None:
    as_it_is = getattr(paced_response, sends)
    held: list[tuple[int, int]] = []

    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = broker.http._app._fetch.budget
        await produce(client)

        async def watched(request: Request, body: bytes, *headers: Headers, **options: Any) -> None:
            if b"data:" in body or accept != "text/event-stream":  # a stream of events begins with an id alone
                held.append((room.bytes_used, len(body)))
            await as_it_is(request, body, *headers, **options)

        monkeypatch.setattr(paced_response, sends, watched)
        assert (await client.get(f"{RECORDS}?max_records=20", accept=accept)).status == 200
        assert [bytes_used for bytes_used, _ in held] == [length for _, length in held]
        assert held[0][1] > 20_000
        assert room.bytes_used_peak > held[0][0], "it had no more than it needed from the beginning"

    serve(tmp_path, scenario)
