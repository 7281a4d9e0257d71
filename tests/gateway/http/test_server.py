from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.http import app as http_app
from gateway.http import server as http_server
from gateway.http.server import WRITE_STALL_S, BoundedProtocol
from gateway.records.response_budget import BYTES_PER_SECOND_MIN
from gateway.settings import GatewaySettings
from segments.settings import KIB, MIB, SegmentSettings
from tests.gateway.http.records.test_produce import values
from tests.kit.gateway.http_client import client_of
from tests.kit.gateway.small_broker import SmallBroker, until, with_broker
from tests.kit.gateway.stalled_readers import closing, stalled_http
from tests.simulation.virtual_loop import run

pytestmark = pytest.mark.slow

HEAD = "POST /v1/topics/single/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = b'{"records":[{"value":1}]}'


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def send_endlessly(self, data: bytes) -> None:
        while True:
            await self.send(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def end(self) -> bytes:
        return await self.reader.read()


@asynccontextmanager
async def connection(broker: SmallBroker) -> AsyncIterator[Connection]:
    host, port = broker.http_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def test_an_announced_body_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}content-length: 9999999999\r\n\r\n")
            status, headers, body = await raw.answer()
            assert (status, headers["content-type"], headers["connection"]) == (413, "application/problem+json", "close")
            assert b"request_bytes_max" in body
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}content-length: 9999999999\r\nexpect: 100-continue\r\n\r\n")
            assert (await raw.answer())[0] == 413  # and no 100 Continue before it

    with_broker(tmp_path, scenario, settings=GatewaySettings(request_bytes_max=1 * MIB, message_bytes_max=1 * MIB))


def test_a_chunked_body_is_cut_at_the_limit(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}transfer-encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b"x" * 64 * KIB + b"\r\n"
            with pytest.raises(ConnectionError):
                await raw.send_endlessly(chunk)
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}transfer-encoding: chunked\r\n\r\n")
            await raw.send(chunk * 17)
            assert (await raw.answer())[0] == 413
        assert broker.budget.bytes_used_peak <= 2 * MIB
        await until(lambda: broker.budget.bytes_used == 0)

    with_broker(tmp_path, scenario, settings=GatewaySettings(request_bytes_max=1 * MIB, message_bytes_max=1 * MIB))


def test_a_client_that_sends_on_after_a_413_still_reads_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}content-length: {3 * MIB}\r\n\r\n")
            await raw.send(b"x" * 3 * MIB)
            assert (await raw.answer())[0] == 413

    with_broker(tmp_path, scenario, settings=GatewaySettings(request_bytes_max=1 * MIB, message_bytes_max=1 * MIB))


def test_a_body_that_stops_coming_is_cut_and_gives_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "LINGER_S", 0.05)

    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as stalled:
            await stalled.send(f"{HEAD}content-length: {900 * KIB}\r\n\r\n" + "x" * 1000)
            await until(lambda: broker.budget.bytes_used >= 900 * KIB)
            status, _, body = await stalled.answer()
            assert (status, b"BODY_TOO_SLOW" in body) == (408, True)
            assert await stalled.end() == b""
        await until(lambda: broker.budget.bytes_used == 0)

    with_broker(
        tmp_path,
        scenario,
        settings=GatewaySettings(body_read_timeout_ms=100),
        segments=SegmentSettings(linger_ms=0, buffer_bytes_max=1 * MIB, segment_bytes_max=1 * MIB),
    )


