"""Adds the sender's trace to records, in the header `traceparent` (W3C Trace Context).

With `trace_headers=True`, and the program's own OpenTelemetry: the header names the span in which `send` or `produce` was called. A
record that has such a header already keeps it, and without a span there is none. Consumers read it with any propagator:

    context = TraceContextTextMapPropagator().extract({name: value.decode() for name, value in record.headers})
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metadata.errors import InvalidArgument
from tidelog.records import Headers

NAME: Final = "traceparent"


def traceparent_headers() -> Callable[[Headers], Headers]:
    """Returns a function that adds the trace header to a record's. Raises InvalidArgument without OpenTelemetry."""
    try:
        from opentelemetry.trace import get_current_span
    except ImportError:
        raise InvalidArgument(
            "trace_headers is set, and OpenTelemetry is not installed", hint="pip install opentelemetry-api, or leave it out."
        ) from None

    def with_traceparent(headers: Headers) -> Headers:
        span = get_current_span().get_span_context()
        if not span.is_valid or any(name == NAME for name, _ in headers):
            return headers
        value = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
        return (*headers, (NAME, value.encode()))

    return with_traceparent
