"""Authorizes gRPC calls: a handler checks each call before the service's own handler begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Final

import grpc

from gateway.access.authorization import AuthorizedCall, CallOrigin
from gateway.access.guard import AccessGuard
from gateway.access.peer_tokens import ASSERTED, FORWARDED_BY, PEER_TOKEN, PeerClaim
from gateway.access.permissions import GRPC_CALLS
from gateway.access.quotas import StreamUsage
from gateway.grpc.calls import Context, MethodHandler, client_host, ended, only_message
from gateway.grpc.limits import CallLimiter
from gateway.net.tls.client_subject import grpc_subject
from metadata.errors import Throttled

LISTENER: Final = "grpc"
# Outcome of a call whose client disconnected; its work may be done or not.
CANCELLED: Final = "CANCELLED"
# Makers of handlers, by whether answers are streams. Requests are read as streams; on the wire a unary call is a stream of one.
_HANDLER_OF: Final[dict[bool, Any]] = {False: grpc.stream_unary_rpc_method_handler, True: grpc.stream_stream_rpc_method_handler}


class GrpcGuard:
    """Wraps the handlers of the gRPC listener with authentication, authorization, quotas and the audit log."""

    def __init__(self, guard: AccessGuard) -> None:
        self._guard = guard

    def guarded(self, path: str, handler: MethodHandler, open_calls: CallLimiter) -> MethodHandler:
        """Wraps a method, /service/name, so that only permitted calls begin, counted in `open_calls`.

          authenticate, authorize ─▶ count ─▶ read the message ─▶ authorize again ─▶ begin

        The message is read after authentication. gRPC's own unary methods read it first, so an unauthenticated client that never
        sends
        its message would hold a call of the listener without bound. Permissions may change before the message comes.
        """
        needs = GRPC_CALLS[path]
        guard = self._guard
        streams_in, streams_out = bool(handler.request_streaming), bool(handler.response_streaming)
        behavior: Any = handler.unary_unary or handler.stream_unary or handler.stream_stream

        async def call(request: Any, context: Context) -> Any:
            return await ended(context, admitted(request, context))

        async def admitted(request: Any, context: Context) -> Any:
            checked = await self._begun(path, context)
            meter = guard.meter(checked)
            flow = guard.flow(checked) if streams_out or meter is not None else None
            begun = False
            try:
                with guard.while_permitted(checked) if needs.lasts else nullcontext():
                    request = await ended(context, taken_up(checked, request, context))
                    begun = True
                    if flow is None:
                        return await behavior(request, context)
                    if not streams_in:
                        flow.add_bytes_in(len(request))
                    answer = await behavior(request, _Metered(context, flow))
                    if isinstance(answer, bytes):
                        flow.add_bytes_out(len(answer))
                    return answer
            except asyncio.CancelledError:
                checked.failure = checked.failure or CANCELLED
                raise
            finally:
                if begun:  # else the request was too large, or its client disconnected before it came
                    guard.ended(checked, checked.failure)

        async def taken_up(checked: AuthorizedCall, request: Any, context: Context) -> Any:
            open_calls.take(context)
            if streams_in:
                return request
            message = await only_message(context)
            guard.check_again(checked)
            return message

        guarded: MethodHandler = _HANDLER_OF[streams_out](call)
        return guarded

    async def _begun(self, path: str, context: Context) -> AuthorizedCall:
        shown: str | bytes = ""
        token, asserted, is_forwarded = "", [], False
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                shown = value
            elif name == PEER_TOKEN or name in ASSERTED:
                text = value if isinstance(value, str) else ""
                is_forwarded |= name in {FORWARDED_BY, PEER_TOKEN}
                if name == PEER_TOKEN:
                    token = text
                else:
                    asserted.append((name, text))
        needs, origin = GRPC_CALLS[path], CallOrigin(LISTENER, path, client_host(context))
        if is_forwarded:
            claim = PeerClaim(token, tuple(sorted(asserted)))
            return self._guard.begin_forwarded(needs, claim, origin)
        return await self._guard.begin(needs, shown, lambda: grpc_subject(context), origin)


class _Metered:
    """A call's context that counts what is read and written on its streams."""

    def __init__(self, context: Context, flow: StreamUsage) -> None:
        self._context = context
        self._flow = flow
        self._first = True
        self._paces_itself = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        if not self._first:  # the first message came with the request, which was counted at its beginning
            await self._flow.wait_to_send()
        self._first = False
        message = await self._context.read()
        if isinstance(message, bytes):
            self._flow.add_bytes_in(len(message))
        return message

    def own_pace(self) -> Callable[[], Awaitable[None]]:
        """Makes writes go at once. Returns what the caller awaits before it reads records for the client (calls.own_pace)."""
        self._paces_itself = True
        return self._flow.wait_to_receive

    def throttled(self) -> Throttled | None:
        """Returns why the client's next message waits for a quota; None if it does not (calls.throttled_by)."""
        return self._flow.throttled()

    async def write(self, message: bytes) -> None:
        if not self._paces_itself:
            await self._flow.wait_to_receive()
        await self._context.write(message)
        self._flow.add_bytes_out(len(message))
