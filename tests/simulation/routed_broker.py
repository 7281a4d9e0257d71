"""A broker of the simulation with what stands before its log: routes, forwarding, and the handlers of both listeners.

    client ── HTTP request, gRPC call ▶ [HttpProduce, HttpFetch, GrpcLogService ─▶ ClusterLog ─▶ SessionLog, Forwarding, PeerReader]
                                                                                                  │ Peers
                                          [GrpcLogService ─▶ LocalLog ─▶ SessionLog] ◀── PeerChannel ◀────────┘

Everything between the brackets is the code of the product. Only sockets are left out: a PeerChannel carries the bytes of a call to
the process that has the address, and runs its handler there; listener_calls.py plays the servers of gRPC and HTTP. With access
control the guards of both listeners stand before the handlers, and calls between brokers carry tokens.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
import msgspec

from gateway.access.authentication import Authenticator
from gateway.access.bootstrap import NO_ACCESS, BrokerAccess, peer_metadata
from gateway.access.guard import AccessGuard
from gateway.access.peer_tokens import PeerMetadata, PeerTokens
from gateway.access.quotas import PrincipalQuotas
from gateway.access.settings import AccessSettings
from gateway.api import BrokerApi
from gateway.cluster.view import ClusterView
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.grpc.guard import GrpcGuard
from gateway.grpc.limits import CallLimiter
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.services.log import SERVICE, GrpcLogService
from gateway.http.guard import HttpGuard
from gateway.http.records.fetch import HttpFetch
from gateway.http.records.produce import HttpProduce
from gateway.http.request import Receive, Request, Send
from gateway.kafka.connection import Requests
from gateway.kafka.listener_config import ListenerConfig, Route
from gateway.kafka.server import KafkaServer
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import ProduceForwarder
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import LogService
from gateway.routing.peer_channels import CONNECT_TIMEOUT_S, WRITES_MAX, PeerChannels, _unreachable
from gateway.routing.peer_reader import PeerReader
from gateway.settings import GatewaySettings
from gateway.telemetry.registry import MetricsRegistry
from metadata.access.cache import AccessCache
from metadata.cluster.broker_registry import BrokerRegistration, KafkaListener
from metadata.cluster.id_allocation import ProducerIds
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import TopicPartition
from metadata.secret import Secret
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.registry import TopicRegistry
from segments.log.session_log import SessionLog
from tests.kit.faulty_store import Faults
from tests.simulation.broker_process import BrokerProcess, Site
from tests.simulation.kafka_line import KafkaLine
from tests.simulation.listener_calls import GrpcMethod, HttpCall, Metadata, RpcEnd, called
from tests.simulation.simulated_process import Wire
from tests.simulation.virtual_loop import virtual_loop

# What a takeover may take beyond the lease of the old leader, as in gateway/broker/broker.py.
TAKE_OVER_S: Final = 5.0
# Small enough that a long poll or a wait of a listener ends within a world.
LISTENERS: Final = GatewaySettings(produce_timeout_ms=5_000, message_bytes_max=1 << 14, fetch_bytes_max=1 << 16)
STOP_GRACE_S: Final = 1.0
# More than one simulated client ever opens.
CALLS_MAX: Final = 10_000
# Kafka's listeners: of clients that connect to leaders, and of those behind one address for all brokers.
KAFKA_LISTENERS: Final = (
    ListenerConfig("direct", "", "", Route.DIRECT),
    ListenerConfig("balanced", "", "", Route.FORWARD),
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AccessTerms:
    """What the brokers of a world with access control share."""

    # access_max_age_ms
    age_s: float
    peer_secret: Secret


def opened_access(terms: AccessTerms, metadata: MetadataStore, *, broker_id: str, now_ms: Callable[[], int]) -> BrokerAccess:
    """Makes the guard of one broker, as open_access in gateway/access/bootstrap.py does."""
    tokens = PeerTokens(terms.peer_secret, cluster_id="simulated", broker_id=broker_id, now_ms=now_ms)
    cache = AccessCache(metadata, KeyLayout(), age_s_max=terms.age_s)
    authentication = Authenticator(AccessSettings(authentication=True), cache, now_ms=now_ms)
    guard = AccessGuard(cache, authentication, PrincipalQuotas(cache, virtual_loop().time), None, tokens, now_ms=now_ms)
    return BrokerAccess(guard, peer_metadata(tokens))


class Served:
    """What the listeners need of a broker (gateway/api.py), without groups and commands."""

    tracing = None
    bucket_trouble = None
    grpc_address = ""
    http_address = ""
    cluster_id = "simulated"
    access = None
    settings = LISTENERS

    def __init__(
        self,
        view: ClusterView,
        topics: TopicRegistry,
        cluster_log: LogService,
        local_log: LocalLog,
        session_log: Callable[[], SessionLog],
        session: Callable[[], int | None],
        *,
        broker_id: str,
        guard: AccessGuard | None,
    ) -> None:
        self._view = view
        self._session_log = session_log
        self.producer_ids = ProducerIds(session, random.Random(broker_id).randbytes)
        self.broker_id = broker_id
        self.guard = guard
        self.topics = topics
        self.topic_cache = view.topics
        self.cluster_log = cluster_log
        self.local_log = local_log
        self.metrics = MetricsRegistry()
        self.leader = view.leader

    @property
    def log(self) -> SessionLog:
        return self._session_log()

    def leader_epoch(self, partition: TopicPartition) -> int:
        state = self._view.partitions.get(partition)
        return state.leader_epoch if state is not None else -1

    def last_leader(self, partition: TopicPartition) -> BrokerRegistration | None:
        state = self._view.partitions.get(partition)
        return self._view.brokers.last_with_session(state.leader_session) if state is not None else None

    def registrations(self) -> Iterable[BrokerRegistration]:
        return self._view.brokers.brokers.values()

    def registration(self, broker_id: str) -> BrokerRegistration | None:
        return self._view.brokers.brokers.get(broker_id)


class RoutedBroker(BrokerProcess):
    def __init__(
        self,
        name: str,
        site: Site,
        *,
        broker_id: str,
        rack: str,
        faults: Faults,
        at_address: Callable[[str], RoutedBroker | None],
        access: AccessTerms | None = None,
        serves_kafka: bool = False,
    ) -> None:
        """`at_address`: the process that other brokers reach at an address; None where there never was one. `access`: None
        without authentication. `serves_kafka`: whether it has listeners for Kafka's clients."""
        super().__init__(name, site, broker_id=broker_id, rack=rack, faults=faults)
        listeners = tuple(KafkaListener(name=each.name, host=name, port=9092) for each in KAFKA_LISTENERS) if serves_kafka else ()
        self.leadership.registration = msgspec.structs.replace(
            self.leadership.registration, grpc_address=name, http_address=name, kafka_listeners=listeners
        )
        self.kafka_lines: dict[KafkaLine, None] = {}
        self.wire = Wire(random.Random(f"{site.seed}/{name}/peers"))
        """To the other brokers."""
        self._stopping = False
        # From when to when it was stopped by SIGSTOP.
        self.frozen_spans: list[tuple[float, float]] = []
        self._frozen_s = 0.0
        opened = NO_ACCESS
        if access is not None:
            opened = opened_access(
                access, self.metadata, broker_id=broker_id, now_ms=lambda: virtual_loop().now_ms() + self.clock_skew_ms
            )
            self.metadata.handed = {KeyLayout().api_keys: [], KeyLayout().acls: []}
        self.guard = guard = opened.guard
        peers = SimulatedPeers(self, at_address, opened.peer_metadata)
        leader_wait_s = site.cluster.session_timeout_ms / 1000 + TAKE_OVER_S
        self.forwarding = ProduceForwarder(
            self._log,
            self.view,
            peers,
            broker_id=broker_id,
            budget=self.leadership.budget,
            is_stopping=lambda: self._stopping,
        )
        self.leadership.subscribe(self.forwarding.on_takeover)
        local_log = LocalLog(self._log, self.view, self.leadership.await_takeover)
        self.cluster_log = ClusterLog(
            local_log,
            self.view,
            self.forwarding,
            PeerReader(peers),
            broker_id=broker_id,
            settings=site.settings,
            budget=self.leadership.budget,
            leader_wait_s=leader_wait_s,
            rack=rack,
        )
        served = cast(
            "BrokerApi",
            Served(
                self.view,
                TopicRegistry(self.metadata, KeyLayout()),
                self.cluster_log,
                local_log,
                self._log,
                lambda: self.leadership.session,
                broker_id=broker_id,
                guard=guard,
            ),
        )
        self._kafka = KafkaServer(served, KAFKA_LISTENERS) if serves_kafka else None
        self._waits = InterruptibleWaits()
        self.http_fetch = HttpFetch(served, self._waits)
        self.http_produce = HttpProduce(served, self.http_fetch.budget)
        handlers = GrpcLogService(served, self._waits, ProducerStreams()).handlers()
        methods: dict[str, GrpcMethod] = {f"/{SERVICE}/{name}": handler for name, handler in handlers.items()}
        self._http_guard: HttpGuard | None = None
        if guard is not None:
            self._http_guard, grpc_guard, calls = HttpGuard(guard), GrpcGuard(guard), CallLimiter(CALLS_MAX)
            methods = {path: grpc_guard.guarded(path, handler, calls) for path, handler in methods.items()}
        self.methods: Mapping[str, GrpcMethod] = methods

    def _log(self) -> SessionLog:
        return self.leadership.log

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self.view.run())
                guarding = None if self.guard is None else tasks.create_task(self.guard.run())
                while not await self.view.read(timeout_s=60):
                    pass
                forwarding = tasks.create_task(self.forwarding.run())
                await self.leadership.run()
                await self.forwarding.wait_until_quiet(quiet_s=0.2, timeout_s=STOP_GRACE_S)
                self._waits.stop()
                if self._kafka is not None:
                    await self._kafka.stop(STOP_GRACE_S)
                forwarding.cancel()
                following.cancel()
                if guarding is not None:
                    guarding.cancel()
        finally:
            self.cut_from_clients()  # the process exits

    async def ask(self, serve: Callable[[], Awaitable[T]], *, latency_s: float, timeout_s: float, hang_up: bool) -> T:
        if self.ended:
            raise Unavailable(f"{self.name} takes no connection")
        return await super().ask(serve, latency_s=latency_s, timeout_s=timeout_s, hang_up=hang_up)

    # ── Kafka's clients ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def kafka_requests(self) -> Requests:
        assert self._kafka is not None, "the world has Kafka clients"
        return self._kafka.requests

    @property
    def takes_connections(self) -> bool:
        return not self.ended and not self.unreachable

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        virtual_loop().call_later(delay_s, work, context=self._context.copy())

    def failed_to_answer(self, error: BaseException) -> None:
        self._failed_to_answer(error)

    def kill(self) -> None:
        super().kill()
        self._break_kafka_lines("the broker was killed")

    def cut_from_clients(self) -> None:
        super().cut_from_clients()
        self._break_kafka_lines("the broker is out of reach")

    def _break_kafka_lines(self, why: str) -> None:
        for line in self.kafka_lines:
            line.break_later(why)

    # ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def post(self, call: HttpCall, topic: str) -> None:
        """Serves POST …/topics/{topic}/records, as the HTTP listener does."""
        await self._answered(call, topic, lambda request: self.http_produce.produce(request, topic))

    async def read_topic(self, call: HttpCall, topic: str) -> None:
        """Serves GET …/topics/{topic}/records."""
        await self._answered(call, topic, lambda request: self.http_fetch.topic(request, topic))

    async def read_partition(self, call: HttpCall, topic: str, partition: int) -> None:
        """Serves GET …/topics/{topic}/partitions/{partition}/records."""
        handler = self.http_fetch.partition
        await self._answered(call, topic, lambda request: handler(request, topic, str(partition)), f"partitions/{partition}/")

    async def _answered(self, call: HttpCall, topic: str, handle: Callable[[Request], Awaitable[None]], below: str = "") -> None:
        if self._http_guard is None:
            await handle(call.request)
            return

        async def route(receive: Receive, send: Send) -> None:
            await handle(Request(call.scope, receive, send))

        parts = f"/v1/topics/{topic}/{below}records".split("/")
        await self._http_guard.answer(call.scope, call.receive, call.send, parts, "", route)

    def freeze(self, *, wire_too: bool = False) -> None:
        self._frozen_s = virtual_loop().time()
        super().freeze(wire_too=wire_too)

    def thaw(self) -> None:
        if self.frozen:
            self.frozen_spans.append((self._frozen_s, virtual_loop().time()))
        super().thaw()

    def stop(self) -> None:
        self._stopping = True
        super().stop()

    # ── what it knows ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lag_behind_topics(self, lag_s: float) -> None:
        """From now on it hears of changes of topics so much later than of others."""
        self.metadata.range_delays_s[KeyLayout().topics] = lag_s

    def lag_behind_access(self, lag_s: float) -> None:
        """From now on it hears so much later of changes of API keys, ACLs and quotas."""
        layout = KeyLayout()
        for prefix in (layout.api_keys, layout.acls, layout.quotas):
            self.metadata.range_delays_s[prefix] = lag_s

    def knows(self, partition: TopicPartition) -> bool:
        """Whether its view of the topics has the partition."""
        try:
            return partition.partition < self.view.topics.by_id(partition.topic_id).partition_count
        except TidelogError:
            return False


