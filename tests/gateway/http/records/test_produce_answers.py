"""Answers of thousands of results: they are made when there is room for them, go out at a least rate, and are never refused."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gateway.http import paced_response
from gateway.http.request import Headers, Request
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from metadata.model import Partition, TopicPartition
from segments.settings import KIB, MIB
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stalled_readers import closing, stalled_http_producer

pytestmark = pytest.mark.slow

PRODUCE = "/v1/topics/single/records"
NDJSON = "application/x-ndjson"
MANY = 5000
LINES = b"{}\n" * MANY
SMALL_ROOM = GatewaySettings(message_bytes_max=64 * KIB, answer_bytes_max=1 * MIB)


def room_of(broker: SmallBroker) -> ResponseBudget:
    return broker.http._app._fetch.budget


async def fill_up(room: ResponseBudget, stack: ExitStack) -> None:
    await stack.enter_context(room.reserve()).ask(1 * MIB, bytes_least=1 * MIB, timeout_s=0)


@pytest.mark.parametrize(
    ("accept", "acks", "status"),
    [
        (NDJSON, "all", 200),
        ("application/json", "all", 200),
        ("application/json", "leader", 200),
        (NDJSON, "none", 202),
    ],
)
def test_a_long_answer_holds_as_much_room_as_it_takes_until_it_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: str, acks: str, status: int
) -> None:
    as_it_is = paced_response.send_paced
    seen: list[tuple[int, int]] = []

    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = room_of(broker)

        async def watched(request: Request, body: bytes, headers: Headers, *, pause_s: float, status: int) -> None:
            seen.append((room.bytes_used, len(body)))
            await as_it_is(request, body, headers, pause_s=pause_s, status=status)

        monkeypatch.setattr(paced_response, "send_paced", watched)
        answer = await client.post(f"{PRODUCE}?acks={acks}", LINES, NDJSON, accept=accept)
        results = answer.lines if accept == NDJSON else answer.json["results"]
        expected = [{"partition": 0} if acks == "none" else {"partition": 0, "offset": number} for number in range(MANY)]
        assert (answer.status, results) == (status, expected)
        assert seen == [(len(answer.body), len(answer.body))]
        await until(lambda: room.bytes_used == 0)
        assert room.bytes_used_peak <= 1.1 * len(answer.body) + 2 * KIB, "asked for much more than it needed"

    serve(tmp_path, scenario)


def test_a_short_answer_takes_no_room_and_waits_for_none(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        with ExitStack() as others:
            await fill_up(room_of(broker), others)
            assert (await client.produce(PRODUCE, [{"value": number} for number in range(100)])).status == 200
        assert room_of(broker).bytes_used_peak == 1 * MIB

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_a_producer_that_finds_no_room_waits_since_its_records_are_written(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = room_of(broker)
        with ExitStack() as others:
            await fill_up(room, others)
            waiting = asyncio.ensure_future(client.post(PRODUCE, LINES, NDJSON))
            leaving = asyncio.ensure_future(client.post(PRODUCE, LINES, NDJSON))
            await until(lambda: room.readers_waiting == 2)
            assert broker.budget.bytes_used == 0, "the buffer waits for a reader"
            leaving.cancel()
            await until(lambda: room.readers_waiting == 1)
        assert len((await waiting).lines) == MANY
        await until(lambda: room.bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_an_answer_larger_than_all_the_room_is_not_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = await client.post(PRODUCE, b"{}\n" * 50_000, NDJSON)
        assert (answer.status, len(answer.lines)) == (200, 50_000)
        assert len(answer.body) > 1 * MIB
        await until(lambda: room_of(broker).bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_an_answer_that_waits_for_room_at_a_stop_is_not_lost(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = room_of(broker)
        with ExitStack() as others:
            await fill_up(room, others)
            waiting = asyncio.ensure_future(client.post(PRODUCE, LINES, NDJSON))
            await until(lambda: room.readers_waiting == 1)
            await broker.http.stop(60)
            assert len((await waiting).lines) == MANY
        assert room.bytes_used == 0

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_a_producer_that_takes_too_little_of_its_answer_loses_its_connection_and_its_room(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        room = room_of(broker)
        many = b"{}\n" * 200_000
        producing = asyncio.to_thread(stalled_http_producer, broker.http_address, PRODUCE, many, content_type=NDJSON)
        with closing([await producing]) as (stalled,):
            stalled.setblocking(False)
            await until(lambda: room.bytes_used > 0)
            while room.bytes_used:
                with suppress(BlockingIOError, ConnectionError):
                    stalled.recv(64)  # now and then a few bytes
                await asyncio.sleep(0.01)
            await until(lambda: not broker.http._state.tasks)
        assert (
            broker.log.partitions.bounds(TopicPartition(broker.topic_cache.get("single").id, Partition(0))).high_watermark
            == 200_000
        )

    serve(tmp_path, scenario, settings=GatewaySettings(answer_timeout_ms=200))
