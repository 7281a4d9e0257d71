"""Counts the open calls of the gRPC listener and refuses those beyond the limit.

gRPC's own bound answers "Concurrent RPC limit exceeded" without details, with the status of a message that is too large. This
limiter
throttles instead: RESOURCE_EXHAUSTED with ErrorInfo (THROTTLED, nothing was written) and RetryInfo.

Invariant: at most `calls_max` counted calls are open, each until its client has read the answer. gRPC holds a call for longer if it
ends while it writes to a client that reads nothing. Health and reflection are not counted, so a broker with many clients still
answers
its probes; anonymous_streams.py bounds these.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from gateway.grpc.calls import Context, MethodHandler, ended
from gateway.net.host_check import HostCheck
from metadata.errors import Throttled

# Makers of handlers, by whether requests and whether answers are streams, as in calls.py.
HANDLER_OF: Final[dict[tuple[bool, bool], Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class CallLimiter:
    """Counts open calls, and refuses a call beyond `calls_max` with Throttled."""

    def __init__(self, calls_max: int, *, setting: str = "grpc_streams_max", pages: HostCheck | None = None) -> None:
        """`setting` names the setting that sets the limit. `pages` refuses calls that a page of another site makes through a
        browser."""
        self._pages = pages
        self._calls_max = calls_max
        self._setting = setting
        self._open = 0

    def counted(self, handler: MethodHandler) -> MethodHandler:
        """Wraps a method so that each of its calls is counted or refused."""
        behavior: Any = handler.unary_unary or handler.stream_unary or handler.stream_stream

        async def call(request: Any, context: Context) -> Any:
            return await ended(context, admitted(request, context))

        async def admitted(request: Any, context: Context) -> Any:
            self.take(context)
            return await behavior(request, context)

        counted: MethodHandler = HANDLER_OF[bool(handler.request_streaming), bool(handler.response_streaming)](call)
        return counted

    def take(self, context: Context) -> None:
        """Counts this call until it ends. Raises Throttled at the limit, and Denied as HostCheck.check does."""
        if self._pages is not None:
            _check_page(self._pages, context)
        if self._open >= self._calls_max:
            raise Throttled(
                f"{self._open} calls are open at this broker, which is all that {self._setting} allows",
                hint=f"Use one stream for many partitions, end those that are idle, or raise {self._setting}.",
            )
        self._open += 1
        context.add_done_callback(self._ended)  # type: ignore[arg-type]  # its stubs name a class where a Protocol is meant

    def _ended(self, _: object) -> None:
        self._open -= 1


def _check_page(pages: HostCheck, context: Context) -> None:
    metadata = context.invocation_metadata() or ()
    if any(name == "origin" for name, _ in metadata):  # gRPC clients do not send an Origin
        values = ((name, value if isinstance(value, bytes) else value.encode()) for name, value in metadata)
        pages.check("POST", [(name.encode(), value) for name, value in values])
