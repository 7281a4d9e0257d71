"""Runs the gRPC listener: its services, its limits, its start and its stop.

  Log · Topics · Cluster · Groups · Access (tidelog.v1)      grpc.health.v1.Health      grpc.reflection.v1alpha.ServerReflection

Limits:
- A message may be as long as a request, and an answer as long as a fetch.
- Open calls are bounded, and calls beyond the limit are throttled. Calls of consumer groups are counted apart, and among these the
calls that wait for other members, so that no kind excludes the others. Health and reflection have places of their own
(anonymous_streams.py).
- A connection that reaches its age (which gRPC spreads by 10 % each way) is asked to close. Its streams have the grace to end, so
that
clients find new brokers. Clients may ping every five seconds to keep a connection open.
- Connections are bounded, and have HANDSHAKE_TIMEOUT_S for TLS and the first frame of HTTP/2; the head of a call has
HEAD_BYTES_MAX.

telemetry/request_context.py lists what is recorded of each call at its beginning and its end.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.groups import router as groups_router
from gateway.grpc import health as grpc_health
from gateway.grpc import reflection
from gateway.grpc.anonymous_streams import AnonymousStreamLimiter
from gateway.grpc.calls import Context, MethodHandler
from gateway.grpc.connection_ages import grace_given_s
from gateway.grpc.guard import GrpcGuard
from gateway.grpc.limits import HANDLER_OF, CallLimiter
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.services import access, group_admin, groups, log
from gateway.grpc.services import admin as services_admin
from gateway.grpc.slow_readers import cut_off
from gateway.net.host_check import HostCheck
from gateway.net.ports import ReservedPort
from gateway.routing.peer_channels import FORWARDED_BY
from gateway.settings import GatewaySettings
from gateway.telemetry.request_context import TRACEPARENT_BYTES_MAX, RequestContext, Tracer, begin_call, end_call, sane_request_id
from gateway.telemetry.traffic import Traffic
from metadata.errors import InvalidArgument

if TYPE_CHECKING:
    from gateway.net.tls.identity import TlsReloader

# Room in a request beside its records; gRPC refuses a larger message before it has read it whole.
MESSAGE_SLACK_BYTES = 1 << 20
# The log bounds answers; a single batch may be larger than fetch_bytes_max.
ANSWER_BYTES_MAX = 1 << 30
# Bytes that each stream may send ahead of its reader. gRPC keeps up to eight times as much, in the buffers they came in.
LOOKAHEAD_BYTES = 16 << 10
# Time for TLS and the first frame of HTTP/2; gRPC's own default is two minutes.
HANDSHAKE_TIMEOUT_S = 10
# Largest metadata of a call; credentials of all kinds fit. Beyond it gRPC refuses the call with RESOURCE_EXHAUSTED.
HEAD_BYTES_MAX = 16 << 10
# Places for calls of health and reflection, which need no credentials.
WATCHES_MAX = 500
# Calls beside the counted ones: health and reflection, what fifty addresses leave untaken of them (anonymous_streams.py), and calls
# that are being refused. gRPC itself refuses more.
SPARE_CALLS = 6 * WATCHES_MAX

SERVICES = frozenset({log.SERVICE, services_admin.TOPICS, services_admin.CLUSTER, groups_router.SERVICE, access.SERVICE})


class GrpcServer:
    """Owns the gRPC server of a broker: builds its services, opens its port and stops it in order."""

    def __init__(self, broker: BrokerApi, tls: TlsReloader | None = None, *, allowed_hosts: Collection[str] = ()) -> None:
        """`allowed_hosts`: see net/host_check.py."""
        self._allowed_hosts = allowed_hosts
        self._broker = broker
        self._tls = tls
        self._waits = InterruptibleWaits()
        self._server: grpc.aio.Server | None = None
        self.producers = ProducerStreams()

    async def start(self, port: ReservedPort) -> str:
        """Listens on the port and returns its address. Raises InvalidArgument if the port cannot be opened."""
        server = grpc.aio.server(
            options=_options(self._broker.settings),
            maximum_concurrent_rpcs=_calls_max(self._broker.settings),
        )
        for service, handlers in self._services().items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        credentials = self._tls.server_credentials() if self._tls is not None else None
        address = port.address
        port.close()  # gRPC binds by itself, in this very step
        try:
            if credentials is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InvalidArgument(
                f"gRPC can't listen on {address}: {error}", hint="Is another broker running there? Choose another --grpc HOST:PORT."
            ) from None
        await server.start()
        self._server = server
        return address

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, ends long polls and the reading of streams, and waits for the answers up to `grace_s`."""
        self._waits.stop()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _services(self) -> dict[str, dict[str, MethodHandler]]:
        broker, waits = self._broker, self._waits
        services = {
            log.SERVICE: log.GrpcLogService(broker, waits, self.producers).handlers(),
            services_admin.TOPICS: services_admin.TopicsService(broker).handlers(),
            services_admin.CLUSTER: services_admin.ClusterService(broker).handlers(),
            access.SERVICE: access.AccessService(broker).handlers(),
            groups_router.SERVICE: groups.GroupsService(broker, waits).handlers() | group_admin.GrpcGroupAdmin(broker).handlers(),
        }
        pages = None
        if self._tls is not None:  # browsers speak no HTTP/2 without it
            asks = broker.guard is not None
            pages = HostCheck(allowed=self._allowed_hosts, is_loopback=False, is_tls=True, asks_for_credentials=asks)
        open_calls = CallLimiter(broker.settings.grpc_streams_max, pages=pages)
        waiting = CallLimiter(broker.settings.grpc_group_waits_max, setting="grpc_group_waits_max", pages=pages)
        short = CallLimiter(broker.settings.grpc_streams_max, pages=pages)
        guard = GrpcGuard(broker.guard) if broker.guard is not None else None

        def bounded(service: str, method: str, handler: MethodHandler) -> MethodHandler:
            calls = open_calls if service != groups_router.SERVICE else waiting if method in groups.WAITING else short
            return calls.counted(handler) if guard is None else guard.guarded(f"/{service}/{method}", handler, calls)

        traffic, tracing = broker.metrics.traffic, broker.tracing
        counted = {
            service: {
                method: observed(bounded(service, method, handler), traffic, tracing, method)
                for method, handler in handlers.items()
            }
            for service, handlers in services.items()
        }
        watches = AnonymousStreamLimiter(WATCHES_MAX, lambda peers: cut_off(peers, broker.grpc_address))
        return counted | {
            grpc_health.SERVICE: grpc_health.HealthService(broker, waits, SERVICES, watches).handlers(),
            reflection.SERVICE: reflection.ReflectionService((*SERVICES, grpc_health.SERVICE), waits, watches).handlers(),
        }


