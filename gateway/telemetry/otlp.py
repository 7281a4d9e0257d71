"""Exports traces over OpenTelemetry if `otlp_endpoint` is set: the parts of a request's waiting time (OTLP over HTTP).

    call  ────────────────────────────────────────────────────  a child of the client's own span, if it sent a traceparent
      produce  ───────────────────────────────────────────────
        buffer  ────────┤ buffer budget, lingering, a slot in flight
        put             ├──────────────────┤ the segment's PUT, with retries and hedges
        commit                             ├──┤ until all segments before it are on the bucket

A segment records when it was opened, sent, landed and committed, and the spans are made from these times when the request is
answered. So tracing that is off costs one comparison. Spans carry names and sizes, never a payload.

Records that a broker forwards have a span `produce` without these parts, which their leader has. The semantic conventions of
messaging are still in development; the attributes follow them as of 2026.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from metadata.errors import InvalidArgument
from segments.log.session_log import PendingAppend
from segments.partition.partition_log import Appended

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

    from gateway.telemetry.settings import TelemetrySettings

# Segments of one request that get spans.
SEGMENTS_MAX: Final = 8
# Time limit of the export of one bundle of spans, with its retries.
EXPORT_TIMEOUT_S: Final = 5.0
# Time limit of the last export. An unavailable collector does not delay a stop.
CLOSE_TIMEOUT_S: Final = 2.0

log = logging.getLogger(__name__)


class OtlpTracer:
    """Implements `Tracer` with OpenTelemetry, and exports the spans until `close`."""

    def __init__(self, settings: TelemetrySettings, *, broker_id: str, cluster: str, version: str) -> None:
        """Raises InvalidArgument if OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError:
            raise InvalidArgument(
                "otlp_endpoint is set, and OpenTelemetry is not installed", hint="pip install 'tidelog[tracing]'"
            ) from None
        names = {
            "service.name": "tidelog",
            "service.version": version,
            "service.instance.id": broker_id,
            "service.namespace": cluster,
        }
        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create(names),
            sampler=ParentBased(TraceIdRatioBased(settings.otlp_sample)),
            shutdown_on_exit=False,  # `close` does it, within a time limit
        )
        endpoint = f"{settings.otlp_endpoint.rstrip('/')}/v1/traces"
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("tidelog", version)

    def begin(self, name: str, traceparent: str, *, request_id: str) -> SpanTrace | None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}) if traceparent else None
        attributes = {"messaging.system": "tidelog", "tidelog.request_id": request_id}
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        return SpanTrace(self._tracer, span) if span.is_recording() else None

    async def close(self) -> None:
        """Exports the remaining spans, for CLOSE_TIMEOUT_S at most."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send_the_rest() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the wait has timed out, and the loop is closed
                loop.call_soon_threadsafe(sent.set)

        # A daemon thread, for which the process does not wait, since OpenTelemetry ignores time limits here.
        threading.Thread(target=send_the_rest, name="last traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await sent.wait()
        except TimeoutError:
            log.warning("the last traces are lost: the collector did not take them within %g s", CLOSE_TIMEOUT_S)
            self._exporter.shutdown()  # ends its retries


class SpanTrace:
    """Implements `RequestTrace` with the OpenTelemetry span of one call."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def produced(
        self, topics: Sequence[str], pending: Sequence[PendingAppend], found: Sequence[Appended], *, began_s: float, size_bytes: int
    ) -> None:
        clock = _Clock()
        attributes: dict[str, str | int | Sequence[str]] = {
            "messaging.operation.name": "produce",
            "messaging.destination.name": ",".join(topics),
            "messaging.batch.message_count": sum(each.last_offset - each.base_offset + 1 for each in found),
            "tidelog.request_bytes": size_bytes,
        }
        produce = self._part("produce", self._span, clock.ns(began_s), attributes)
        segments = {id(each.segment): each.segment for each in pending if each.segment is not None}
        for segment in list(segments.values())[:SEGMENTS_MAX]:
            moments = (began_s, segment.sent_at_s, segment.landed_at_s, segment.committed_at_s)
            for name, begins_s, ends_s in zip(("buffer", "put", "commit"), moments, moments[1:], strict=False):
                if ends_s:
                    part = self._part(name, produce, clock.ns(begins_s), {"tidelog.segment_bytes": segment.size_bytes})
                    part.end(clock.ns(ends_s))
        produce.end(clock.now_ns)

    def end(self, error_code: str = "") -> None:
        from opentelemetry.trace import StatusCode

        if error_code:
            self._span.set_attribute("error.type", error_code)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _part(self, name: str, of: Span, begins_ns: int, attributes: dict[str, str | int | Sequence[str]]) -> Span:
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_span(name, context=set_span_in_context(of), start_time=begins_ns, attributes=attributes)


class _Clock:
    """Converts times of the loop's clock to nanoseconds of the wall clock."""

    def __init__(self) -> None:
        self.now_ns = time.time_ns()
        self._now_s = asyncio.get_running_loop().time()

    def ns(self, at_s: float) -> int:
        return self.now_ns - round(1e9 * (self._now_s - at_s))
