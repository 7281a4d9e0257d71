from __future__ import annotations

import asyncio
import base64
import socket
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from yarl import URL

from gateway.records import response_budget
from gateway.records.response_budget import ResponseBudget
from gateway.settings import GatewaySettings
from metadata.errors import TidelogError
from segments.object_store.interface import Buffer
from segments.read.log_reader import FetchResult
from segments.read.read_path import ReadPath
from segments.records.columns import encode_records
from segments.records.compression import Codec
from segments.settings import KIB, MIB
from tests.kit.gateway.http_client import Answer, Client, serve
from tests.kit.gateway.small_broker import SmallBroker, until
from tests.kit.gateway.stalled_readers import stalled_http

pytestmark = pytest.mark.slow

RECORDS = "/v1/topics/single/partitions/0/records"
PRODUCE = "/v1/topics/single/records"
T0 = 1_750_000_000_000


async def fill(client: Client, count: int = 5) -> None:
    """Records of the values 0, 1, …, a second apart, two in a batch."""
    for first in range(0, count, 2):
        records = [{"value": number, "timestamp": T0 + 1000 * number} for number in range(first, min(first + 2, count))]
        assert (await client.produce(PRODUCE, records)).status == 200


def test_a_page_holds_records_and_where_to_read_on(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await client.produce(PRODUCE, [{"key": "k", "value": {"id": 7}, "timestamp": T0, "headers": {"trace": "ab"}}])
        answer = await client.get(RECORDS)
        assert answer.json == {
            "records": [
                {
                    "partition": 0,
                    "offset": 0,
                    "timestamp": T0,
                    "key": "k",
                    "value": {"id": 7},
                    "headers": [{"key": "trace", "value": "ab"}],
                }
            ],
            "next_offset": 1,
            "high_watermark": 1,
            "log_start_offset": 0,
        }
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        assert (await client.get(f"{RECORDS}?offset=1")).json["records"] == []

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("?offset=earliest", [0, 1, 2, 3, 4]),
        ("?offset=0", [0, 1, 2, 3, 4]),
        ("?offset=3", [3, 4]),
        ("?offset=latest", []),
        ("?offset=5", []),
        ("?tail=2", [3, 4]),
        ("?tail=0", []),
        ("?tail=100", [0, 1, 2, 3, 4]),
        (f"?timestamp={T0 + 1500}", [2, 3, 4]),
        ("?timestamp=2025-06-15T15:06:43Z", [3, 4]),
        (f"?timestamp={T0 + 9000}", []),
        ("?offset=1&max_records=2", [1, 2]),
        ("?offset=1&max_records=1", [1]),
        ("?offset=1&max_bytes=1", [1]),
    ],
)
def test_reading_begins_and_ends_where_it_is_asked_to(tmp_path: Path, query: str, values: list[int]) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill(client)
        page = (await client.get(RECORDS + query)).json
        assert [record["value"] for record in page["records"]] == values
        assert page["next_offset"] == (values[-1] + 1 if values else 5)
        lines = await client.get(RECORDS + query, accept="application/x-ndjson")
        assert [record["value"] for record in lines.lines] == values
        assert lines.headers["tidelog-next-offset"] == str(page["next_offset"])
        arrow = await client.get(RECORDS + query, accept="application/vnd.apache.arrow.stream")
        columns = pa.ipc.open_stream(arrow.body).read_all()
        assert columns.column("value").to_pylist() == [b"%d" % value for value in values]
        assert arrow.headers["tidelog-next-offset"] == str(page["next_offset"])

    serve(tmp_path, scenario)