def test_clients_that_vanish_in_their_body_give_their_room_back_at_once(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        for _ in range(10):
            async with connection(broker) as vanishing:
                await vanishing.send(f"{HEAD}content-length: {900 * KIB}\r\n\r\n" + "x" * 1000)
                await until(lambda: broker.budget.bytes_used >= 900 * KIB)
            await until(lambda: broker.budget.bytes_used == 0)
        async with client_of(broker) as client:
            assert (await client.produce("/v1/topics/single/records", [{"value": 1}])).status == 200
        assert await values(broker) == [b"1"]

    segments = SegmentSettings(linger_ms=0, puts_per_second_max=1000, buffer_bytes_max=1 * MIB, segment_bytes_max=1 * MIB)
    with_broker(tmp_path, scenario, segments=segments)


def test_a_producer_that_hangs_up_before_its_answer_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        broker.store.hold()
        async with connection(broker) as vanishing:
            await vanishing.send(f"{HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
            await until(lambda: broker.budget.bytes_used > 0)
        async with client_of(broker) as client:
            staying = asyncio.ensure_future(client.produce("/v1/topics/single/records", [{"value": 2}]))
            assert not (await asyncio.wait((staying,), timeout=0.05))[0]
            broker.store.let_go()
            assert (await staying).json["results"] == [{"partition": 0, "offset": 1}]
        assert await values(broker) == [b"1", b"2"]

    with_broker(tmp_path, scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/topics/single/records HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_refused_and_the_next_client_is_served(tmp_path: Path, data: bytes) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            await raw.send(data)
            assert (await raw.end())[:12] in {b"HTTP/1.1 400", b""}
        async with client_of(broker) as client:
            assert (await client.get("/livez")).status == 200

    with_broker(tmp_path, scenario)


@pytest.mark.parametrize(
    "endless",
    [b"x" * 8 * KIB, b"a: " + b"b" * 1000 + b"\r\n"],
    ids=["one header", "many headers"],
)
def test_a_head_without_end_is_cut(tmp_path: Path, endless: bytes) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            await raw.send(b"GET /livez HTTP/1.1\r\nhost: ")
            with pytest.raises(ConnectionError):
                await raw.send_endlessly(endless)
        async with connection(broker) as raw:
            await raw.send(b"GET /livez HTTP/1.1\r\na: " + b"x" * 100 * KIB)
            assert (await raw.end()).startswith(b"HTTP/1.1 431 ")
        async with connection(broker) as raw:
            await raw.send(f"{HEAD}transfer-encoding: chunked\r\n\r\n0\r\n")
            with pytest.raises(ConnectionError):
                await raw.send_endlessly(b"trailer: " + b"x" * 1000 + b"\r\n")

    with_broker(tmp_path, scenario)


def test_a_head_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.05)

    async def scenario(broker: SmallBroker) -> None:
        for sent in (b"", b"GET /livez HT"):
            async with connection(broker) as raw:
                await raw.send(sent)
                assert (await raw.end()).startswith(b"HTTP/1.1 408 ")
        monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 60.0)
        async with connection(broker) as raw:
            await raw.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await raw.answer())[0] == 200
            monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.05)
            await raw.send(b"GET /livez HTTP/1.1\r\nho")
            assert (await raw.end()).startswith(b"HTTP/1.1 408 ")

    with_broker(tmp_path, scenario)


def test_a_long_poll_is_not_taken_for_a_late_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.3)

    async def scenario(broker: SmallBroker) -> None:
        status = 408
        while status == 408:  # on a busy machine the head itself may be late
            async with connection(broker) as raw:
                await raw.send(b"GET /v1/topics/single/partitions/0/records?wait_ms=500 HTTP/1.1\r\nhost: localhost\r\n\r\n")
                answering = asyncio.ensure_future(raw.answer())
                await until(lambda: bool(broker.http._waits._waits) or answering.done())  # noqa: B023  # of this turn
                has_begun = not answering.done()
                status = (await answering)[0]
                assert not has_begun or status == 200
        assert status == 200

    with_broker(tmp_path, scenario)


