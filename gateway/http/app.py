"""Routes every HTTP request, gives it its id, and answers its errors.

    POST /v1/topics/{t}/records                        http/records/produce.py   ┐ bare ASGI and msgspec: the fast routes
    GET  /v1/topics/{t}/partitions/{p}/records         http/records/fetch.py     │
    GET  /v1/topics/{t}/records                        http/records/fetch.py     ┘
    /v1/groups…                                        http/groups/routes.py
    /livez /readyz /startupz /metrics… /v1/cluster     status.py
    /console…                                          console/console.py     pages for a browser, where `console` is on
    everything else                                    http/admin/api.py       FastAPI, with the OpenAPI of all of them

The import of FastAPI and its models takes a third of a second of a core, half as long as all the rest. So the first request that
needs them loads them, and a broker that starts does not wait for them.

Invariants: every answer carries the request's id, and every refusal is problem+json. If the client has disconnected or reads too
slowly, Disconnected leaves the app, and the server closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from gateway.api import BrokerApi
from gateway.concurrency.offload import BoundedExecutor
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.error_codes import PATH_CHARACTERS_MAX, MethodNotAllowed, wire_codes
from gateway.http.groups.routes import HttpGroups
from gateway.http.guard import HttpGuard
from gateway.http.problem_details import problem, problem_headers
from gateway.http.records.fetch import HttpFetch
from gateway.http.records.produce import HttpProduce
from gateway.http.request import Disconnected, Message, Receive, Request, Scope, Send, request_id_of, traceparent_of
from gateway.http.status import HttpStatus
from gateway.net.host_check import HostCheck
from gateway.records.partitioning import check_utf8
from gateway.telemetry.request_context import RequestContext, begin_call, end_call, note_refusal
from metadata.errors import Denied, InvalidName, TidelogError, TooLarge, Unavailable

# How long the rest of a refused body is discarded: a client that is disconnected while it sends may never read the answer.
LINGER_S: Final = 2.0

# Names of groups may hold slashes.
_GROUPS: Final = (b"/v1/groups/", b"/console/groups/")
CONSOLE: Final = b"/console"
# Bounds of every body but those with records.
ADMIN_BODY_BYTES_MAX: Final = 1 << 20
ADMIN_BODY_TIMEOUT_S: Final = 10.0

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)


class Pages(Protocol):
    """Serves pages for browsers."""

    async def __call__(self, request: Request, scope: Scope, parts: list[str]) -> None:
        """Answers a request. `parts`: the path below CONSOLE, decoded."""
        ...


LoadPages = Callable[["HttpApp"], Pages]


class HttpApp:
    """Serves all HTTP routes of a broker as an ASGI application."""

    # Set by the server when it starts.
    hosts: HostCheck | None = None

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, load_pages: LoadPages | None = None) -> None:
        """`load_pages` loads what serves the paths below CONSOLE; None: nothing does."""
        self._fetch = HttpFetch(broker, waits)
        self._produce = HttpProduce(broker, self._fetch.budget)
        self._groups = HttpGroups(broker, waits, self._fetch.budget)
        self._status = HttpStatus(broker)
        self._broker = broker
        self._admin: Asgi | None = None
        self._load_pages = load_pages
        self._pages: Pages | None = None
        self._admin_thread = BoundedExecutor(1)
        self._guard = HttpGuard(broker.guard) if broker.guard is not None else None
        self._traffic = broker.metrics.traffic.http
        self._tracing = broker.tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = ResponseWriter(send, request_id_of(scope))
        call = RequestContext(self._traffic, answer.request_id, traceparent_of(scope))
        call.trace_with(self._tracing, scope["method"])
        token = begin_call(call)
        try:
            await self._respond(scope, receive, answer)
        finally:
            end_call(call, token)

    async def _respond(self, scope: Scope, receive: Receive, answer: ResponseWriter) -> None:
        try:
            if self.hosts is not None:
                self.hosts.check(scope["method"], scope["headers"])
            if self._load_pages is not None and _is_of_console(scope["raw_path"]):
                await self._show(self._load_pages, scope, receive, answer)
            elif self._guard is None:
                await self._route(scope, receive, answer)
            else:
                await self._guarded(self._guard, scope, receive, answer)
        except Disconnected:
            raise
        except TidelogError as error:
            if answer.begun and isinstance(error, Denied | Unavailable):
                raise Disconnected from None  # the client of this stream has lost its rights, or they are unknown
            await _refuse(error, scope, receive, answer)
        except Exception:
            log.exception("request failed method=%s path=%s request=%s", scope["method"], scope["path"], answer.request_id)
            ours = TidelogError("the broker failed on an internal error", hint="Look for the request id in the broker's log.")
            await _refuse(ours, scope, receive, answer)

    async def _guarded(self, guard: HttpGuard, scope: Scope, receive: Receive, answer: ResponseWriter) -> None:
        async def route(receive: Receive, send: Send) -> None:
            answer.use_send(send)
            await self._route(scope, receive, answer)

        parts = _path_parts(scope["raw_path"])
        await guard.answer(scope, receive, answer.send_raw, parts, answer.request_id, route)

    async def _route(self, scope: Scope, receive: Receive, answer: ResponseWriter) -> None:
        match _path_parts(scope["raw_path"]):
            case ["", "v1", "topics", topic, "records"]:
                request = Request(scope, receive, answer.send)
                if request.method == "POST":
                    await self._produce.produce(request, topic)
                elif request.method == "GET":
                    await self._fetch.topic(request, topic)
                else:
                    raise _not_allowed(request, "GET, POST", instead=f"POST /v1/topics/{topic}/records")
            case ["", "v1", "topics", topic, "partitions", partition, "records"]:
                request = Request(scope, receive, answer.send)
                if request.method != "GET":
                    raise _not_allowed(request, "GET", instead=f"POST /v1/topics/{topic}/records?partition={partition}")
                await self._fetch.partition(request, topic, partition)
            case ["", "v1", "groups", *path] if self._groups.routes(path):
                request = Request(scope, receive, answer.send)
                host, _ = scope.get("client") or ("", 0)
                await self._groups.answer(request, path, await _short_body(request), host)
            case ["", *path] if (handler := self._status.handler("/".join(path))) is not None:
                request = Request(scope, receive, answer.send)
                if request.method != "GET":
                    raise _not_allowed(request, "GET")
                await _short_body(request)
                await handler(request)
            case _:
                body = await _short_body(Request(scope, receive, answer.send))
                admin = self._admin if self._admin is not None else await self._admin_thread.run(self._load_admin_api)
                await admin(scope, _replay(body, receive), answer.send)

    async def _show(self, load_pages: LoadPages, scope: Scope, receive: Receive, answer: ResponseWriter) -> None:
        """Answers a request of the console. Its pages call this application again, as the reader: the guard admits these calls."""
        pages = self._pages if self._pages is not None else await self._admin_thread.run(lambda: self._loaded(load_pages))
        await pages(Request(scope, receive, answer.send), scope, _path_parts(scope["raw_path"])[2:])

    def _loaded(self, load_pages: LoadPages) -> Pages:
        """Loads the console once, however many requests wait: without authentication each console has a secret of its own."""
        if self._pages is None:
            self._pages = load_pages(self)
        return self._pages

    def _load_admin_api(self) -> Asgi:
        """Loads FastAPI, in a thread of its own, so that other requests do not wait."""
        if self._admin is None:
            from gateway.http.admin.api import admin_api

            self._admin = admin_api(self._broker)
        return self._admin


class ResponseWriter:
    """Sends the answer of one request: adds the request's id, and notes in `begun` whether the answer has begun."""

    __slots__ = ("_send", "begun", "request_id")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.begun = False

    @property
    def send_raw(self) -> Send:
        return self._send

    def use_send(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        await self._send(message)


async def _refuse(error: TidelogError, scope: Scope, receive: Receive, answer: ResponseWriter) -> None:
    """Answers the error. The body of a client that still sends is discarded for LINGER_S before the connection closes."""
    if answer.begun:
        raise error
    note_refusal(error)
    status = wire_codes(error).http
    body = problem(error, status=status, path=scope["path"], request_id=answer.request_id)
    headers = [*problem_headers(error, status=status), (b"content-length", b"%d" % len(body))]
    still_sending = status in {408, 413}
    if still_sending:
        headers.append((b"connection", b"close"))
    await answer.send({"type": "http.response.start", "status": status, "headers": headers})
    await answer.send({"type": "http.response.body", "body": body, "more_body": still_sending})
    if still_sending:
        try:
            async with asyncio.timeout(LINGER_S):
                while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await answer.send({"type": "http.response.body", "body": b""})


def _is_of_console(raw_path: bytes) -> bool:
    return raw_path == CONSOLE or raw_path.startswith(CONSOLE + b"/")


async def _short_body(request: Request) -> bytes:
    """Reads the body of a request without records, before a framework sees it. Raises TooLarge, BodyTooSlow, InvalidArgument."""
    try:
        length = request.content_length(bytes_max=ADMIN_BODY_BYTES_MAX)
        if length == 0:
            return b""
        request.media_type(("application/json",))
        body = await request.body(None, length=length, bytes_max=ADMIN_BODY_BYTES_MAX, timeout_s=ADMIN_BODY_TIMEOUT_S)
    except TooLarge:
        raise TooLarge(
            f"the body is larger than {ADMIN_BODY_BYTES_MAX} bytes, the most for anything but records",
            hint="Records go to POST /v1/topics/TOPIC/records.",
        ) from None
    check_utf8(body)
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that yields the body at once, then the messages that follow (a disconnect)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _path_parts(raw_path: bytes) -> list[str]:
    """Splits the path at its slashes and decodes it.

    Raises InvalidName for bytes that are not UTF-8, and for a name with a slash, except names of groups and their members.
    """
    if b"%" not in raw_path:
        return raw_path.decode("ascii").split("/")
    parts = [unquote_to_bytes(part) for part in raw_path.split(b"/")]
    try:
        if raw_path.startswith(_GROUPS) or not any(b"/" in part for part in parts):
            return [str(part, "utf-8") for part in parts]
    except UnicodeDecodeError:
        pass
    raise InvalidName("a name in the path holds a slash, or bytes that are not UTF-8")


def _not_allowed(request: Request, allow: str, *, instead: str = "") -> MethodNotAllowed:
    """Returns the error of an unsupported method. `instead` is the request that produces records, for the hint."""
    hint = (
        f"Produce with {instead[:PATH_CHARACTERS_MAX]}."
        if instead and request.method in {"POST", "PUT"}
        else f"Supported: {allow}."
    )
    return MethodNotAllowed(f"{request.method} is not supported here", hint=hint, allow=allow)
