"""How a gRPC call begins and ends: bytes to messages and back, every error of the tree to a Status.

a malformed message         ─▶ INVALID_ARGUMENT, not the UNKNOWN that grpc would answer
handler raises TidelogError ─▶ abort(code, message, grpc-status-details-bin)
handler raises another      ─▶ INTERNAL, with the traceback in the log
a write of its fails        ─▶ INTERNAL, if that can be sent
the client is gone          ─▶ nothing: there is no one to tell
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
from metadata.errors import InvalidArgument, TidelogError, Unavailable

# For a message that is read late: a large one may come slowly, and none holds its call for ever.
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
    """One request, one answer."""

    async def encoded(request: _Request) -> bytes:
        return (await handler(request)).SerializeToString()

    return unary_bytes(request_type, encoded)


def unary_bytes(request_type: type[_Request], handler: Callable[[_Request], Awaitable[bytes]]) -> MethodHandler:
    """One request; the handler lays out the answer's bytes itself."""

    async def handled(message: bytes) -> bytes:
        return await handler(parse_message(request_type, message))

    async def call(message: bytes, context: Context) -> bytes:
        note_deadline(context.time_remaining())
        return await ended(context, handled(message))

    return grpc.unary_unary_rpc_method_handler(call)


def unary_deferred_read(handler: Callable[[Context], Awaitable[bytes]]) -> MethodHandler:
    """One request, one answer; the handler reads the request itself, when there is room for it. On the wire it is a unary call."""

    async def call(_: AsyncIterator[bytes], context: Context) -> bytes:
        return await ended(context, handler(context))

    return grpc.stream_unary_rpc_method_handler(call)


def stream(handler: Callable[[Context], Awaitable[None]]) -> MethodHandler:
    """The handler reads and writes as it likes."""

    async def call(_: AsyncIterator[bytes], context: Context) -> None:
        await ended(context, handler(context))

    return grpc.stream_stream_rpc_method_handler(call)


async def write_wholly(context: Context, message: bytes) -> None:
    """One message of a stream; cancelled, it ends when the client has taken it, or is gone.

    gRPC takes no end of a call whose first message is given up under way: the stream is told nothing. Behind a later message it
    takes the end; then the stream is held until its client has taken both, without anybody knowing.
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


async def only_message(context: Context) -> bytes:
    """Of a unary call whose handler reads it late. Raises InvalidArgument where there is none, Unavailable where it has not come
    in time: nothing was begun."""
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
    """One request, one answer; the handler is told whether another broker has forwarded the request."""
    return unary_in_context(request_type, lambda request, context: handler(request, is_forwarded(context)))


def unary_in_context(request_type: type[_Request], handler: Callable[[_Request, Context], Awaitable[Message]]) -> MethodHandler:
    """One request, one answer; the handler looks at the call itself."""

    async def call(message: bytes, context: Context) -> bytes:
        note_deadline(context.time_remaining())

        async def handled() -> bytes:
            return (await handler(parse_message(request_type, message), context)).SerializeToString()

        return await ended(context, handled())

    return grpc.unary_unary_rpc_method_handler(call)


def client_host(context: Context) -> str:
    """The address that the call comes from, without its port; empty where it is none of IP."""
    kind, _, address = str(context.peer()).partition(":")
    return unquote(address).rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""


def is_forwarded(context: Context) -> bool:
    """Whether another broker sends the call on for its client: then it is not forwarded again."""
    return any(key == FORWARDED_BY for key, _ in context.invocation_metadata() or ())


def parse_message(request_type: type[_Request], message: bytes) -> _Request:
    """Raises InvalidArgument."""
    try:
        return request_type.FromString(message)
    except DecodeError as error:
        raise InvalidArgument(f"the message is not a {request_type.DESCRIPTOR.name}: {error}") from None


async def ended(context: Context, work: Awaitable[_Answer]) -> _Answer:
    """What `work` answers; an error of it is told to the client."""
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
    """gRPC raises the same where the client is gone, and does not say whether it is: `cancelled` and `done` tell what was set here.
    So whether a status can be sent tells. Where none can, the call ends as if it were cancelled, and is nobody's fault."""
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
    log.debug("a client went away: %s", error)
    raise asyncio.CancelledError from None


async def _abort(context: Context, error: TidelogError) -> NoReturn:
    note_refusal(error)
    note_failure(error.code)
    await _send_status(context, error)


async def _send_status(context: Context, error: TidelogError) -> NoReturn:
    """Raises AbortError once it is sent, InternalError where it can't be."""
    trailer = ((DETAILS_TRAILER, to_status(error).SerializeToString()),)
    await context.abort(wire_codes(error).grpc, error.message, trailer)


def _own_error() -> TidelogError:
    return TidelogError("the broker met an error of its own", hint="Look into the broker's log.")