def _calls_max(settings: GatewaySettings) -> int:
    """Returns the total of calls beyond which gRPC itself refuses."""
    return 2 * settings.grpc_streams_max + settings.grpc_group_waits_max + SPARE_CALLS


def _connection_calls_max(settings: GatewaySettings) -> int:
    """Returns the largest number of concurrent calls of one connection; its client holds back the rest.

    A proxy or another broker may send the calls of all its clients over one connection. All counted calls fit, so they are
    throttled here
    rather than held back there.
    """
    return _calls_max(settings) - SPARE_CALLS + WATCHES_MAX


def _grace_ms(settings: GatewaySettings) -> int:
    return int(1000 * grace_given_s(settings.grpc_connection_age_ms / 1000, settings.grpc_connection_age_grace_ms / 1000))


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.request_bytes_max + MESSAGE_SLACK_BYTES),
        ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
        ("grpc.server.max_pending_requests", _calls_max(settings)),  # else gRPC cancels some of a thousand that come at once
        ("grpc.server.max_pending_requests_hard_limit", _calls_max(settings)),
        # gRPC counts it in whole seconds. Its default of 30 s would answer all calls too late.
        ("grpc.server_max_unrequested_time_in_server", math.ceil(settings.grpc_queue_timeout_ms / 1000)),
        ("grpc.max_concurrent_streams", _connection_calls_max(settings)),
        ("grpc.max_allowed_incoming_connections", settings.grpc_connections_max),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_TIMEOUT_S),
        ("grpc.max_metadata_size", HEAD_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", HEAD_BYTES_MAX),
        ("grpc.max_connection_age_ms", settings.grpc_connection_age_ms),
        ("grpc.max_connection_age_grace_ms", _grace_ms(settings)),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a short message could become a long one; batches are compressed
        ("grpc.http2.bdp_probe", 0),  # it lets each connection hold megabytes that no budget has admitted
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ("grpc.so_reuseport", 0),  # a second broker on the same port must fail, not share it
    ]


def observed(handler: MethodHandler, traffic: Traffic, tracing: Tracer | None, method: str) -> MethodHandler:
    """Wraps a method: gives its calls an id (`x-request-id` of the metadata) and counts them as a client's or another broker's."""
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
        current = RequestContext(traffic.over_grpc(is_forwarded=forwarded), request_id, traceparent)
        current.trace_with(tracing, method)
        token = begin_call(current)
        try:
            return await behavior(request, context)
        finally:
            end_call(current, token)

    made: MethodHandler = HANDLER_OF[bool(handler.request_streaming), bool(handler.response_streaming)](call)
    return made
