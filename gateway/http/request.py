"""Reads and answers one HTTP request on the fast routes, within the broker's bounds.

It is plain ASGI without a framework's request object, so that a produce of 100 records costs only a few microseconds here.
Invariants: a body never exceeds `request_bytes_max`, and is read only after the log's buffer has room for it; of a body without a
length the buffer covers all but the newest chunk. Every fault of a request is found before anything is written.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from gateway.error_codes import BodyTooSlow, NotAcceptable, UnsupportedMediaType
from gateway.telemetry.request_context import TRACEPARENT_BYTES_MAX, sane_request_id
from metadata.errors import InvalidArgument, TooLarge, did_you_mean
from segments.byte_budget import Admission

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# The least rate of a body after the time that the settings allow for any body: it holds part of the buffer meanwhile.
BODY_BYTES_PER_SECOND_MIN: Final = 256 << 10
INT64_MAX: Final = 2**63 - 1
# The values of a query parameter, for Query.choice.
TRUE_OR_FALSE: Final = {"true": True, "false": False}


_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_Value = TypeVar("_Value")


class Disconnected(Exception):
    """Says that the client has disconnected, so that no answer is needed."""


async def run_watched(work: Awaitable[_Value], watch: Coroutine[Any, Any, None]) -> _Value:
    """Returns the result of `work`. If `watch` fails first, cancels `work` and raises that error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch)
            result = await work
            watching.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return result


def request_id_of(scope: Scope) -> str:
    """Returns the client's X-Request-Id if it is short and plain, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and (given := sane_request_id(value)):
            return given
    return os.urandom(16).hex()


def traceparent_of(scope: Scope) -> str:
    """Returns the client's traceparent (W3C Trace Context); empty if there is none, or if it is too long."""
    for name, value in scope["headers"]:
        if name == b"traceparent" and len(value) <= TRACEPARENT_BYTES_MAX:
            return str(value, "latin-1")
    return ""


