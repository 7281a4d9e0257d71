"""Bodies on their way to HTTP readers: piece by piece, each when the one before was taken, at a least rate.

    bytes taken ▲        ╱ taken           cut off: no piece was taken for `pause_s`,
                │   ╭───╯    ╱ least       or less was taken than BYTES_PER_SECOND_MIN since `pause_s`
                │ ╭─╯      ╱
                └─────────┴──────▶ time
                       pause_s

Invariant: when the last piece is out, what is left in the connection's own buffer is below uvicorn's high water mark (64 KiB); so
the room of an answer may be given back then. A reader that vanishes ends the sending at once: uvicorn drops what comes after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from gateway.http.request import Disconnected, Headers, Message, Request
from gateway.records.response_budget import BYTES_PER_SECOND_MIN

PIECE_BYTES: Final = 64 << 10

log = logging.getLogger(__name__)


async def send_paced(request: Request, body: bytes, headers: Headers, *, pause_s: float, status: int = 200) -> None:
    """The status and the body, whole. Disconnected where the reader takes it too slowly: who serves the connection closes it."""
    headers.append((b"content-length", b"%d" % len(body)))
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await _send(request, chain((start,), _pieces(body), (_body(b"", more=False),)), pause_s=pause_s)


async def stream_paced(request: Request, chunk: bytes, *, pause_s: float) -> None:
    """One chunk of a stream that goes on: returns when it was taken. Disconnected as above."""
    await _send(request, chain(_pieces(chunk), (_body(b"", more=True),)), pause_s=pause_s)


async def _send(request: Request, messages: Iterable[Message], *, pause_s: float) -> None:
    """Sends one after the other; uvicorn takes each when the one before was taken but for what lies below its high water mark."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    bytes_taken = 0
    try:
        for message in messages:
            async with asyncio.timeout_at(pause_s + min(loop.time(), began_s + bytes_taken / BYTES_PER_SECOND_MIN)):
                await request.send(message)
            bytes_taken += len(message.get("body", b""))
    except TimeoutError:
        log.info("a reader took only %d bytes of its answer in %.1f s: cut off", bytes_taken, loop.time() - began_s)
        raise Disconnected from None


def _pieces(body: bytes) -> Iterator[Message]:
    for start in range(0, len(body), PIECE_BYTES):
        yield _body(body[start : start + PIECE_BYTES], more=True)


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}
