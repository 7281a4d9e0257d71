"""The proxy: what each fault does to what is open, to what is new, and that healing heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.kit.tcp_proxy import SLOW_DOWN, Fault, TcpProxy, tcp_proxy

pytestmark = pytest.mark.slow

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TIMEOUT_S = 60.0


class EchoServer:
    """Sends back what it got, and counts it. Its clients' connections are closed in the end."""

    def __init__(self) -> None:
        self.got_bytes = 0
        self.clients: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                self.got_bytes += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()

    async def reached(self, through: TcpProxy) -> Opened:
        """A new client's connection."""
        connection = await asyncio.open_connection("127.0.0.1", through.port)
        self.clients.append(connection[1])
        return connection

    async def close_clients(self) -> None:
        for writer in self.clients:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[EchoServer, TcpProxy]]:
    echo = EchoServer()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with tcp_proxy(server.sockets[0].getsockname()[1]) as through:
        yield echo, through
        await echo.close_clients()
    server.close()
    await server.wait_closed()


def run(scenario: Callable[[EchoServer, TcpProxy], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(TIMEOUT_S), echoing() as (echo, through):
            await scenario(echo, through)

    asyncio.run(within_time())


async def echo_of(connection: Opened, said: bytes) -> bytes:
    reader, writer = connection
    writer.write(said)
    return await reader.readexactly(len(said))


async def is_reset(connection: Opened) -> bool:
    reader, _ = connection
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


def test_a_whole_proxy_passes_bytes_both_ways() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        connection = await echo.reached(through)
        assert await echo_of(connection, b"x" * 200_000) == b"x" * 200_000

    run(scenario)


def test_a_proxy_that_refuses_resets_what_is_open_and_what_is_new_until_it_is_healed() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        before = await echo.reached(through)
        assert await echo_of(before, b"one") == b"one"
        through.break_("refuses")
        assert await is_reset(before)
        assert await is_reset(await echo.reached(through))
        through.break_("none")
        after = await echo.reached(through)
        assert await echo_of(after, b"two") == b"two"

    run(scenario)


def test_bytes_that_stall_are_delivered_late_and_not_lost() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        before = await echo.reached(through)
        assert await echo_of(before, b"one") == b"one"
        through.break_("stalls")
        answer = asyncio.ensure_future(echo_of(before, b"late"))
        during = await echo.reached(through)
        other = asyncio.ensure_future(echo_of(during, b"new"))
        await asyncio.wait((answer, other), timeout=0.05)
        assert echo.got_bytes == 3
        through.break_("none")
        assert (await answer, await other) == (b"late", b"new")

    run(scenario)


def test_bytes_that_are_lost_on_the_way_never_arrive_and_their_connection_ends_with_the_fault() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        connection, idle = await echo.reached(through), await echo.reached(through)
        assert await echo_of(connection, b"one") == b"one"
        assert await echo_of(idle, b"two") == b"two"
        through.break_("requests are lost")
        connection[1].write(b"lost")
        while through.lost_bytes < 4:  # noqa: ASYNC110  # the proxy sets no event
            await asyncio.sleep(0)
        through.break_("none")
        assert await is_reset(connection)
        assert await echo_of(idle, b"more") == b"more"
        assert echo.got_bytes == 10

    run(scenario)


def test_of_what_is_lost_on_the_way_back_the_server_has_done_its_part() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        connection = await echo.reached(through)
        assert await echo_of(connection, b"one") == b"one"
        through.break_("answers are lost")
        connection[1].write(b"done")
        while through.lost_bytes < 4:  # noqa: ASYNC110  # the proxy sets no event
            await asyncio.sleep(0)
        assert echo.got_bytes == 7
        through.break_("none")
        assert await is_reset(connection)

    run(scenario)


def test_in_a_storm_the_next_request_is_answered_and_never_arrives() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        reader, writer = await echo.reached(through)
        assert await echo_of((reader, writer), b"GET /1 HTTP/1.1\r\n\r\n")
        arrived = echo.got_bytes
        through.break_("answers 503")
        writer.write(b"PUT /2 HTTP/1.1\r\ncontent-length: 3\r\n\r\n")
        assert await reader.readexactly(len(SLOW_DOWN)) == SLOW_DOWN
        writer.write(b"abc")
        writer.write_eof()
        assert await reader.read() == b""
        assert (echo.got_bytes, through.refused_requests) == (arrived, 1)

    run(scenario)


def test_the_rest_of_a_request_that_is_under_way_passes_a_storm() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        connection = await echo.reached(through)
        assert await echo_of(connection, b"PUT /1 HTTP/1.1\r\n\r\n")
        through.break_("answers 503")
        assert await echo_of(connection, b"its body") == b"its body"

    run(scenario)


@pytest.mark.parametrize("fault", ["none", "stalls", "requests are lost", "answers are lost", "answers 503"])
def test_a_proxy_ends_with_connections_open_whatever_its_fault(fault: Fault) -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        connection = await echo.reached(through)
        assert await echo_of(connection, b"one") == b"one"
        through.break_(fault)
        connection[1].write(b"two")
        await through.end()
        with suppress(ConnectionResetError):
            assert await connection[0].read() in (b"", b"two")

    run(scenario)


def test_a_slow_proxy_passes_all_of_it() -> None:
    async def scenario(echo: EchoServer, through: TcpProxy) -> None:
        through.delay_s = 0.01
        connection = await echo.reached(through)
        started_s = asyncio.get_running_loop().time()
        assert await echo_of(connection, b"slow") == b"slow"
        assert asyncio.get_running_loop().time() - started_s >= 0.02

    run(scenario)


def test_a_server_that_is_not_there_reads_as_a_reset() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with tcp_proxy(port) as through:
            echo = EchoServer()
            assert await is_reset(await echo.reached(through))
            await echo.close_clients()

    asyncio.run(scenario())