def test_a_reader_that_takes_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_STALL_S", 0.1)

    async def scenario(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            for _ in range(8):
                await client.produce("/v1/topics/single/records", [{"value": "x" * 900_000}])
        host, port = broker.http_address.split(":")
        with socket.create_connection((host, int(port))) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(b"GET /v1/topics/single/partitions/0/records?max_bytes=8388608 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: len(broker.http._state.connections) == 1)
            await until(lambda: len(broker.http._state.connections) == 0)

    with_broker(tmp_path, scenario)


@pytest.mark.parametrize(("bytes_per_second", "is_kept"), [(0, False), (1000, False), (BYTES_PER_SECOND_MIN, True)])
def test_a_connection_that_takes_less_than_the_least_rate_is_cut_off_whatever_writes_to_it(
    bytes_per_second: int, is_kept: bool
) -> None:
    class Transport:
        aborted_at_s: float | None = None

        def get_write_buffer_size(self) -> int:
            return 100 * MIB - int(asyncio.get_running_loop().time()) * bytes_per_second

        def abort(self) -> None:
            self.aborted_at_s = asyncio.get_running_loop().time()

    async def scenario() -> float | None:
        connection = BoundedProtocol.__new__(BoundedProtocol)
        connection.loop = asyncio.get_running_loop()
        connection.transport = transport = Transport()  # type: ignore[assignment]  # the part of one that is asked here
        connection._watch_writing(transport.get_write_buffer_size())
        await asyncio.sleep(10 * WRITE_STALL_S)
        connection._stop_write_timer()
        return transport.aborted_at_s

    assert run(scenario()) == (None if is_kept else WRITE_STALL_S)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_reader_that_is_too_slow_is_cut_off_with_all_that_it_did_not_take_and_that_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, accept: str
) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            for _ in range(8):
                await client.produce("/v1/topics/single/records", [{"value": "x" * 900_000}])
        path = "/v1/topics/single/partitions/0/records?offset=0&max_bytes=8388608"
        with closing([stalled_http(broker.http_address, path, accept=accept)]):
            await until(lambda: len(broker.http._state.connections) == 1)
            (of_reader,) = broker.http._state.connections
            await until(lambda: of_reader not in broker.http._state.connections)
            await until(lambda: not broker.http._state.tasks)
            await until(lambda: of_reader.transport.get_write_buffer_size() == 0)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    with_broker(tmp_path, scenario, settings=GatewaySettings(answer_timeout_ms=100))


def test_a_stream_ends_with_its_connection_though_a_request_waited_behind_it(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            get = b"GET /v1/topics/single/records HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
            await raw.send(get + get)
            assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert len(broker.http._state.tasks) == 1
        async with asyncio.timeout(60):  # not only when it sends its next sign of life
            await until(lambda: not broker.http._state.tasks)

    with_broker(tmp_path, scenario)


def test_requests_in_a_row_on_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with connection(broker) as raw:
            one = f"{HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
            await raw.send(one * 5)
            offsets = [(await raw.answer())[2] for _ in range(5)]
            assert offsets == [b'{"results":[{"partition":0,"offset":%d}]}' % number for number in range(5)]

    with_broker(tmp_path, scenario)


def test_answers_have_a_date_header_and_no_server_header(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with client_of(broker) as client:
            headers = (await client.get("/livez")).headers
            assert headers["date"].endswith(" GMT")
            assert "server" not in headers

    with_broker(tmp_path, scenario)


def test_a_stop_answers_what_is_in_flight_and_takes_no_more(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        broker.store.hold()
        async with client_of(broker) as client, connection(broker) as idle:
            producing = asyncio.ensure_future(client.produce("/v1/topics/single/records", [{"value": 1}]))
            await until(lambda: broker.budget.bytes_used > 0)
            stopping = asyncio.ensure_future(broker.http.stop(60))
            assert await idle.end() == b""
            assert not (await asyncio.wait((stopping,), timeout=0.05))[0]
            broker.store.let_go()
            assert (await producing).status == 200
            await stopping
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(*broker.http_address.split(":"))

    with_broker(tmp_path, scenario)


def test_a_stop_waits_no_longer_than_its_grace(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        broker.store.hold()
        async with client_of(broker) as client:
            producing = asyncio.ensure_future(client.produce("/v1/topics/single/records", [{"value": 1}]))
            await until(lambda: broker.budget.bytes_used > 0)
            await broker.http.stop(0.05)
            await asyncio.wait((producing,))
            broker.store.let_go()

    with_broker(tmp_path, scenario)
