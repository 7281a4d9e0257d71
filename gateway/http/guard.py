"""Admits HTTP requests through the guard of the broker, where authentication is on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final

from gateway.access.authorization import AuthorizedCall, CallOrigin
from gateway.access.guard import AccessGuard
from gateway.access.permissions import METRICS_PATHS, NO_ROUTE, HttpRoute, RequiredAccess, http_route
from gateway.access.quotas import StreamUsage
from gateway.access.refusals import settle
from gateway.http.request import Message, Receive, Scope, Send
from gateway.net.tls.client_subject import http_subject
from metadata.errors import TidelogError

LISTENER: Final = "http"
# Outcome in the audit log of a request that failed on an internal error.
ERROR: Final = "INTERNAL"
_OPEN: Final = RequiredAccess(open=True)
Route = Callable[[Receive, Send], Awaitable[None]]


class HttpGuard:
    """Authenticates, authorizes and meters each request before its route runs."""

    def __init__(self, guard: AccessGuard) -> None:
        self._guard = guard

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, parts: Sequence[str], request_id: str, answer: Route
    ) -> None:
        """Runs `answer` for a permitted request. Raises the error of a refused one, and those of `answer`."""
        route = http_route(scope["method"], parts)
        call = await self._guard.begin(
            _OPEN if self._guard.metrics_open and scope["path"] in METRICS_PATHS else route.needs,
            _authorization(scope),
            lambda: http_subject(scope),
            origin_of(scope, route, request_id),
        )
        await _check_names(route, parts, call)
        meter = self._guard.meter(call)
        if (call.needs.bytes_in or call.needs.bytes_out) and (meter is not None or call.needs.lasts):
            flow = self._guard.flow(call)
            if flow is not None:
                receive, send = _metered_receive(receive, flow), _metered_send(send, flow)
        failure = ERROR
        try:
            with self._guard.while_permitted(call) if call.needs.lasts else nullcontext():
                await answer(receive, send)
            failure = ""
        except TidelogError as error:
            failure = error.code
            raise
        finally:
            self._guard.ended(call, failure)


async def _check_names(route: HttpRoute, parts: Sequence[str], call: AuthorizedCall) -> None:
    """Checks the topic and the group in the path, before a byte of the body is read."""
    for kind, at in (("topic", route.topic_at), ("group", route.group_at)):
        if at:
            await settle(call, kind, (parts[at],))
            call.check(kind, parts[at])


def _authorization(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            shown: bytes = value
            return shown
    return b""


def origin_of(scope: Scope, route: HttpRoute, request_id: str) -> CallOrigin:
    """Returns what the audit log names a request by; a path without a route is left out."""
    client = scope.get("client")
    action = route.action if route is not NO_ROUTE else scope["method"]
    return CallOrigin(LISTENER, action, str(client[0]) if client else "", request_id)


def _metered_receive(receive: Receive, flow: StreamUsage) -> Receive:
    async def metered() -> Message:
        message = await receive()
        if body := message.get("body"):
            flow.add_bytes_in(len(body))
        return message

    return metered


def _metered_send(send: Send, flow: StreamUsage) -> Send:
    async def metered(message: Message) -> None:
        body = message.get("body")
        if body and message.get("more_body"):  # a stream waits here; a single answer is sent whole, and the next request waits
            await flow.wait_to_receive()
        await send(message)
        if body:
            flow.add_bytes_out(len(body))

    return metered
