"""Readers that ask for an answer and take nothing of it: raw sockets with the smallest of buffers, over HTTP and over gRPC.

A client library would take what comes whatever its user does, so the gRPC reader speaks the few frames of HTTP/2 that one call
needs by itself (RFC 9113 §4, RFC 7541 §6.2.2), and never opens the window of its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.proto import log_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE = 3, 4


def stalled_http(address: str, path: str, *, accept: str = "application/json") -> socket.socket:
    reader = _connected(address)
    reader.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n".encode())
    return reader


def stalled_http_producer(address: str, path: str, body: bytes, *, content_type: str) -> socket.socket:
    reader = _connected(address)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader.sendall(head.encode() + body)
    return reader


def stalled_grpc(address: str, request: log_pb2.FetchRequest | log_pb2.ConsumeRequest, *, method: str = "Fetch") -> socket.socket:
    """Of one call, with one message. Its first 64 KiB may come: the window that a stream begins with."""
    reader = _connected(address)
    begun = _PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_SETTINGS, _ACK, 0)
    reader.sendall(begun + _call(1, address, f"/tidelog.v1.Log/{method}", request.SerializeToString(), _END_STREAM))
    return reader


async def calls_without_window(
    address: str, path: str, message: bytes, count: int, *, source: str, ended: int
) -> asyncio.StreamWriter:
    """So many calls over one connection from this address of ours, whose windows hold nothing. Returns when `ended` of them have
    been ended by the server; the connection stays."""
    host, _, port = address.rpartition(":")
    incoming, outgoing = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    none = struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)
    with contextlib.ExitStack() as unless_ended:
        unless_ended.callback(outgoing.close)
        outgoing.write(_PREFACE + _frame(_SETTINGS, 0, 0, none) + _frame(_SETTINGS, _ACK, 0))
        for number in range(count):
            outgoing.write(_call(2 * number + 1, address, path, message))
            await outgoing.drain()
        async with asyncio.timeout(60):
            while ended:
                head = await incoming.readexactly(9)
                await incoming.readexactly(int.from_bytes(head[:3], "big"))
                ended -= head[3] == _HEADERS and bool(head[4] & _END_STREAM)
        unless_ended.pop_all()
    return outgoing


async def streams_at_once(address: str) -> int:
    """How many a connection may have, as the server's first frame says (RFC 9113 §6.5.2)."""
    host, _, port = address.rpartition(":")
    incoming, outgoing = await asyncio.open_connection(host, int(port))
    outgoing.write(_PREFACE + _frame(_SETTINGS, 0, 0))
    length = int.from_bytes((await incoming.readexactly(9))[:3], "big")
    settings: dict[int, int] = dict(struct.iter_unpack(">HI", await incoming.readexactly(length)))
    outgoing.close()
    return settings.get(_MAX_CONCURRENT_STREAMS, 2**32 - 1)


def _call(stream: int, address: str, path: str, message: bytes, flags: int = 0) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    head = b"".join(_literal(name, value) for name, value in fields.items())
    body = b"\0" + struct.pack(">I", len(message)) + message
    return _frame(_HEADERS, _END_HEADERS, stream, head) + _frame(_DATA, flags, stream, body)


@contextmanager
def closing(readers: list[socket.socket]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader)
        yield readers


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(30)
    reader.connect((host, int(port)))
    return reader


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field without indexing and without Huffman coding."""
    assert len(name) < 127, "longer ones take more than one byte"
    assert len(value) < 127, "longer ones take more than one byte"
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
