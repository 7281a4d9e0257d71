"""Load over HTTP/1.1: one ready request, sent over kept-alive connections; of each answer only its status and its end are read.

A real HTTP client would cost more than the broker does. Runs in the client's process (load.py).
"""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.load import Load, Outcome
from bench.thrown_away_tls import ThrownAwayTls, TlsFiles

_END_OF_HEAD = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def post_request(url: str, path: str, body: bytes, media_type: str, *, key: str = "") -> bytes:
    """`key`: the API key that it shows."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    return f"{head}{shown}\r\n".encode() + body


class _Poster(asyncio.Protocol):
    """One connection. `window` requests are under way on it: the server answers them one after the other."""

    def __init__(self, request: bytes, load: Load, pace_s: float = 0.0, thrown_away: ThrownAwayTls | None = None) -> None:
        """`pace_s`: the least time from one request to the next."""
        self._pace_s = pace_s
        self._thrown_away = thrown_away
        self._sent_s = 0.0
        self._request = request
        self._load = load
        self._transport: asyncio.WriteTransport | None = None
        self._stops_at_s = 0.0
        self._sent = self.answered = 0
        self.first_answer_s = 0.0
        self._received = bytearray()
        self._body_left = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the broker hung up"))

    def start(self) -> None:
        self._stops_at_s = time.perf_counter() + self._load.seconds
        for _ in range(self._load.window):
            self._send()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        while data:
            if not self._body_left:
                self._received += data
                end = self._received.find(_END_OF_HEAD)
                if end < 0:
                    return
                head, data = bytes(self._received[: end + 2]), bytes(self._received[end + len(_END_OF_HEAD) :])
                self._received.clear()
                self._body_left = self._length_of_body(head, data)
            taken = min(len(data), self._body_left)
            self._body_left -= taken
            data = data[taken:]
            if not self._body_left:
                self._answered()

    def _length_of_body(self, head: bytes, beginning: bytes) -> int:
        found = _CONTENT_LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or found is None or not int(found[1]):
            self._fail(f"the broker answered {head.splitlines()[0].decode()}: {beginning[:500].decode(errors='replace')}")
            return -1
        return int(found[1])

    def _answered(self) -> None:
        self.answered += 1
        self.first_answer_s = self.first_answer_s or time.perf_counter()
        if time.perf_counter() < self._stops_at_s:
            self._send_in_time()
        elif self.answered == self._sent and not self.done.done():
            self.done.set_result(None)

    def _send_in_time(self) -> None:
        wait_s = self._sent_s + self._pace_s - time.perf_counter()
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_s = time.perf_counter()
        self._sent += 1
        if self._thrown_away is not None:
            self._thrown_away.encrypt(self._request)
        self._transport.write(self._request)

    def _fail(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(message))
        self.close()


def post(
    url: str,
    request: bytes,
    load: Load,
    *,
    ca: Path | None = None,
    requests_per_second: float = 0.0,
    as_with_tls: TlsFiles | None = None,
) -> Outcome:
    """Sends the same request over and over; with `ca`, over TLS; with `as_with_tls`, in plain, at the cost of TLS (see
    thrown_away_tls.py). Raises when an answer is not 200.

    All connections together send at most `requests_per_second`, unless it is 0.

    A failure of one partition hides in a 200: compare the topic's end with what was answered.
    """

    async def run() -> Outcome:
        host, _, port = urlsplit(url).netloc.partition(":")
        loop = asyncio.get_running_loop()
        pace_s = load.connections / requests_per_second if requests_per_second else 0.0
        context = ssl.create_default_context(cafile=ca) if ca is not None else None
        thrown_away = ThrownAwayTls(as_with_tls) if as_with_tls is not None else None
        posters: list[_Poster] = []
        for _ in range(load.connections):
            _, poster = await loop.create_connection(
                lambda: _Poster(request, load, pace_s, thrown_away), host, int(port), ssl=context
            )
            posters.append(poster)
        started_s = time.perf_counter()
        for poster in posters:
            poster.start()
        async with asyncio.timeout(load.seconds + 60):
            await asyncio.gather(*(poster.done for poster in posters))
        ended_s = time.perf_counter()
        for poster in posters:
            poster.close()
        first_answer_s = min(poster.first_answer_s for poster in posters)
        return Outcome(sum(poster.answered for poster in posters), started_s, first_answer_s, ended_s)

    return uvloop.run(run())


def post_all(url: str, path: str, bodies: Iterable[bytes]) -> None:
    """Posts JSON bodies one after the other. Raises when an answer is not 200, or names an error."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        for body in bodies:
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200 or b'"error"' in said:
                raise RuntimeError(f"POST {path} is answered with {answer.status}: {said[:500].decode(errors='replace')}")
    finally:
        connection.close()
