"""Calls the HTTP API of this broker from within it, with the credentials of one reader.

    ApiClient.get("v1", "topics") ─▶ an ASGI scope ─▶ HttpApp: guard, quotas, audit log, route ─▶ JSON ─▶ dict, or ApiRefused

No socket is used. Each call runs in a task of its own, so the call of the page and the calls of its data have a context each.
Invariant: a call has exactly the rights that the reader's own call would have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from gateway.http.request import Disconnected

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
QueryValue = str | int | None

JSON: Final = b"application/json"
# Parts of a streamed answer that wait for the page.
PARTS_MAX: Final = 4


class ApiRefused(Exception):
    """Says that the API refused a call: `problem` has the members of problem+json (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('code', '')}")
        self.status = status
        self.problem = problem

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))

    @property
    def message(self) -> str:
        return str(self.problem.get("detail") or self.problem.get("title") or "the broker gave no reason")

    @property
    def hint(self) -> str:
        return str(self.problem.get("hint", ""))


class ApiClient:
    """Calls the API for one request of a reader."""

    def __init__(self, app: Asgi, scope: Scope, credentials: str) -> None:
        """`scope` is the reader's request: its address, host and client certificate hold for the calls as well."""
        self._app = app
        self._scope = scope
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        self._headers = [(b"host", host)]
        if credentials:
            self._headers.append((b"authorization", credentials.encode("latin-1")))

    def with_credentials(self, credentials: str) -> ApiClient:
        """Returns a client for the same request with other credentials."""
        return ApiClient(self._app, self._scope, credentials)

    async def get(self, *path: str, **query: QueryValue) -> Any:
        """Returns the JSON of an answer. Raises ApiRefused."""
        return await self.call("GET", *path, query=query)

    async def call(self, method: str, *path: str, query: Mapping[str, QueryValue] | None = None, body: object = None) -> Any:
        """Returns the JSON of an answer; None if it has no body. Raises ApiRefused."""
        content = b"" if body is None else msgspec.json.encode(body)
        status, answer = await self._answered(self._request(method, path, query or {}, content, accept=JSON), content)
        if status >= 400:
            raise ApiRefused(status, _problem(answer))
        return msgspec.json.decode(answer) if answer else None

    @asynccontextmanager
    async def stream(self, *path: str, accept: str, **query: QueryValue) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens a streamed answer, and ends it with the block. Raises ApiRefused.

        At most PARTS_MAX parts wait for the reader: then the stream waits as well.
        """
        parts: asyncio.Queue[bytes | None] = asyncio.Queue(PARTS_MAX)
        began: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()

        async def receive() -> Message:
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not began.done():
                    began.set_result(message["status"])
                return
            if message.get("body"):
                await parts.put(message["body"])
            if not message.get("more_body", False):
                await parts.put(None)

        async def read() -> AsyncIterator[bytes]:
            while (part := await parts.get()) is not None:
                yield part

        async def run() -> None:
            try:
                await self._app(self._request("GET", path, query, b"", accept=accept.encode()), _after_body(b"", receive), send)
            except Disconnected:
                pass  # the page has left, or the reader has lost the right to read on
            finally:
                if not began.done():
                    began.set_result(500)
                if not ended.is_set():
                    await parts.put(None)

        running = asyncio.create_task(run())
        try:
            if await began >= 400:
                raise ApiRefused(began.result(), _problem(b"".join([part async for part in read()])))
            yield read()
        finally:
            ended.set()
            running.cancel()
            await asyncio.wait((running,))
        if not running.cancelled():
            running.result()  # raises what the stream failed of

    def _request(
        self, method: str, path: tuple[str, ...], query: Mapping[str, QueryValue], content: bytes, *, accept: bytes
    ) -> Scope:
        raw_path = "/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        headers = [*self._headers, (b"accept", accept)]
        if content:
            headers += [(b"content-type", JSON), (b"content-length", b"%d" % len(content))]
        return {
            **self._scope,
            "method": method,
            "path": "/" + "/".join(path),
            "raw_path": raw_path.encode("ascii"),
            "query_string": urlencode(given).encode("ascii"),
            "headers": headers,
        }

    async def _answered(self, request: Scope, content: bytes) -> tuple[int, bytes]:
        status = 0
        parts: list[bytes] = []

        async def never_disconnects() -> Message:
            await asyncio.Event().wait()  # the page's own connection decides how long the call lasts
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("body"):
                parts.append(bytes(message["body"]))

        async def run() -> None:
            await self._app(request, _after_body(content, never_disconnects), send)

        await asyncio.create_task(run())
        return status, b"".join(parts)


def _after_body(content: bytes, receive: Callable[[], Awaitable[Message]]) -> Callable[[], Awaitable[Message]]:
    """Returns a `receive` that yields the body of a request first."""
    began = False

    async def received() -> Message:
        nonlocal began
        if not began:
            began = True
            return {"type": "http.request", "body": content, "more_body": False}
        return await receive()

    return received


def _problem(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return found
