"""A TCP proxy on the loopback that a test can make lose what passes through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

CHUNK_BYTES = 64 << 10

Fault = Literal["none", "answers are lost", "requests are lost", "refuses"]


class TcpProxy:
    """Between clients and the server at 127.0.0.1:`to_port`."""

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self.fault: Fault = "none"
        """What is lost from now on, over connections that are open as well. `refuses` ends them, and new ones."""
        self.answered_bytes = 0
        """Passed on from the server to clients."""
        self.lost_bytes = 0
        self._to_port = to_port
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Resets every connection."""
        for writer in tuple(self._open):
            writer.transport.abort()

    def refuse(self) -> None:
        self.fault = "refuses"
        self.cut()

    async def end(self) -> None:
        """Refuses, and returns when every connection has ended."""
        self.refuse()
        if self._serving:
            await asyncio.wait(self._serving)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        if self.fault == "refuses":
            server_writer.transport.abort()
            writer.transport.abort()
            return
        self._open |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server_writer, "requests are lost"))
                pumps.create_task(self._pump(server_reader, writer, "answers are lost"))
        finally:
            self._open -= {writer, server_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost_by: Fault) -> None:
        with suppress(OSError):
            while piece := await reader.read(CHUNK_BYTES):
                if self.fault == lost_by:
                    self.lost_bytes += len(piece)
                    continue
                if lost_by == "answers are lost":
                    self.answered_bytes += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()


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
