"""Unary gRPC calls as bare frames of HTTP/2 (RFC 9113), for loads of thousands of small calls a second: gRPC's own client takes as
much of the machine as the servers that are measured.

    HEADERS (the same bytes for each call of a method) · DATA, end of stream ─▶
                               HEADERS · DATA · HEADERS, end of stream ◀─ answered; without DATA it was refused

Of headers only `grpc-message` is read, which says why a call was refused. Not kept: the window of a single stream, since messages
are small.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast
from urllib.parse import unquote

# The answer's message; or None, and what came in its place.
Reported = Callable[[bytes | None, str], None]

MESSAGE_BYTES_MAX: Final = 16_000
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER: Final = struct.Struct(">HBBBI")
_FIRST_WINDOW, _WINDOW_MAX = 65_535, 2**31 - 1
_CANCEL: Final = 8


class CallRefused(Exception):
    """What came in place of an answer."""


class Method(NamedTuple):
    headers: bytes
    timeout_s: float


class _Call(NamedTuple):
    give_up_s: float
    reported: Reported
    timeout_s: float


def method(path: str, *, timeout_s: float) -> Method:
    """A gRPC method, and how long a call may take. Its headers are literals that the server keeps no table of (RFC 7541)."""
    headers = b"\x83\x86"  # POST, http
    headers += b"\x04" + _text(path) + b"\x01" + _text("tidelog") + b"\x0f\x10" + _text("application/grpc")
    headers += b"\x00" + _text("te") + _text("trailers") + b"\x00" + _text("grpc-timeout") + _text(f"{round(timeout_s * 1000)}m")
    return Method(headers, timeout_s)


class UnaryConnection(asyncio.Protocol):
    """One connection, any number of calls at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._calls: dict[int, _Call] = {}
        """By stream. Those of one method give up in this order."""
        self._bodies: dict[int, bytes] = {}
        self._next_stream = 1
        self._window = _FIRST_WINDOW
        self._held: deque[bytes] = deque()
        """DATA frames that wait for room in the window."""

    def call(self, to: Method, message: bytes, reported: Reported) -> None:
        """`reported` is called once: with the answer, or in `give_up` when there is none in time, or when the connection ends."""
        assert len(message) <= MESSAGE_BYTES_MAX, "one frame"
        if self._transport is None or self._transport.is_closing():
            reported(None, "the connection has ended")
            return
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._calls[stream] = _Call(time.monotonic() + to.timeout_s, reported, to.timeout_s)
        self._transport.write(_frame(_HEADERS, _END_HEADERS, stream, to.headers))
        self._held.append(_frame(_DATA, _END_STREAM, stream, b"\0" + len(message).to_bytes(4) + message))
        self._send_held()

    async def asked(self, to: Method, message: bytes) -> bytes:
        """The answer. Raises CallRefused."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def reported(answer: bytes | None, instead: str) -> None:
            if answered.done():
                return
            if answer is None:
                answered.set_exception(CallRefused(instead))
            else:
                answered.set_result(answer)

        self.call(to, message, reported)
        return await answered

    def give_up(self) -> None:
        """What has not been answered in time. To be called now and then."""
        now_s = time.monotonic()
        overdue = [stream for stream, call in self._calls.items() if call.give_up_s <= now_s]
        for stream in overdue:
            call = self._calls[stream]
            self._finish(stream, None, f"no answer within {call.timeout_s:g} s")
            self._write(_frame(_RST_STREAM, 0, stream, _CANCEL.to_bytes(4)))

    def close(self) -> None:
        """Drops the calls that are still open without an answer."""
        self._calls.clear()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none of asyncio's classes
        room = (_WINDOW_MAX - _FIRST_WINDOW).to_bytes(4)  # answers are small: it lasts for the whole run
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW_UPDATE, 0, 0, room))

    def connection_lost(self, error: Exception | None) -> None:
        for stream in list(self._calls):
            self._finish(stream, None, f"the connection was lost: {error or 'the broker closed it'}")

    def data_received(self, data: bytes) -> None:
        self._received += data
        at = 0
        while len(self._received) - at >= _FRAME_HEADER.size:
            high, low, kind, flags, stream = _FRAME_HEADER.unpack_from(self._received, at)
            start, end = at + _FRAME_HEADER.size, at + _FRAME_HEADER.size + (high << 8 | low)
            if end > len(self._received):
                break
            self._take_in(kind, flags, stream, self._received[start:end])
            at = end
        del self._received[:at]

    def _take_in(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        if kind == _DATA:
            self._bodies[stream] = self._bodies.get(stream, b"") + payload
        elif kind == _HEADERS and flags & _END_STREAM:
            body = self._bodies.pop(stream, None)
            self._finish(stream, body and body[5:], f"refused: {_message_in(bytes(payload))}")
        elif kind == _RST_STREAM:
            self._finish(stream, None, f"the stream was ended with code {int.from_bytes(payload)}")
        elif kind == _GOAWAY:
            for open_stream in list(self._calls):
                self._finish(open_stream, None, f"the broker ends the connection: {bytes(payload[8:])!r}")
            self.close()
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
            self._send_held()
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._write(_frame(kind, _ACK, 0, bytes(payload) if kind == _PING else b""))

    def _finish(self, stream: int, answer: bytes | None, instead: str) -> None:
        self._bodies.pop(stream, None)
        if (call := self._calls.pop(stream, None)) is not None:
            call.reported(answer, instead)

    def _send_held(self) -> None:
        while self._held and len(self._held[0]) - _FRAME_HEADER.size <= self._window:
            frame = self._held.popleft()
            self._window -= len(frame) - _FRAME_HEADER.size
            self._write(frame)

    def _write(self, frames: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _message_in(headers: bytes) -> str:
    """gRPC's servers send it as a literal that is in no table, its octets as they are, percent-encoded."""
    _, found, value = headers.partition(b"grpc-message")
    if not found or not value or value[0] & 0x80:
        return "without a word"
    size_bytes, at = value[0] & 0x7F, 1
    if size_bytes == 0x7F:  # RFC 7541, 5.1: the rest follows, seven bits at a time
        for shift in range(0, 28, 7):
            size_bytes += (value[at] & 0x7F) << shift
            at += 1
            if not value[at - 1] & 0x80:
                break
    return unquote(value[at : at + size_bytes].decode("ascii", "replace"))


def _text(text: str) -> bytes:
    encoded = text.encode()
    assert len(encoded) < 0x7F, "a length of one byte"
    return bytes([len(encoded)]) + encoded