def test_page_after_page_reads_everything_once(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill(client, 25)
        found, offset = [], 0
        while offset < 25:
            page = (await client.get(f"{RECORDS}?offset={offset}&max_records=3")).json
            found += [record["value"] for record in page["records"]]
            offset = page["next_offset"]
        assert found == list(range(25))

    serve(tmp_path, scenario)


def test_an_offset_out_of_range_is_a_416_with_the_range(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill(client)
        answer = await client.get(f"{RECORDS}?offset=6")
        reported = answer.json
        assert (answer.status, reported["code"], reported["log_start_offset"], reported["high_watermark"]) == (
            416,
            "OFFSET_OUT_OF_RANGE",
            0,
            5,
        )
        assert reported["detail"] == "single/0 holds offsets 0 to 4; 6 was asked for"
        assert reported["hint"] == "Read from offset=earliest (0), or from offset=latest (5) for new records only."
        assert answer.headers["content-range"] == "offsets */5"
        for accept in ("application/x-ndjson", "text/event-stream", "application/vnd.apache.arrow.stream"):
            assert await client.refused(client.get(f"{RECORDS}?offset=6", accept=accept)) == (416, "OFFSET_OUT_OF_RANGE")

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=first",
        "offset=9223372036854775808",
        "offset=1&tail=1",
        "offset=1&timestamp=1",
        "tail=-1",
        "timestamp=yesterday",
        "max_records=0",
        "max_records=100001",
        "max_bytes=0",
        "max_bytes=8388609",
        "wait_ms=-1",
        "wait_ms=60001",
        "key_format=xml",
        "value_format=",
        "ofset=1",
        "offset=1&offset=2",
    ],
)
def test_a_query_out_of_its_bounds_is_refused(tmp_path: Path, query: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.get(f"{RECORDS}?{query}")) == (400, "INVALID_ARGUMENT")

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/topics/nothing/partitions/0/records", (404, "UNKNOWN_TOPIC")),
        ("/v1/topics/single/partitions/1/records", (404, "UNKNOWN_PARTITION")),
        ("/v1/topics/single/partitions/-1/records", (400, "INVALID_ARGUMENT")),
        ("/v1/topics/single/partitions/zero/records", (400, "INVALID_ARGUMENT")),
        ("/v1/topics/single/partitions//records", (400, "INVALID_ARGUMENT")),
        ("/v1/topics/single/partitions/99999999999999999999/records", (400, "INVALID_ARGUMENT")),
        ("/v1/topics/a%2Fb/partitions/0/records", (400, "INVALID_NAME")),
    ],
)
def test_a_partition_that_does_not_exist_is_refused(tmp_path: Path, path: str, expected: tuple[int, str]) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        answer = client.ask("GET", URL(broker.url + path, encoded=True))
        assert await client.refused(answer) == expected

    serve(tmp_path, scenario)


def test_other_methods_and_types_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.ask("POST", RECORDS)) == (405, "METHOD_NOT_ALLOWED")
        assert await client.refused(client.get(RECORDS, accept="text/html")) == (406, "NOT_ACCEPTABLE")

    serve(tmp_path, scenario)


