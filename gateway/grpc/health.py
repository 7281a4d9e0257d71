"""Serves grpc.health.v1 with the broker's readiness, for probes and load balancers. It asks the broker and stores nothing.

No credentials are required; anonymous_streams.py bounds the open calls. Source:
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.anonymous_streams import AnonymousStreamLimiter
from gateway.grpc.calls import Context, MethodHandler, only_message, parse_message, stream, unary_deferred_read, write_wholly
from gateway.readiness import readiness
from metadata.errors import NotFound, Stopping

SERVICE: Final = "grpc.health.v1.Health"
WATCH_INTERVAL_S: Final = 1.0


class HealthService:
    """Answers health checks and watches with the broker's readiness."""

    def __init__(
        self, broker: BrokerApi, waits: InterruptibleWaits, services: frozenset[str], watches: AnonymousStreamLimiter
    ) -> None:
        """`services` lists the service names that may be queried, beside the empty name of the whole server."""
        self._broker = broker
        self._waits = waits
        self._services = services | {""}
        self._watches = watches

    def handlers(self) -> dict[str, MethodHandler]:
        return {"Check": unary_deferred_read(self.check), "Watch": stream(self.watch)}

    async def check(self, context: Context) -> bytes:
        async with self._watches.slot(context):
            request = parse_message(HealthCheckRequest, await only_message(context))
        if request.service not in self._services:
            raise NotFound(f"there is no service {request.service[:100]!r} here")
        return HealthCheckResponse(status=self._status(request.service)).SerializeToString()

    async def watch(self, context: Context) -> None:
        """Sends the status and each change of it, including the broker's stop. An unknown service is reported as such and stays
        watched."""
        sent: object = None
        try:
            async with self._waits.until_stop(), self._watches.slot(context):
                request = parse_message(HealthCheckRequest, await only_message(context))
                while True:
                    status = self._status(request.service)
                    if status != sent:
                        await write_wholly(context, HealthCheckResponse(status=status).SerializeToString())
                        sent = status
                    await asyncio.sleep(WATCH_INTERVAL_S)
        except Stopping:
            if sent == HealthCheckResponse.SERVING:
                await write_wholly(context, HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString())
            raise

    def _status(self, service: str) -> int:
        if service not in self._services:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if readiness(self._broker).is_well else HealthCheckResponse.NOT_SERVING
