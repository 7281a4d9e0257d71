"""Runs the HTTP listener: uvicorn's protocol in the broker's own event loop, without uvicorn's server and signal handlers.

    start   listen
    stop    refuse new connections ─▶ end long polls and streams ─▶ answer requests in flight, for the grace ─▶ close

It adds limits that uvicorn lacks. The head of a request has a maximal size (431) and a time limit (408). A client that reads its
answer too slowly is disconnected. So idle clients and endless headers hold neither memory nor connections for long.

Connections are bounded in all and by address (net/connection_limiter.py). One too many gets 429 for every request, except that a
probe gets the broker's status, because a kubelet kills a broker that does not answer its probes. With TLS, net/tls/listener.py
accepts. If clients must have certificates, one without gets 401; probes (/livez, /readyz, /startupz) get the status alone, since a
kubelet has no certificate.
Source: uvicorn/protocols/http/httptools_impl.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.access.guard import AccessGuard
from gateway.access.permissions import METRICS_PATHS, http_route
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.error_codes import wire_codes
from gateway.http.app import HttpApp, LoadPages
from gateway.http.guard import origin_of
from gateway.http.problem_details import problem, problem_headers
from gateway.http.request import Disconnected, Message, Receive, Scope, Send, request_id_of
from gateway.net.connection_limiter import ConnectionLimiter, ConnectionSlot
from gateway.net.host_check import HostCheck
from gateway.net.ports import BACKLOG, ReservedPort
from gateway.net.tls.client_subject import STATE_KEY, subject_of_der
from gateway.net.tls.listener import TlsListener
from gateway.net.tls.settings import is_loopback
from gateway.records.response_budget import BYTES_PER_SECOND_MIN
from metadata.errors import TidelogError, Unauthenticated

if TYPE_CHECKING:
    from gateway.net.tls.identity import TlsReloader

# Bounds of the head of a request.
HEAD_BYTES_MAX: Final = 64 << 10
HEAD_TIMEOUT_S: Final = 10.0
# A client that reads less than BYTES_PER_SECOND_MIN (records/response_budget.py) for this long is disconnected, whatever writes its
# answer. Paced answers (paced_response.py) have a shorter limit.
WRITE_STALL_S: Final = 30.0
# Received bytes of a connection that wait to be decrypted; asyncio's default is 512 KiB.
TLS_UNREAD_BYTES_MAX: Final = 128 << 10
PROBES: Final = frozenset({"/livez", "/readyz", "/startupz"})
# How long an idle connection is kept: longer than the idle time of common load balancers (60 s), so that they close first.
KEEP_ALIVE_S: Final = 75
_SHOW_CERTIFICATE: Final = "Present one: cert_file and key_file (--cert-file, --key-file); curl --cert FILE --key FILE."

log = logging.getLogger(__name__)


class HttpServer:
    """Listens for HTTP, with or without TLS, and serves HttpApp on each connection."""

    def __init__(
        self,
        broker: BrokerApi,
        tls: TlsReloader | None = None,
        *,
        metrics_open: bool = False,
        allowed_hosts: Collection[str] = (),
        load_pages: LoadPages | None = None,
    ) -> None:
        """`metrics_open` serves /metrics to clients without a certificate. `allowed_hosts` is as in net/host_check.py, `load_pages`
        as in app.py.
        """
        self._allowed_hosts = allowed_hosts
        self._open_paths = METRICS_PATHS if metrics_open else frozenset()
        self._waits = InterruptibleWaits()
        self._app = HttpApp(broker, self._waits, load_pages)
        self._guard = broker.guard
        self._state = ServerState()
        self._tls = tls
        # Without TLS: one server for each address of the host.
        self._listeners: list[asyncio.Server] = []
        # With TLS: the task that accepts connections.
        self._accepting: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        settings = broker.settings
        self.connections = ConnectionLimiter(settings.http_connections_max, settings.http_connections_per_address_max)

    async def start(self, port: ReservedPort) -> str:
        """Listens at the reserved port and returns its address. Raises as take_port (net/ports.py)."""
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        loop = asyncio.get_running_loop()

        def connection(slot: ConnectionSlot | None = None) -> asyncio.Protocol:
            protocol = BoundedProtocol(config=config, server_state=self._state, app_state={}, _loop=loop)
            protocol.slot, protocol.limiter = slot, self.connections
            protocol.open_paths, protocol.guard = self._open_paths, self._guard
            protocol.certificate_required = self._tls is not None and self._tls.requires_certificate
            return protocol

        self._app.hosts = HostCheck(
            allowed=self._allowed_hosts,
            is_loopback=is_loopback(port.address),
            is_tls=self._tls is not None,
            asks_for_credentials=self._guard is not None,
        )
        sockets = port.listen()
        if self._tls is None:
            self._listeners = [await loop.create_server(connection, sock=each, backlog=BACKLOG) for each in sockets]
        else:
            tls = self._tls
            listener = TlsListener(sockets, lambda: tls.context, connection, self.connections)
            self._accepting = loop.create_task(listener.run(), name="HTTP with TLS")  # until `stop`
            self._accepting.add_done_callback(_log_accept_failure)
        self._refresh_date()
        return port.address

    async def stop(self, grace_s: float) -> None:
        """Stops listening; returns when every answer is sent, or after `grace_s`."""
        self._waits.stop()
        for listener in self._listeners:
            listener.close()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)
        cut = list(self._state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=1.0)
        for connection in list(self._state.connections):
            connection.transport.close()
        if self._clock is not None:
            self._clock.cancel()

    def _refresh_date(self) -> None:
        """Updates the Date header of all answers (RFC 9110 §6.6.1) once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._refresh_date)