def test_formats_say_how_keys_and_values_are_given(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        raw = {"type": "binary", "data": base64.b64encode(b"\xff\x00").decode()}
        await client.produce(PRODUCE, [{"key": "7", "value": "text"}, {"key": raw, "value": raw}])

        async def read(query: str) -> list[tuple[object, object]]:
            return [(record["key"], record["value"]) for record in (await client.get(f"{RECORDS}?{query}")).json["records"]]

        assert await read("") == [(7, "text"), (raw, raw)]
        assert await read("key_format=text&max_records=1") == [("7", "text")]
        assert await read("key_format=base64&value_format=base64") == [("Nw==", "dGV4dA=="), ("/wA=", "/wA=")]
        answer = await client.get(f"{RECORDS}?value_format=text")
        assert (answer.status, answer.json["offset"]) == (400, 1)
        assert "offset 1" in answer.json["detail"]

    serve(tmp_path, scenario)


def test_a_long_poll_is_answered_by_the_record_that_it_waits_for(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        polling = asyncio.ensure_future(client.get(f"{RECORDS}?offset=latest&wait_ms=60000"))
        await until(lambda: len(broker.http._waits._waits) == 1)
        assert not polling.done()
        await fill(client, 1)
        assert [record["value"] for record in (await polling).json["records"]] == [0]
        nothing = (await client.get(f"{RECORDS}?offset=latest&wait_ms=20")).json
        assert (nothing["records"], nothing["next_offset"]) == ([], 1)

    serve(tmp_path, scenario)


def test_a_stop_ends_a_long_poll_with_what_there_is(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        polling = asyncio.ensure_future(client.get(f"{RECORDS}?wait_ms=60000"))
        await until(lambda: len(broker.http._waits._waits) == 1)
        assert not polling.done()
        await broker.http.stop(60)
        assert (await polling).json["records"] == []

    serve(tmp_path, scenario)


def test_a_reader_that_hangs_up_ends_its_long_poll(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        polling = asyncio.ensure_future(client.get(f"{RECORDS}?wait_ms=60000"))
        await until(lambda: len(broker.http._waits._waits) == 1)
        polling.cancel()
        await asyncio.wait((polling,))
        async with asyncio.timeout(30):  # before the poll would have ended by itself
            await broker.http.stop(60)

    serve(tmp_path, scenario)


def test_a_large_answer_is_bounded_and_whole(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        for number in range(20):
            await client.produce(PRODUCE, [{"value": f"{number:06d}" * 2000}] * 4)
        page = (await client.get(f"{RECORDS}?max_bytes={200 * KIB}")).json
        assert 12 <= len(page["records"]) <= 17
        page = (await client.get(RECORDS)).json
        assert len(page["records"]) <= 26
        assert page["records"][-1]["value"] == f"{(len(page['records']) - 1) // 4:06d}" * 2000

    serve(tmp_path, scenario, settings=GatewaySettings(fetch_bytes_max=300 * KIB))


def test_a_batch_that_was_compressed_far_is_answered_a_part_at_a_time(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        batch = encode_records([(None, b"%06d" % number * 100, (), T0) for number in range(2000)], codec=Codec.ZSTD)
        await client.post(f"{PRODUCE}?partition=0", batch, "application/vnd.tidelog.record-batch")
        for accept in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
            offset, answers = 0, 0
            while offset < 2000:
                answer = await client.get(f"{RECORDS}?offset={offset}&max_bytes={32 * KIB}", accept=accept)
                assert len(answer.body) <= 300 * KIB
                offset, before = int(answer.headers["tidelog-next-offset"]), offset
                assert offset > before
                answers += 1
            assert answers >= 1_200_000 // (300 * KIB)

    serve(tmp_path, scenario, settings=GatewaySettings(message_bytes_max=64 * KIB))


# ── room for answers ────────────────────────────────────────────────────────────────────────────────────────────────────


SMALL_ROOM = GatewaySettings(message_bytes_max=64 * KIB, answer_bytes_max=128 * KIB)


def room_of(broker: SmallBroker) -> ResponseBudget:
    return broker.http._app._fetch.budget


async def fill_up(room: ResponseBudget, stack: ExitStack) -> None:
    while room.bytes_used < 128 * KIB:
        await stack.enter_context(room.reserve()).ask(128 * KIB, timeout_s=0)


def test_a_reader_waits_for_room_and_is_then_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_budget, "ROOM_WAIT_S", 0.02)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill(client)
        with ExitStack() as others:
            await fill_up(room_of(broker), others)
            for accept in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
                answer = await client.get(RECORDS, accept=accept)
                assert (answer.status, answer.json["code"], answer.json["retryable"]) == (429, "THROTTLED", True)
                assert answer.headers["retry-after"] == "1"
                assert "readers take their answers too slowly" in answer.json["hint"]
            assert (await client.get(f"{RECORDS}?offset=latest")).status == 200, "nothing to read takes no room"
            patient = asyncio.ensure_future(client.get(f"{RECORDS}?wait_ms=60000"))
            assert not (await asyncio.wait((patient,), timeout=0.1))[0]
        assert len((await patient).json["records"]) == 5
        await until(lambda: room_of(broker).bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_a_long_poll_that_waits_for_records_holds_no_room(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        polls = [asyncio.ensure_future(client.get(f"{RECORDS}?offset=latest&wait_ms=60000")) for _ in range(20)]
        await until(lambda: len(broker.http._waits._waits) == 20)
        assert room_of(broker).bytes_used_peak == 0
        await fill(client, 1)
        assert [len(answer.json["records"]) for answer in await asyncio.gather(*polls)] == [1] * 20
        assert 0 < room_of(broker).bytes_used_peak <= 128 * KIB
        await until(lambda: room_of(broker).bytes_used == 0)

    serve(tmp_path, scenario, settings=SMALL_ROOM)


def test_a_reader_that_hangs_up_while_it_waits_for_room_leaves_the_queue(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill(client)
        with ExitStack() as others:
            await fill_up(room_of(broker), others)
            vanishing = [asyncio.ensure_future(client.get(f"{RECORDS}?wait_ms=60000")) for _ in range(5)]
            assert not (await asyncio.wait(vanishing, timeout=0.1))[0]
            for poll in vanishing:
                poll.cancel()
            await asyncio.wait(vanishing)
            await until(lambda: not broker.http._state.tasks)
        assert room_of(broker).bytes_used == 0
        assert room_of(broker).bytes_used_peak == 128 * KIB

    serve(tmp_path, scenario, settings=SMALL_ROOM)


async def fill_widely(client: Client) -> None:
    """8 MiB: more than the buffers between two sockets take."""
    for _ in range(8):
        assert (await client.produce(PRODUCE, [{"value": "x" * 1000}] * 1000)).status == 200


WIDE = f"{RECORDS}?max_bytes=8388608"


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        (WIDE, "application/json"),
        (WIDE, "application/x-ndjson"),
        (WIDE, "application/vnd.apache.arrow.stream"),
        (WIDE, "text/event-stream"),
        ("/v1/topics/single/records?max_bytes=8388608", "application/x-ndjson"),
    ],
)
def test_a_reader_that_vanishes_within_its_answer_gives_its_room_back_at_once(tmp_path: Path, path: str, accept: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill_widely(client)
        room = room_of(broker)
        with stalled_http(broker.http_address, path, accept=accept):
            await until(lambda: room.bytes_used_peak > 0)
            assert not (await asyncio.wait(broker.http._state.tasks, timeout=0.2))[0]
            assert room.bytes_used > 1 * MIB
        async with asyncio.timeout(10):
            await until(lambda: room.bytes_used == 0)

    serve(tmp_path, scenario)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_reader_that_takes_nothing_loses_its_connection_and_its_room(tmp_path: Path, accept: str) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill_widely(client)
        room = room_of(broker)
        with stalled_http(broker.http_address, WIDE, accept=accept) as stalled:
            await until(lambda: room.bytes_used_peak > 0)
            async with asyncio.timeout(60):
                await until(lambda: room.bytes_used == 0)
            assert len((await whole(client)).json["records"]) > 5000
            received = await asyncio.to_thread(read_to_the_end, stalled)
        assert received.startswith(b"HTTP/1.1 200")
        assert len(received) < 8 * MIB

    serve(tmp_path, scenario, settings=GatewaySettings(answer_timeout_ms=100))


async def whole(client: Client) -> Answer:
    """On a busy machine, who reads as fast as it can may be too slow as well."""
    while True:
        with suppress(aiohttp.ClientPayloadError):
            return await client.get(WIDE)


def read_to_the_end(reader: socket.socket) -> bytes:
    received = bytearray()
    while chunk := reader.recv(1 << 16):
        received += chunk
    return bytes(received)


def test_an_answer_on_its_way_does_not_keep_the_batches_that_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Batches(list[Buffer]):
        """That may be watched going."""

    watched: list[weakref.ref[Batches]] = []
    as_it_is = ReadPath.fetch

    async def watching(self: ReadPath, *arguments: Any, **options: Any) -> list[FetchResult | TidelogError]:
        found: list[FetchResult | TidelogError] = []
        for answer in await as_it_is(self, *arguments, **options):
            assert isinstance(answer, FetchResult)
            batches = Batches(answer.batches)
            watched.append(weakref.ref(batches))
            found.append(answer._replace(batches=batches))
        return found

    monkeypatch.setattr(ReadPath, "fetch", watching)

    async def scenario(broker: SmallBroker, client: Client) -> None:
        await fill_widely(client)
        for accept in ("application/json", "text/event-stream"):
            watched.clear()
            with stalled_http(broker.http_address, WIDE, accept=accept):
                await until(lambda: len(watched) >= 2 and all(batches() is None for batches in watched))
                assert room_of(broker).bytes_used > 0
            await until(lambda: room_of(broker).bytes_used == 0)

    serve(tmp_path, scenario)
