"""Begins and ends gRPC calls: converts bytes to messages and back, and every error of the tree to a Status.

a malformed message         ─▶ INVALID_ARGUMENT, not the UNKNOWN that grpc would answer
handler raises TidelogError ─▶ abort(code, message, grpc-status-details-bin)
handler raises another      ─▶ INTERNAL, with the traceback in the log
a write fails               ─▶ INTERNAL, if that can be sent
the client is gone          ─▶ nothing
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from gateway.access.authorization import note_failure
from gateway.error_codes import wire_codes
from gateway.proto.status import DETAILS_TRAILER, to_status
from gateway.routing.peer_channels import FORWARDED_BY
from gateway.telemetry.request_context import note_deadline, note_refusal
from metadata.errors import InvalidArgument, Throttled, TidelogError, Unavailable

# Timeout of a message that the handler reads itself. A large message may come slowly, but none may hold its call without bound.
MESSAGE_TIMEOUT_S: Final = 30.0

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in the stubs only
    Context = grpc.aio.ServicerContext[bytes, bytes]
    MethodHandler = grpc.RpcMethodHandler[bytes, bytes]
else:
    Context = grpc.aio.ServicerContext
    MethodHandler = grpc.RpcMethodHandler
_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer")


def unary(request_type: type[_Request], handler: Callable[[_Request], Awaitable[Message]]) -> MethodHandler:
    """Makes the handler of a unary call."""

    async def encoded(request: _Request) -> bytes:
        return (await handler(request)).SerializeToString()

    return unary_bytes(request_type, encoded)


def unary_bytes(request_type: type[_Request], handler: Callable[[_Request], Awaitable[bytes]]) -> MethodHandler:
    """Makes the handler of a unary call that encodes its answer itself."""

    async def handled(message: bytes) -> bytes:
        return await handler(parse_message(request_type, message))

    async def call(message: bytes, context: Context) -> bytes:
        note_deadline(context.time_remaining())
        return await ended(context, handled(message))

    return grpc.unary_unary_rpc_method_handler(call)


def unary_deferred_read(handler: Callable[[Context], Awaitable[bytes]]) -> MethodHandler:
    """Makes the handler of a unary call that reads its request itself, once the buffer has room for it."""

    async def call(_: AsyncIterator[bytes], context: Context) -> bytes:
        return await ended(context, handler(context))

    return grpc.stream_unary_rpc_method_handler(call)


def stream(handler: Callable[[Context], Awaitable[None]]) -> MethodHandler:
    """Makes the handler of a bidirectional stream that reads and writes by itself."""

    async def call(_: AsyncIterator[bytes], context: Context) -> None:
        await ended(context, handler(context))

    return grpc.stream_stream_rpc_method_handler(call)


async def write_wholly(context: Context, message: bytes) -> None:
    """Writes one message of a stream. If cancelled, it still waits until the client has taken the message or is gone.

    gRPC drops the end of a call whose first message is given up half-way: the client receives nothing. Behind a later message gRPC
    keeps
    the end, and holds the stream until the client has read both.
    """
    writing = asyncio.ensure_future(context.write(message))
    cancelled: asyncio.CancelledError | None = None
    while not writing.done():
        try:
            await asyncio.wait((writing,))
        except asyncio.CancelledError as error:
            cancelled = error
    writing.result()
    if cancelled is not None:
        raise cancelled


def own_pace(context: Context) -> Callable[[], Awaitable[None]] | None:
    """Makes writes of this stream go at once, whatever its principal has used of its quota of bytes.

    Returns what the caller awaits before it reads records for the client; None where no quota can apply. Else a message that is
    urgent, such as the end of an assignment, would wait for the quota behind records.
    """
    pace: Callable[[], Callable[[], Awaitable[None]]] | None = getattr(context, "own_pace", None)
    return pace() if pace is not None else None


def throttled_by(context: Context) -> Throttled | None:
    """Returns why the broker does not read the next message of this client now; None where no quota delays it."""
    throttled: Callable[[], Throttled | None] | None = getattr(context, "throttled", None)
    return throttled() if throttled is not None else None


async def only_message(context: Context) -> bytes:
    """Reads the message of a unary call whose handler reads late.

    Raises InvalidArgument if there is none, and Unavailable if it has not come within MESSAGE_TIMEOUT_S; nothing was begun then.
    """
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_S):
            message = await context.read()
    except TimeoutError:
        raise Unavailable(
            f"the call's message has not come within {MESSAGE_TIMEOUT_S:g} s",
            hint="Nothing was done: retry, and send the message at once.",
        ) from None
    if not isinstance(message, bytes):
        raise InvalidArgument("the call has no message", hint="Send one; it may be empty.")
    return message


def unary_by_origin(request_type: type[_Request], handler: Callable[[_Request, bool], Awaitable[Message]]) -> MethodHandler:
    """Makes the handler of a unary call that receives the request and whether another broker forwarded it."""
    return unary_in_context(request_type, lambda request, context: handler(request, is_forwarded(context)))


def unary_in_context(request_type: type[_Request], handler: Callable[[_Request, Context], Awaitable[Message]]) -> MethodHandler:
    """Makes the handler of a unary call that also receives the call's context."""

    async def call(message: bytes, context: Context) -> bytes:
        note_deadline(context.time_remaining())

        async def handled() -> bytes:
            return (await handler(parse_message(request_type, message), context)).SerializeToString()

        return await ended(context, handled())

    return grpc.unary_unary_rpc_method_handler(call)