class SimulatedPeers(PeerChannels):
    """The real one, over channels that need no socket."""

    def __init__(
        self, caller: RoutedBroker, at_address: Callable[[str], RoutedBroker | None], call_metadata: PeerMetadata | None
    ) -> None:
        super().__init__(caller.broker_id, call_metadata=call_metadata)
        self._channels = SimulatedChannels(caller, at_address)

    async def close(self) -> None:
        """Keeps the channels: what is still served here may ask other brokers."""


class SimulatedChannels(dict[str, Any]):
    """The channels of one broker by address, made when they are first asked for."""

    def __init__(self, caller: RoutedBroker, at_address: Callable[[str], RoutedBroker | None]) -> None:
        super().__init__()
        self._caller = caller
        self._at_address = at_address

    def get(self, address: str, default: Any = None) -> Any:
        if address not in self:
            self[address] = PeerChannel(self._caller, self._at_address(address))
        return self[address]


class PeerChannel:
    """In place of `_Channel` in gateway/routing/peer_channels.py: calls of one broker to another, which come late, get lost, or
    break."""

    def __init__(self, caller: RoutedBroker, called: RoutedBroker | None) -> None:
        self._caller = caller
        self._called = called
        self.write_slots = asyncio.Semaphore(WRITES_MAX)

    async def wait_connected(self, peer: BrokerRegistration, timeout_s: float) -> None:
        called, wire = self._called, self._caller.wire
        if called is None or called.ended or called.unreachable or wire.cut or called.wire.cut:
            await asyncio.sleep(min(CONNECT_TIMEOUT_S, timeout_s))
            raise _unreachable(peer)

    def method(self, name: str) -> Callable[..., Awaitable[bytes]]:
        async def call(message: bytes, *, timeout: float, metadata: Metadata) -> bytes:
            return await self._call(name, message, timeout, metadata)

        return call

    async def _call(self, name: str, message: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        called, wire = self._called, self._caller.wire
        assert called is not None, "it is connected"
        if wire.loses_it():
            await asyncio.sleep(min(timeout_s, wire.breaks_after_s()))
            raise _broken(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        try:
            end = await called.ask(
                lambda: ended(called, name, message, metadata, timeout_s),
                latency_s=wire.travel_s(),
                timeout_s=timeout_s,
                hang_up=True,
            )
        except Unavailable as error:
            raise _broken(grpc.StatusCode.UNAVAILABLE, error.message) from None
        except OutcomeUnknown as error:
            raise _broken(grpc.StatusCode.DEADLINE_EXCEEDED, error.message) from None
        if wire.loses_it():
            await asyncio.sleep(wire.breaks_after_s())
            raise _broken(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        if end.answer is None:
            raise grpc.aio.AioRpcError(end.code, grpc.aio.Metadata(), grpc.aio.Metadata(*end.trailers), end.details)
        return end.answer

    async def close(self, grace_s: float | None) -> None:
        """Calls that are under way go on."""


async def ended(broker: RoutedBroker, name: str, message: bytes, metadata: Metadata, timeout_s: float) -> RpcEnd:
    """Answers a unary call in the process of the broker."""
    end = await called(broker.methods[name], message, metadata, time_left_s=timeout_s)
    if end.bug is not None:
        broker.ended_by(end.bug)
    return end


def _broken(code: grpc.StatusCode, why: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), why)
