"""Readers that ask for an answer and take nothing of it: raw sockets with the smallest of buffers, over HTTP and over gRPC.

A client library would take what comes whatever its user does, so the gRPC reader speaks the few frames of HTTP/2 that one call
needs by itself (RFC 9113 §4, RFC 7541 §6.2.2), and never opens the window of its stream.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.proto import log_pb2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1


def stalled_http(address: str, path: str, *, accept: str = "application/json") -> socket.socket:
    reader = _connected(address)
    reader.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n".encode())
    return reader


def stalled_http_producer(address: str, path: str, body: bytes, *, content_type: str) -> socket.socket:
    reader = _connected(address)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader.sendall(head.encode() + body)
    return reader


def stalled_grpc(address: str, request: log_pb2.FetchRequest | log_pb2.ConsumeRequest, *, method: str = "Fetch") -> socket.socket:
    """Of one call, with one message. Its first 64 KiB may come: the window that a stream begins with."""
    reader = _connected(address)
    message = request.SerializeToString()
    head = b"".join(
        _literal(name, value)
        for name, value in {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/tidelog.v1.Log/{method}",
            ":authority": address,
            "te": "trailers",
            "content-type": "application/grpc",
        }.items()
    )
    reader.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0)
        + _frame(_SETTINGS, _ACK, 0)
        + _frame(_HEADERS, _END_HEADERS, 1, head)
        + _frame(_DATA, _END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message)
    )
    return reader


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
