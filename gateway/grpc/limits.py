"""How many calls of the gRPC door are open, and the refusal of one too many.

gRPC's own bound says "Concurrent RPC limit exceeded" without details, with the status of a message that is too large. Here a call
too many is throttled: RESOURCE_EXHAUSTED with ErrorInfo (THROTTLED, nothing was written) and RetryInfo. Invariant: at most
`calls_max` calls of the counted methods are open: each until its client has taken the answer; one that is ended while it writes
to a client that takes nothing is held by gRPC for longer. Health and reflection are not counted, so that a broker with many clients
still tells its probes how it is; anonymous_streams.py bounds these.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from gateway.grpc.calls import Context, MethodHandler, ended
from gateway.net.host_check import HostCheck
from metadata.errors import Throttled

# By whether requests, and whether answers are streams, as calls.py makes them.
HANDLER_OF: Final[dict[tuple[bool, bool], Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class CallLimiter:
    def __init__(self, calls_max: int, *, setting: str = "grpc_streams_max", pages: HostCheck | None = None) -> None:
        """`setting` is the one that says how many. `pages` refuses calls that a page of another site makes through a browser."""
        self._pages = pages
        self._calls_max = calls_max
        self._setting = setting
        self._open = 0

    def counted(self, handler: MethodHandler) -> MethodHandler:
        """The same method, each call of which is counted, or refused."""
        behavior: Any = handler.unary_unary or handler.stream_unary or handler.stream_stream

        async def call(request: Any, context: Context) -> Any:
            return await ended(context, admitted(request, context))

        async def admitted(request: Any, context: Context) -> Any:
            self.take(context)
            return await behavior(request, context)

        counted: MethodHandler = HANDLER_OF[bool(handler.request_streaming), bool(handler.response_streaming)](call)
        return counted

    def take(self, context: Context) -> None:
        """Counts this call until it has ended. Throttled where it is one too many; Denied as HostCheck.check."""
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
    if any(name == "origin" for name, _ in metadata):  # which no client of gRPC sends
        values = ((name, value if isinstance(value, bytes) else value.encode()) for name, value in metadata)
        pages.check("POST", [(name.encode(), value) for name, value in values])
