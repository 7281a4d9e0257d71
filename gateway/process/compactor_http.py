"""Serves the compactor's probes and Prometheus over HTTP: /livez, /readyz, /startupz, /metrics.

Its answers name no records, topics or partitions, so it requires no credentials. A compactor is live while its event loop runs. It
is
ready once it has read the bucket, and until reads have failed for UNREADY_S. It has no load balancer, but an update of the
Deployment
then stops before it replaces working compactors by failing ones. While it waits for a cluster, it counts as started, so that it is
not
taken for a process that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from compaction.metrics import CompactionState
from gateway.net.addresses import cannot_listen, host_and_port
from gateway.net.host_check import HostCheck
from gateway.net.tls.settings import is_loopback
from gateway.telemetry.registry import MetricsRegistry
from metadata.errors import Denied

UNREADY_S: Final = 60.0


class CompactorHttp:
    """Answers the probes of a compactor, and exposes its metrics."""

    def __init__(self, metrics: MetricsRegistry, now_ms: Callable[[], int], *, allowed_hosts: Collection[str] = ()) -> None:
        """`allowed_hosts`: see net/host_check.py."""
        self._allowed_hosts = allowed_hosts
        self._state = CompactionState()
        self._waits_for = ""
        self._metrics = metrics
        self._now_ms = now_ms
        self._runner: web.AppRunner | None = None

    def waits(self, what_for: str) -> None:
        """Notes that the compactor cannot begin yet, and why."""
        self._waits_for = what_for

    def works(self, state: CompactionState) -> None:
        """Notes that the compactor works; probes report this state from now on."""
        self._state, self._waits_for = state, ""

    async def start(self, address: str) -> str:
        """Opens HOST:PORT (port 0: a free one) and returns its address. Raises Unavailable if the port is taken, InvalidArgument
        otherwise."""
        host, port = host_and_port(address, name="http")
        hosts = HostCheck(allowed=self._allowed_hosts, is_loopback=is_loopback(address))
        app = web.Application(client_max_size=1024, middlewares=[_checking(hosts)])
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/startupz", self._started)
        app.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, host.strip("[]"), port)
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(host, port, error, listener="HTTP") from None
        return f"{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _answer(None)

    async def _ready(self, _: web.Request) -> web.Response:
        failing_ms = self._now_ms() - self._state.failing_since_ms if self._state.failing_since_ms else 0
        if failing_ms >= 1000 * UNREADY_S:
            return _answer("no bucket", f"the bucket could not be read for {failing_ms // 1000} s: its log says why")
        if self._waits_for:
            return _answer("waiting", self._waits_for)
        return await self._started(_)

    async def _started(self, _: web.Request) -> web.Response:
        has_started = self._waits_for or self._state.polled_at_ms
        return _answer(None if has_started else "starting", "it reads the bucket for the first time")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        exposition = await self._metrics.exposition(request.headers.get("accept", ""))
        return web.Response(body=exposition.body, headers={"content-type": exposition.media_type, "cache-control": "no-store"})


def _checking(hosts: HostCheck) -> Middleware:
    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            hosts.check(request.method, ((name.lower(), value) for name, value in request.raw_headers))
        except Denied as error:
            body = {"status": "refused", "reason": error.message}
            return web.json_response(body, status=403, headers={"cache-control": "no-store"})
        return await handler(request)

    return checked


def _answer(unwell: str | None, reason: str = "") -> web.Response:
    """Makes an answer in the form of a broker's probes (gateway/readiness.py)."""
    body = {"status": "ok"} if unwell is None else {"status": unwell, "reason": reason}
    return web.json_response(body, status=200 if unwell is None else 503, headers={"cache-control": "no-store"})