class Request:
    """Holds a request whose route is known. ASGI's `send` and `receive` are public, since streams use them."""

    __slots__ = ("header_list", "headers", "method", "query_string", "receive", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.header_list: Headers = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(self.header_list)
        self.query_string: bytes = scope["query_string"]
        self.receive = receive
        self.send = send

    # ── the request ───────────────────────────────────────────────────────────────────────────────────────────────────

    def query(self, known: frozenset[str]) -> Query:
        """Returns the query parameters. Raises InvalidArgument for one that is not in `known`."""
        return Query(self.query_string, known)

    def single_header(self, header: bytes) -> bytes | None:
        """Returns the value of a header; None if it is absent. Raises InvalidArgument if the request has it twice."""
        if header not in self.headers:
            return None
        given = sum(name == header for name, _ in self.header_list)
        if given > 1:
            raise InvalidArgument(
                f"the request has {given} headers {header.decode('latin-1')}; it may have one", hint="Send the header once."
            )
        return self.headers[header]

    def media_type(self, known: Iterable[str]) -> str:
        """Returns the body's Content-Type without its parameters. Raises UnsupportedMediaType if it is not in `known`."""
        given = self.headers.get(b"content-type", b"").decode("latin-1")
        media_type = given.partition(";")[0].strip().lower()
        if media_type not in known:
            raise UnsupportedMediaType(
                f"a body of type {media_type or '(none)'} can't be read here", hint=f"Send Content-Type: {' or '.join(known)}."
            )
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedMediaType(
                "compressed bodies are not read",
                hint="Send a record batch (application/vnd.tidelog.record-batch) compressed inside.",
            )
        return media_type

    def accepted(self, offered: tuple[str, ...]) -> str:
        """Returns the preferred type of `offered`, by default the first (RFC 9110 §12.5.1). Raises NotAcceptable."""
        accept = self.headers.get(b"accept")
        if accept is None or accept == b"*/*":
            return offered[0]
        best, best_quality = None, 0.0
        ranges = [_media_range(part) for part in accept.decode("latin-1").split(",")]
        for media_type in offered:
            fits = [(specificity, quality) for pattern, specificity, quality in ranges if _matches(pattern, media_type)]
            quality = max(fits)[1] if fits else 0.0
            if quality > best_quality:
                best, best_quality = media_type, quality
        if best is None:
            raise NotAcceptable("none of the accepted types can be answered", hint=f"Accept one of {', '.join(offered)}.")
        return best

    def content_length(self, *, bytes_max: int) -> int | None:
        """Returns the announced length; None for a chunked body. Raises TooLarge before a byte of it is read."""
        given = self.headers.get(b"content-length")
        if given is None:
            return None if b"transfer-encoding" in self.headers else 0
        length = int(given)  # the HTTP parser has checked that these are digits
        if length > bytes_max:
            raise _body_too_large(bytes_max, length=length)
        return length

    async def body(self, admission: Admission | None, *, length: int | None, bytes_max: int, timeout_s: float) -> bytes:
        """Reads the whole body. The `admission` covers `length`, or grows with each chunk of a body without a length.

        Raises TooLarge, Throttled, BodyTooSlow, Disconnected.
        """
        chunks: list[bytes] = []
        received = 0
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(timeout_s + min(loop.time(), started_s + received / BODY_BYTES_PER_SECOND_MIN)):
                    message = await self.receive()
            except TimeoutError:
                raise BodyTooSlow(
                    f"only {received} bytes of the body came in {loop.time() - started_s:.1f} s", bytes_received=received
                ) from None
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk: bytes = message.get("body", b"")
            received += len(chunk)
            if received > bytes_max:
                raise _body_too_large(bytes_max)
            if admission is not None and length is None and chunk:
                admission.grow(len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def run_while_connected(self, work: Awaitable[_Value]) -> _Value:
        """Returns the result of `work`. If the client disconnects first, cancels `work` and raises Disconnected."""
        return await run_watched(work, self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        raise Disconnected

    # ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, status: int, body: bytes, headers: Headers) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def begin_stream(self, headers: Headers) -> None:
        """Begins an answer of unknown length; headers ask proxies not to buffer it."""
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def stream(self, chunk: bytes) -> None:
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class Query:
    """Holds query parameters by name. Raises InvalidArgument for unknown and repeated ones, so that no mistyped one is ignored."""

    def __init__(self, raw: bytes, known: frozenset[str]) -> None:
        self._values: dict[str, str] = {}
        if not raw:
            return
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
        except (UnicodeDecodeError, ValueError):
            raise InvalidArgument("the query string is not name=value&name=value in UTF-8, percent-encoded") from None
        for name, value in pairs:
            if name not in known:
                hint = did_you_mean(name, known) or (
                    f"This route has: {', '.join(sorted(known))}." if known else "This route has none."
                )
                raise InvalidArgument(f"{name[:60]!r} is not a query parameter of this route", hint=hint)
            if name in self._values:
                raise InvalidArgument(f"the query parameter {name} is given twice", hint="Give it once.")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        """Returns the value; empty if it is absent."""
        return self._values.get(name, "")

    def is_integer(self, name: str) -> bool:
        return _INTEGER.fullmatch(self._values.get(name, "")) is not None

    def integer(self, name: str, *, least: int, most: int) -> int | None:
        """Returns the value; None if it is absent. Raises InvalidArgument unless it is a whole number in [least, most]."""
        text = self._values.get(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise InvalidArgument(f"{name}={text[:60]}: must be a whole number from {least} to {most}")
        return int(text)

    def choice(self, name: str, choices: dict[str, _Value], *, or_else: str = "") -> _Value | None:
        """Returns the chosen value; None if it is absent. `or_else` names what else the caller takes, for the error."""
        text = self._values.get(name)
        if text is None:
            return None
        if text not in choices:
            raise InvalidArgument(f"{name}={text[:60]!r}: must be one of {', '.join([*choices, or_else] if or_else else choices)}")
        return choices[text]

    def timestamp_ms(self, name: str) -> int | None:
        """Returns milliseconds since 1970, from such a number or RFC 3339 with its offset; None if it is absent."""
        text = self._values.get(name)
        return None if text is None else parse_timestamp_ms(name, text)


def parse_timestamp_ms(name: str, text: str) -> int:
    """Returns milliseconds since 1970, from such a number or RFC 3339 with its offset. Raises InvalidArgument, with `name`."""
    if _INTEGER.fullmatch(text):
        if not 0 <= int(text) <= INT64_MAX:
            raise InvalidArgument(f"{name}={text[:60]}: must be a whole number from 0 to {INT64_MAX}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            f"{name}={text[:60]!r}: must be milliseconds since 1970, or RFC 3339 with its offset",
            hint="Write 2026-01-31T12:00:00Z; a + in a URL is written %2B.",
        ) from None
    return max(0, int(moment.timestamp() * 1000))


def _body_too_large(bytes_max: int, **details: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than request_bytes_max, {bytes_max} bytes",
        hint="Send fewer records per request, or start the broker with a larger --request-bytes-max.",
        bytes_max=bytes_max,
        **details,
    )


def _media_range(part: str) -> tuple[str, int, float]:
    """Returns the pattern, specificity (0 to 2) and quality of one element of Accept."""
    pattern, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                quality = float(parameter[2:])
            except ValueError:
                quality = 0.0
    return pattern, 0 if pattern == "*/*" else 1 if pattern.endswith("/*") else 2, quality


def _matches(pattern: str, media_type: str) -> bool:
    return pattern in {"*/*", media_type} or (pattern.endswith("/*") and media_type.startswith(pattern[:-1]))
