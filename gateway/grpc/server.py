"""The gRPC door: its services, its limits, its beginning and its end.

    Log · Topics · Cluster · Groups · Access (tidelog.v1)      grpc.health.v1.Health      grpc.reflection.v1alpha.ServerReflection

Limits: a message may be as long as a request, an answer as long as a fetch; so many calls at once, the next are throttled; those of
consumer groups are counted apart, and of these the ones that wait for other members, so that none keeps out the others; streams of
health and reflection, which are open to all, have places of their own (anonymous_streams.py). A connection that has reached its age
(which gRPC spreads by 10 % each way) is told to go, and its streams have the grace to end, so that clients find new brokers.
Clients may ping as often as every five seconds to keep a connection open. Connections have a bound, and HANDSHAKE_TIMEOUT_S for TLS
and the first frame of HTTP/2; the head of a call may have HEAD_BYTES_MAX.

What is noted of each call of the gRPC door at its beginning and its end: see telemetry/request_context.py.
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

# A request may be this much longer than its records; what is more is refused by gRPC before it is read whole.
MESSAGE_SLACK_BYTES = 1 << 20
# The log bounds answers; a single batch may be larger than fetch_bytes_max.
ANSWER_BYTES_MAX = 1 << 30
# What each stream may send while nobody reads from it. gRPC keeps up to eight times as much for it, in the buffers it came in.
LOOKAHEAD_BYTES = 16 << 10
# For TLS and the first frame of HTTP/2; gRPC's own default is two minutes.
HANDSHAKE_TIMEOUT_S = 10
# The metadata of a call. Beyond it gRPC refuses the call, RESOURCE_EXHAUSTED; credentials of all kinds have room in it.
HEAD_BYTES_MAX = 16 << 10
# Calls of health and reflection, which anybody may open.
WATCHES_MAX = 500
# Beside those that are counted: for health and reflection, what fifty addresses leave untaken of them (anonymous_streams.py), and
# calls that are just being refused. More are refused by gRPC itself.
SPARE_CALLS = 6 * WATCHES_MAX

SERVICES = frozenset({log.SERVICE, services_admin.TOPICS, services_admin.CLUSTER, groups_router.SERVICE, access.SERVICE})


class GrpcServer:
    def __init__(self, broker: BrokerApi, tls: TlsReloader | None = None, *, allowed_hosts: Collection[str] = ()) -> None:
        """`allowed_hosts`: see net/host_check.py."""
        self._allowed_hosts = allowed_hosts
        self._broker = broker
        self._tls = tls
        self._waits = InterruptibleWaits()
        self._server: grpc.aio.Server | None = None
        self.producers = ProducerStreams()

    async def start(self, port: ReservedPort) -> str:
        """Listens there, and answers with the address. InvalidArgument where it can't be opened."""
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
    """Beyond this gRPC itself refuses."""
    return 2 * settings.grpc_streams_max + settings.grpc_group_waits_max + SPARE_CALLS


def _connection_calls_max(settings: GatewaySettings) -> int:
    """Of one connection; its client keeps back what is more. A proxy, or another broker, may send the calls of all its clients over
    one: so all that is counted fits, and is throttled here rather than kept back there. What is left is no single connection's."""
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
        ("grpc.http2.bdp_probe", 0),  # it lets each connection hold megabytes that nobody has admitted
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ("grpc.so_reuseport", 0),  # a second broker on the same port must fail, not share it
    ]


def observed(handler: MethodHandler, traffic: Traffic, tracing: Tracer | None, method: str) -> MethodHandler:
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
        current = RequestContext(traffic.over_grpc(is_forwarded=forwarded), request_id, traceparent)
        current.trace_with(tracing, method)
        token = begin_call(current)
        try:
            return await behavior(request, context)
        finally:
            end_call(current, token)

    made: MethodHandler = HANDLER_OF[bool(handler.request_streaming), bool(handler.response_streaming)](call)
    return made
