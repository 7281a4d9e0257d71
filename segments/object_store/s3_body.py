"""The body of a PUT as the buffers that it is made of, handed to the socket without joining them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from segments.object_store.interface import Buffer

WRITE_BYTES_MIN = 1 << 16
"""Smaller buffers are joined up to this size: each write may be a system call."""


class S3Body(Payload):
    """aiohttp's kind of body, which botocore passes on as it is.

    It has no `read`, so that botocore does not ask the server's leave first (Expect: 100-continue, one round trip more). It
    calls itself consumed once it is being written, so that aiohttp does not send it again by itself when a connection breaks.
    """

    _autoclose = True

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__(buffers)
        self._buffers = buffers
        self._size = self.bytes_count = sum(map(len, buffers))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._buffers).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._buffers)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Writes all of it: the length in the request's head is that of the body."""
        self._consumed = True
        for part in _parts(self._buffers):
            await writer.write(part)


def pass_body_by_the_signer(client: Any) -> None:
    """Keeps bodies out of sight while `client` signs its PUTs: the payload is not signed, but signers take a copy of it.

    The request must come with its ContentLength. Events: botocore's before-sign and before-send.
    """
    client.meta.events.register("before-sign.s3.PutObject", _take_out)
    client.meta.events.register("before-send.s3.PutObject", _put_back)


def _take_out(request: Any, **_: Any) -> None:
    request.context["body"], request.data = request.data, b""


def _put_back(request: Any, **_: Any) -> None:
    request.body = request.context.pop("body")


def _parts(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in buffers that are worth a write of their own."""
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        if small_bytes and small_bytes + len(buffer) > WRITE_BYTES_MIN:
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(buffer) >= WRITE_BYTES_MIN:
            yield buffer
        else:
            small.append(buffer)
            small_bytes += len(buffer)
    if small_bytes:
        yield b"".join(small)
