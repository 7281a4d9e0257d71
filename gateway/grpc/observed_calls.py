"""What is noted of each call of the gRPC door at its beginning and its end: see telemetry/request_context.py."""

from __future__ import annotations

from typing import Any

from gateway.grpc.calls import Context, MethodHandler
from gateway.grpc.limits import HANDLER_OF
from gateway.routing.peer_channels import FORWARDED_BY
from gateway.telemetry.request_context import TRACEPARENT_BYTES_MAX, Call, begin_call, end_call, sane_request_id
from gateway.telemetry.request_trace import Tracing
from gateway.telemetry.traffic import Traffic


def observed(handler: MethodHandler, traffic: Traffic, tracing: Tracing | None, method: str) -> MethodHandler:
    """The same method. Its calls have an id (`x-request-id` of the metadata), and count as a client's or as another broker's."""
    behavior: Any = handler.unary_unary or handler.stream_unary or handler.stream_stream

    async def call(request: Any, context: Context) -> Any:
        forwarded, request_id, traceparent = False, "", ""
        for key, value in context.invocation_metadata() or ():
            if key == FORWARDED_BY:
                forwarded = True
            elif key == "x-request-id":
                request_id = sane_request_id(str(value).encode("latin-1", "replace"))
            elif key == "traceparent" and len(value) <= TRACEPARENT_BYTES_MAX:
                traceparent = str(value)
        current = Call(traffic.over_grpc(is_forwarded=forwarded), request_id, traceparent)
        current.trace_with(tracing, method)
        token = begin_call(current)
        try:
            return await behavior(request, context)
        finally:
            end_call(current, token)

    made: MethodHandler = HANDLER_OF[bool(handler.request_streaming), bool(handler.response_streaming)](call)
    return made
