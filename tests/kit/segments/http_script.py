"""An HTTP server on the loopback that answers as a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    # Names in lower case.
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class HangUp(Exception):
    """Raised by a handler: the connection is reset, without an answer."""


Handler = Callable[[Request], Awaitable[Answer]]


class HttpScript:
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[Request] = []
        self.connections = 0
        self.endpoint_url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                request = await _read_request(reader)
                self.requests.append(request)
                answer = await self.handler(request)
                head = {"Content-Length": str(len(answer.body)), **answer.headers}
                lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in head.items())]
                writer.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
                await writer.drain()
        except HangUp:
            writer.transport.abort()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def http_script(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpScript]:
    script = HttpScript(handler)
    conversations: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        try:
            await script.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            conversations.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    scheme = "https" if tls else "http"
    script.endpoint_url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        for task in list(conversations):
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
        await server.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)
