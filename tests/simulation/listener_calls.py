"""Plays the servers of gRPC and HTTP in front of the product's handlers: contexts and requests without sockets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status

from gateway.http.request import Message, Request, Scope
from gateway.proto.status import DETAILS_TRAILER, from_status
from metadata.errors import OutcomeUnknown, TidelogError

GrpcMethod = Any  # grpc.RpcMethodHandler, whose stubs leave out the functions
Metadata = Sequence[tuple[str, str]]


class RpcEnd(NamedTuple):
    """How a unary call ended: with an answer, or with a status."""

    answer: bytes | None
    code: Any = grpc.StatusCode.OK
    details: str = ""
    trailers: Sequence[tuple[str, bytes]] = ()
    # An error that is not of the tree.
    bug: BaseException | None = None

    @property
    def error(self) -> TidelogError:
        """Returns the error of the broker where it did not answer."""
        details = dict(self.trailers).get(DETAILS_TRAILER)
        return OutcomeUnknown(f"{self.code.name}: {self.details}") if details is None else from_status(Status.FromString(details))


class RpcContext:
    """In place of grpc.aio.ServicerContext."""

    def __init__(
        self,
        read: Callable[[], Awaitable[object]],
        write: Callable[[bytes], Awaitable[None]],
        metadata: Metadata = (),
        *,
        time_left_s: float | None = None,
    ) -> None:
        self.read = read
        self.write = write
        self._metadata = metadata
        self._ends_s = None if time_left_s is None else asyncio.get_running_loop().time() + time_left_s
        self._callbacks: list[Callable[[object], None]] = []
        self.status: RpcEnd | None = None

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None if self._ends_s is None else self._ends_s - asyncio.get_running_loop().time()

    def auth_context(self) -> dict[str, list[bytes]]:
        """There is no TLS."""
        return {}

    def peer(self) -> str:
        return "simulated:client"

    def done(self) -> bool:
        return self.status is not None

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: Any, details: str = "", trailers: Sequence[tuple[str, bytes]] = ()) -> NoReturn:
        error = sys.exception()
        bug = None if isinstance(error, TidelogError | grpc.aio.InternalError) else error
        self.status = RpcEnd(None, code, details, trailers, bug)
        raise grpc.aio.AbortError

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


async def called(method: GrpcMethod, message: bytes, metadata: Metadata, *, time_left_s: float | None) -> RpcEnd:
    """Runs the handler of a unary call, whether it reads its request early or late."""
    messages = [message]

    async def read() -> object:
        return messages.pop() if messages else grpc.aio.EOF

    async def write(_: bytes) -> None:
        raise AssertionError("a unary call answers once")

    context = RpcContext(read, write, metadata, time_left_s=time_left_s)
    try:
        if method.unary_unary is not None:
            return RpcEnd(await method.unary_unary(message, context))
        return RpcEnd(await method.stream_unary(None, context))
    except grpc.aio.AbortError:
        assert context.status is not None, "abort was called"
        return context.status
    finally:
        context.end()


async def streamed(
    method: GrpcMethod,
    read: Callable[[], Awaitable[object]],
    write: Callable[[bytes], Awaitable[None]],
    metadata: Metadata = (),
) -> RpcEnd:
    """Runs the handler of a stream to its end."""
    context = RpcContext(read, write, metadata)
    try:
        await method.stream_stream(None, context)
    except grpc.aio.AbortError:
        assert context.status is not None, "abort was called"
        return context.status
    finally:
        context.end()
    return RpcEnd(b"")


class HttpCall:
    """One HTTP request, and what it is answered."""

    def __init__(
        self,
        method: str,
        query: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        """`sink` takes each piece of the answer's body as it comes."""
        self._body: bytes | None = body
        self._sink = sink
        self.status = 0
        self.answer = b""
        length = [(b"content-length", b"%d" % len(body))] if body else []
        self.scope: Scope = {"method": method, "query_string": query.encode(), "headers": [*headers, *length]}
        self.request = Request(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()  # the client stays
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = cast("int", message["status"])
            return
        piece = cast("bytes", message.get("body", b""))
        if self._sink is None:
            self.answer += piece
        elif piece:
            self._sink(piece)
