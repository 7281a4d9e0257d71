"""Bare servers, with TLS and without: what is measured with them is the library alone. One process, four ports.

gRPC   takes each message of a stream, and answers with an empty one
HTTP   reads a request by its Content-Length, puts its body together, and answers 200 with two bytes: no framework
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import grpc.aio
import uvloop

from gateway.grpc.server import LOOKAHEAD_BYTES

START_TIMEOUT_S: Final = 20.0
MESSAGE_BYTES_MAX: Final = 64 << 20
# The bounds that a broker has: with larger windows there are fewer, and larger, records of TLS.
OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
]
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
_END_OF_HEAD: Final = b"\r\n\r\n"
_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class BareEndpoints(NamedTuple):
    """HOST:PORT of each."""

    grpc_plain: str
    grpc_tls: str
    http_plain: str
    http_tls: str


class BareServer(NamedTuple):
    endpoints: BareEndpoints
    pid: int


@contextmanager
def bare_endpoints(cert: Path, key: Path) -> Iterator[BareServer]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, cert, key), daemon=True)
    process.start()
    try:
        if not ours.poll(START_TIMEOUT_S):
            raise RuntimeError("the bare servers did not start")
        endpoints = BareEndpoints(*(f"127.0.0.1:{port}" for port in ours.recv()))
        yield BareServer(endpoints, process.pid or 0)
    finally:
        process.kill()
        process.join()


def _serve(reported: Connection, cert: Path, key: Path) -> None:
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])

    async def run() -> None:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers([_Streams()])
        ports = [server.add_insecure_port("127.0.0.1:0"), server.add_secure_port("127.0.0.1:0", credentials)]
        await server.start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        loop = asyncio.get_running_loop()
        for tls in (None, context):
            listener = await loop.create_server(_Requests, "127.0.0.1", 0, ssl=tls)
            ports.append(listener.sockets[0].getsockname()[1])
        reported.send(ports)
        await server.wait_for_termination()

    uvloop.run(run())


class _Streams(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(_answer)


async def _answer(_: object, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(b"")


class _Requests(asyncio.Protocol):
    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0
        self._pieces: list[bytes] = []
        self.body = b""
        """Of the last request: as any server, it has it whole, and in memory."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._left:
            self._head += data
            end = self._head.find(_END_OF_HEAD)
            found = _CONTENT_LENGTH.search(self._head)
            if end < 0 or found is None:
                return
            self._pieces.append(bytes(self._head[end + len(_END_OF_HEAD) :]))
            self._left = int(found[1]) - len(self._pieces[0])
            self._head.clear()
        else:
            self._pieces.append(data)
            self._left -= len(data)
        if not self._left:
            self.body = b"".join(self._pieces)
            self._pieces.clear()
            self._transport.write(_ANSWER)
