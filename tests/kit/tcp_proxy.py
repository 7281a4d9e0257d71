"""A TCP proxy on the loopback that a test can break: between clients and etcd, or between one broker and the bucket.

    fault               connections that are open              new ones
    none                pass bytes, `delay_s` later            the same
    refuses             are reset                              are reset
    stalls              hold their bytes until it is over      are taken, and hold theirs
    requests are lost   take bytes and pass on none; reset     the same
    answers are lost    when it is over                        the same
    answers 503         answer the next HTTP request, which    the same
                        the server never sees

What stalls is delivered late, as a network does that was cut for a while: so a PUT of a broker that was given up arrives at last.
What is lost was cut in one direction: the server did what it was asked, and no client hears of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

CHUNK_BYTES = 64 << 10
# How long the body of a request that was answered is still taken.
DISCARD_S = 2.0

Fault = Literal["none", "refuses", "stalls", "requests are lost", "answers are lost", "answers 503"]

_VERBS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")
_SLOW_DOWN_XML = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Slow down.</Message></Error>'
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (
    len(_SLOW_DOWN_XML),
    _SLOW_DOWN_XML,
)


class TcpProxy:
    """Between clients and the server at 127.0.0.1:`to_port`. `tcp_proxy` makes one."""

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.answered_bytes = 0
        """Passed on from the server to clients."""
        self.lost_bytes = 0
        """Since the last fault began."""
        self.refused_requests = 0
        """Answered with 503."""
        self._to_port = to_port
        self._fault: Fault = "none"
        self._passing = asyncio.Event()
        self._passing.set()
        self._serving: set[asyncio.Task[None]] = set()
        self._with_losses: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fault(self) -> Fault:
        return self._fault

    def break_(self, fault: Fault) -> None:
        """From now on, over connections that are open as well; "none" heals."""
        self._fault = fault
        if fault == "stalls":
            self._passing.clear()
        else:
            self._passing.set()
        if fault == "refuses":
            self.reset()
        elif fault == "none":
            for task in self._with_losses:
                task.cancel()
        else:
            self.lost_bytes = 0

    def reset(self) -> None:
        """Resets every connection that is open."""
        for task in self._serving:
            task.cancel()

    async def end(self) -> None:
        """Refuses, and returns when every connection has ended."""
        self.break_("refuses")
        for _ in range(10):  # those that are just being accepted
            await asyncio.sleep(0)
        while self._serving:
            await asyncio.wait(self._serving)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(self._with_losses.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # a task that is cancelled before it begins does nothing itself

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        if self._fault == "refuses":
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as pumps:
                requests = pumps.create_task(self._requests(connection, reader, writer, server_writer))
                answers = pumps.create_task(self._answers(connection, server_reader, writer))
                await asyncio.wait((requests, answers), return_when=asyncio.FIRST_COMPLETED)
                requests.cancel()
                answers.cancel()
        finally:
            server_writer.transport.abort()

    async def _requests(
        self,
        connection: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(CHUNK_BYTES):
                if self._fault == "requests are lost":
                    self._lose(connection, piece)
                elif self._fault == "answers 503" and piece.startswith(_VERBS):
                    self.refused_requests += 1
                    writer.write(SLOW_DOWN)
                    await writer.drain()
                    await _discard(reader)
                    return
                else:
                    await self._pass(piece, server_writer)

    async def _answers(
        self, connection: asyncio.Task[None], server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while piece := await server_reader.read(CHUNK_BYTES):
                if self._fault == "answers are lost":
                    self._lose(connection, piece)
                else:
                    self.answered_bytes += len(piece)
                    await self._pass(piece, writer)
            await writer.drain()

    def _lose(self, connection: asyncio.Task[None], piece: bytes) -> None:
        """After a loss the connection makes no sense any more, so it does not outlive the fault."""
        self.lost_bytes += len(piece)
        self._with_losses.add(connection)

    async def _pass(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._passing.wait()
        writer.write(piece)
        await writer.drain()


async def _discard(reader: asyncio.StreamReader) -> None:
    """Closing on unread bytes would reset the connection, and the answer with it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while await reader.read(CHUNK_BYTES):
                pass


@asynccontextmanager
async def tcp_proxy(to_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(to_port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