def client_host(context: Context) -> str:
    """Returns the IP address of the caller without its port; empty if it has no IP address."""
    kind, _, address = str(context.peer()).partition(":")
    return unquote(address).rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""


def is_forwarded(context: Context) -> bool:
    """Returns whether another broker forwarded the call; such a call is not forwarded again."""
    return any(key == FORWARDED_BY for key, _ in context.invocation_metadata() or ())


def parse_message(request_type: type[_Request], message: bytes) -> _Request:
    """Decodes a message; raises InvalidArgument if it is malformed."""
    try:
        return request_type.FromString(message)
    except DecodeError as error:
        raise InvalidArgument(f"the message is not a {request_type.DESCRIPTOR.name}: {error}") from None


async def ended(context: Context, work: Awaitable[_Answer]) -> _Answer:
    """Awaits `work` and returns its result; an error aborts the call with the matching status."""
    try:
        return await work
    except TidelogError as error:
        await _abort(context, error)
    except grpc.aio.InternalError as error:
        await _abort_unless_gone(context, error)
    except grpc.aio.BaseError:
        raise
    except Exception:
        log.exception("a call failed")
        await _abort(context, _own_error())


async def _abort_unless_gone(context: Context, error: grpc.aio.InternalError) -> NoReturn:
    """Sends a status if the client is still connected, and otherwise ends the call as cancelled.

    gRPC raises the same error when the client is gone and does not distinguish the two: `cancelled` and `done` show only local
    state.
    Whether a status can be sent decides.
    """
    if not context.done():  # else a status was tried
        failure = _own_error()
        try:
            await _send_status(context, failure)
        except grpc.aio.AbortError:
            log.error("a call failed", exc_info=error)
            note_refusal(failure)
            note_failure(failure.code)
            raise
        except grpc.aio.InternalError:
            pass
    log.debug("client disconnected: %s", error)
    raise asyncio.CancelledError from None


async def _abort(context: Context, error: TidelogError) -> NoReturn:
    note_refusal(error)
    note_failure(error.code)
    await _send_status(context, error)


async def _send_status(context: Context, error: TidelogError) -> NoReturn:
    """Sends the error as the call's status. Raises AbortError once it is sent, InternalError if it cannot be sent."""
    trailer = ((DETAILS_TRAILER, to_status(error).SerializeToString()),)
    await context.abort(wire_codes(error).grpc, error.message, trailer)


def _own_error() -> TidelogError:
    return TidelogError("the broker met an error of its own", hint="Look into the broker's log.")
