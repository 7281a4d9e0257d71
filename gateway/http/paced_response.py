"""Sends answers to HTTP clients piece by piece, and disconnects clients that read below a least rate.

    bytes read  ▲        ╱ read            disconnected: no piece was read for `pause_s`,
                │   ╭───╯    ╱ least       or less was read than BYTES_PER_SECOND_MIN since `pause_s`
                │ ╭─╯      ╱
                └─────────┴──────▶ time
                       pause_s

Invariant: once the last piece is sent, the connection's own buffer holds less than uvicorn's high-water mark (64 KiB), so the
answer's reservation may be released. When a client disconnects, sending ends at once, because uvicorn drops what follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from gateway.http.request import Disconnected, Headers, Message, Request
from gateway.records.response_budget import BYTES_PER_SECOND_MIN

# uvicorn's high-water mark.
PIECE_BYTES: Final = 64 << 10

log = logging.getLogger(__name__)


async def send_paced(request: Request, body: bytes, headers: Headers, *, pause_s: float, status: int = 200) -> None:
    """Sends a whole answer. Raises Disconnected if the client reads too slowly; the server then closes the connection."""
    headers.append((b"content-length", b"%d" % len(body)))
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await _send(request, chain((start,), _pieces(body), (_body(b"", more=False),)), pause_s=pause_s)


async def stream_paced(request: Request, chunk: bytes, *, pause_s: float) -> None:
    """Sends one chunk of a stream; returns when the client has read it. Raises Disconnected, as send_paced."""
    await _send(request, chain(_pieces(chunk), (_body(b"", more=True),)), pause_s=pause_s)


async def _send(request: Request, messages: Iterable[Message], *, pause_s: float) -> None:
    """Sends the messages in order; uvicorn accepts each once less than its high-water mark is unread."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    bytes_taken = 0
    try:
        for message in messages:
            async with asyncio.timeout_at(pause_s + min(loop.time(), began_s + bytes_taken / BYTES_PER_SECOND_MIN)):
                await request.send(message)
            bytes_taken += len(message.get("body", b""))
    except TimeoutError:
        log.info("slow client disconnected bytes_read=%d seconds=%.1f", bytes_taken, loop.time() - began_s)
        raise Disconnected from None


def _pieces(body: bytes) -> Iterator[Message]:
    for start in range(0, len(body), PIECE_BYTES):
        yield _body(body[start : start + PIECE_BYTES], more=True)


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}
