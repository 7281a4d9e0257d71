"""The HTTP door: uvicorn's protocol in the broker's own loop, without its server, its signal handlers and its ticking.

    start   listen
    stop    refuse new connections ─▶ end long polls and streams ─▶ answer what is in flight ─▶ up to the grace, then cut

Limits that uvicorn does not keep: the head of a request has a size (431) and a time to arrive in (408), and a client that takes
next to nothing of its answer for a while is cut off. So whoever sends headers without end, or nothing, or hardly reads, holds
neither memory nor a connection for long. Source: uvicorn/protocols/http/httptools_impl.py
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from functools import partial
from typing import Final

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.answer_room import BYTES_PER_SECOND_MIN
from gateway.doors import Broker, cannot_listen, host_and_port
from gateway.http_app import HttpApp
from gateway.http_request import Disconnected, Receive, Scope, Send
from gateway.long_waits import LongWaits

HEAD_BYTES_MAX: Final = 64 << 10
HEAD_TIMEOUT_S: Final = 10.0
WRITE_STALL_S: Final = 30.0
"""A client that takes less of its answer in this time than at the least rate of all readers (answer_room.py) is cut off, whatever
writes it. What is paced (http_pace.py) is cut off sooner."""
KEEP_ALIVE_S: Final = 75
"""How long an idle connection is kept: longer than the idle time of common load balancers (60 s), so that they close first."""
CONNECTIONS_MAX: Final = 10_000


class HttpServer:
    def __init__(self, broker: Broker) -> None:
        self._waits = LongWaits()
        self._app = HttpApp(broker, self._waits)
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._clock: asyncio.TimerHandle | None = None

    async def start(self, address: str) -> str:
        """Opens HOST:PORT (port 0: a free one) and answers where it is.

        Unavailable where the port is taken; InvalidArgument where it can't be opened for another reason.
        """
        host, port = host_and_port(address)
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
            limit_concurrency=CONNECTIONS_MAX,
        )
        config.load()
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return BoundedProtocol(config=config, server_state=self._state, app_state={}, _loop=loop)

        try:
            self._listener = await loop.create_server(connection, host.strip("[]"), port, backlog=2048)
        except OSError as error:
            raise cannot_listen(host, port, error, door="HTTP") from None
        self._tell_the_time()
        return f"{host}:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self, grace_s: float) -> None:
        """Returns when every answer is out, or after `grace_s`."""
        self._waits.stop()
        if self._listener is None:
            return
        self._listener.close()
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

    def _tell_the_time(self) -> None:
        """The Date header of all answers (RFC 9110 §6.6.1), once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._tell_the_time)


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose parser may not swallow bytes for long without anything to show for them.

    Its end is told at once to the request that is being answered.
    """

    _answered: RequestResponseCycle | None = None
    """The request that is being answered. Others may have come behind it on the same connection; uvicorn's `cycle` is the last."""
    _silent_bytes = 0
    """Received since the last head, piece of a body, or end of a request: a head, trailers, or nonsense."""
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn itself
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._stop_write_timer()
        self._tell_of_the_end()
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
        self._answered = cycle
        super()._start_asgi_task(cycle, partial(self._answer, app))

    async def _answer(self, app: ASGI3Application, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)  # type: ignore[arg-type]  # ASGI's messages are dicts here, TypedDicts there
        except Disconnected:
            self._tell_of_the_end()
            self.transport.abort()  # a polite end would keep what nobody takes until it is a stall

    def _tell_of_the_end(self) -> None:
        """To the request that is being answered: nobody reads its answer. uvicorn itself tells the last one that came."""
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

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