class BoundedProtocol(HttpToolsProtocol):
    """Serves one connection, within the bounds of its head and of its rate of reading.

    When the connection ends, the request that is being answered learns it at once.
    """

    # The request that is being answered; later ones may be pipelined behind it. uvicorn's `cycle` is the last of them.
    _current_cycle: RequestResponseCycle | None = None
    # Bytes received since the parser last completed a head, a piece of a body, or a request.
    _silent_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    # Taken before or when the connection is made.
    slot: ConnectionSlot | None = None
    limiter: ConnectionLimiter
    certificate_required = False
    # Records clients without a certificate; None without authentication.
    guard: AccessGuard | None = None
    open_paths: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn itself
        super().connection_made(transport)
        if self.slot is None:
            self.slot = self.limiter.take(self.client[0] if self.client else "")
        if self.slot is None:
            transport.abort()
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            limited = cast(Any, transport)
            limited.set_read_buffer_limits(high=TLS_UNREAD_BYTES_MAX, low=TLS_UNREAD_BYTES_MAX // 2)
            if der := tls.getpeercert(binary_form=True):
                self.app_state[STATE_KEY] = subject_of_der(der)  # uvicorn copies it into the scope of each request
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.slot is not None:
            self.slot.give_back()
        self._head_arrived()
        self._stop_write_timer()
        self._notify_disconnect()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._watch_writing(self.transport.get_write_buffer_size())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._silent_bytes += len(data)
        super().data_received(data)
        if self._silent_bytes > HEAD_BYTES_MAX:
            self._refuse(b"431 Request Header Fields Too Large", b"The head of a request may have 64 KiB.\n")

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        self._head_arrived()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current_cycle = cycle
        refusal: TidelogError | None = self.slot.refusal if self.slot is not None else None
        has_no_certificate = self.certificate_required and STATE_KEY not in self.app_state
        if cycle.scope["path"] in PROBES and (refusal is not None or has_no_certificate):
            app, refusal = partial(_status_alone, app, last=refusal is not None), None
        elif refusal is None and has_no_certificate and cycle.scope["path"] not in self.open_paths:
            refusal = Unauthenticated("this broker requires a client certificate", hint=_SHOW_CERTIFICATE)
        if refusal is not None:
            super()._start_asgi_task(cycle, partial(_refuse_connection, refusal, self.guard))
        else:
            super()._start_asgi_task(cycle, partial(self._answer, app))

    async def _answer(self, app: ASGI3Application, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)  # type: ignore[arg-type]  # ASGI's messages are dicts here, TypedDicts there
        except Disconnected:
            self._notify_disconnect()
            self.transport.abort()  # an orderly close would keep the unread bytes until WRITE_STALL_S

    def _notify_disconnect(self) -> None:
        """Sends a disconnect to the request that is being answered; uvicorn sends it only to the last one received."""
        if self._current_cycle is not None and not self._current_cycle.response_complete:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(b"408 Request Timeout", b"The head of the request did not come in time.\n")

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_writing(self, bytes_left: int) -> None:
        self._write_timer = self.loop.call_later(WRITE_STALL_S, self._writing_is_slow, bytes_left)

    def _writing_is_slow(self, bytes_before: int) -> None:
        bytes_left = self.transport.get_write_buffer_size()
        if bytes_before - bytes_left >= WRITE_STALL_S * BYTES_PER_SECOND_MIN:
            self._watch_writing(bytes_left)
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self, status: bytes, body: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            head = b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


def _log_accept_failure(accepting: asyncio.Task[None]) -> None:
    if not accepting.cancelled() and (error := accepting.exception()) is not None:
        log.critical("HTTP listener stopped accepting connections", exc_info=error)


async def _status_alone(app: ASGI3Application, scope: Scope, receive: Receive, send: Send, *, last: bool) -> None:
    """Sends the status of the app's answer without its body. `last` closes the connection after it."""
    headers = [(b"content-length", b"0"), *([(b"connection", b"close")] if last else [])]

    async def send_status(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send({**message, "headers": headers})
        elif not message.get("more_body", False):
            await send({"type": "http.response.body", "body": b""})

    await app(scope, receive, send_status)  # type: ignore[arg-type]  # as in _answer


async def _refuse_connection(refusal: TidelogError, guard: AccessGuard | None, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers the first request of a refused connection with the refusal, and closes the connection."""
    status = wire_codes(refusal).http
    request_id = request_id_of(scope)
    if guard is not None and isinstance(refusal, Unauthenticated):
        route = http_route(scope["method"], scope["path"].split("/"))
        guard.record_refused(None, refusal, origin_of(scope, route, request_id))
    body = problem(refusal, status=status, path=scope["path"], request_id=request_id)
    headers = [
        *problem_headers(refusal, status=status),
        (b"x-request-id", request_id.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
