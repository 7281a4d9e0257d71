"""A collector of traces in this process: it takes OTLP over HTTP, and keeps what it got."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        message = ExportTraceServiceRequest.FromString(body)
        self.spans += [span for each in message.resource_spans for scope in each.scope_spans for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """It has all spans of a broker that ended while it was open."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()
