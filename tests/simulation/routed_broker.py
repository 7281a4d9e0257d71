"""A broker of the simulation with what stands before its log: routes, forwarding, and the handlers of both listeners.

    client ── HTTP request, gRPC call ▶ [HttpProduce, HttpFetch, GrpcLogService ─▶ ClusterLog ─▶ SessionLog, Forwarding, PeerReads]
                                                                                                  │ Peers
                                          [GrpcLogService ─▶ LocalLog ─▶ SessionLog] ◀── PeerChannel ◀────────┘

Everything between the brackets is the code of the product. Only sockets are left out: a PeerChannel carries the bytes of a call to
the process that has the address, and runs its handler there; listener_calls.py plays the servers of gRPC and HTTP.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
import msgspec

from gateway.api import Broker
from gateway.cluster.view import ClusterView
from gateway.concurrency.shutdown import LongWaits
from gateway.grpc.produce.open_streams import ProducerStreams
from gateway.grpc.services.log import SERVICE, GrpcLogService
from gateway.http.records.fetch import HttpFetch
from gateway.http.records.produce import HttpProduce
from gateway.routing.cluster_log import ClusterLog
from gateway.routing.forwarder import Forwarding
from gateway.routing.local_log import LocalLog
from gateway.routing.log_service import LogService
from gateway.routing.peer_channels import CONNECT_TIMEOUT_S, WRITES_AT_ONCE, Peers, _unreachable
from gateway.routing.peer_reader import PeerReads
from gateway.settings import GatewaySettings
from gateway.telemetry.registry import Metrics
from metadata.cluster.broker_registry import Registration
from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import TopicPartition
from metadata.store.keys import EtcdLayout
from metadata.topics.registry import Topics
from segments.log.session_log import SessionLog
from tests.kit.faulty_store import Faults
from tests.simulation.broker_process import BrokerProcess, Site
from tests.simulation.listener_calls import GrpcMethod, Metadata, RpcEnd, called
from tests.simulation.simulated_process import Wire

# What a takeover may take beyond the lease of the old leader, as in gateway/broker.py.
TAKE_OVER_S: Final = 5.0
# Small enough that a long poll or a wait of a listener ends within a world.
LISTENERS: Final = GatewaySettings(produce_timeout_ms=5_000, message_bytes_max=1 << 14, fetch_bytes_max=1 << 16)
STOP_GRACE_S: Final = 1.0
T = TypeVar("T")


class Served:
    """What the listeners need of a broker (gateway/api.py), without groups, access control and commands."""

    tracing = None
    guard = None
    bucket_trouble = None
    grpc_address = ""
    http_address = ""
    settings = LISTENERS

    def __init__(self, view: ClusterView, topics: Topics, cluster_log: LogService, local_log: LocalLog, *, broker_id: str) -> None:
        self.broker_id = broker_id
        self.topics = topics
        self.topic_cache = view.topics
        self.cluster_log = cluster_log
        self.local_log = local_log
        self.metrics = Metrics()
        self.leader = view.leader


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
    ) -> None:
        """`at_address`: the process that other brokers reach at an address; None where there never was one."""
        super().__init__(name, site, broker_id=broker_id, rack=rack, faults=faults)
        self.leadership.registration = msgspec.structs.replace(self.leadership.registration, grpc_address=name, http_address=name)
        self.wire = Wire(random.Random(f"{site.seed}/{name}/peers"))
        """To the other brokers."""
        self._stopping = False
        peers = SimulatedPeers(self, at_address)
        leader_wait_s = site.cluster.session_timeout_ms / 1000 + TAKE_OVER_S
        self.forwarding = Forwarding(
            self._log,
            self.view,
            peers,
            broker_id=broker_id,
            budget=self.leadership.budget,
            is_stopping=lambda: self._stopping,
        )
        self.leadership.subscribe(self.forwarding.led_here)
        local_log = LocalLog(self._log, self.view, self.leadership.taken_over)
        self.cluster_log = ClusterLog(
            local_log,
            self.view,
            self.forwarding,
            PeerReads(peers),
            broker_id=broker_id,
            settings=site.settings,
            budget=self.leadership.budget,
            leader_wait_s=leader_wait_s,
            rack=rack,
        )
        served = cast(
            "Broker", Served(self.view, Topics(self.metadata, EtcdLayout()), self.cluster_log, local_log, broker_id=broker_id)
        )
        self._waits = LongWaits()
        self.http_fetch = HttpFetch(served, self._waits)
        self.http_produce = HttpProduce(served, self.http_fetch.room)
        handlers = GrpcLogService(served, self._waits, ProducerStreams()).handlers()
        self.methods: Mapping[str, GrpcMethod] = {f"/{SERVICE}/{name}": handler for name, handler in handlers.items()}

    def _log(self) -> SessionLog:
        return self.leadership.log

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self.view.run())
                while not await self.view.read(timeout_s=60):
                    pass
                forwarding = tasks.create_task(self.forwarding.run())
                await self.leadership.run()
                await self.forwarding.until_quiet(quiet_s=0.2, timeout_s=STOP_GRACE_S)
                self._waits.stop()
                forwarding.cancel()
                following.cancel()
        finally:
            self.cut_from_clients()  # the process exits

    async def ask(self, serve: Callable[[], Awaitable[T]], *, latency_s: float, timeout_s: float, hang_up: bool) -> T:
        if self.ended:
            raise Unavailable(f"{self.name} takes no connection")
        return await super().ask(serve, latency_s=latency_s, timeout_s=timeout_s, hang_up=hang_up)

    def stop(self) -> None:
        self._stopping = True
        super().stop()

    # ── what it knows ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lag_behind_topics(self, lag_s: float) -> None:
        """From now on it hears of changes of topics so much later than of others."""
        self.metadata.range_delays_s[EtcdLayout().topics] = lag_s

    def knows(self, partition: TopicPartition) -> bool:
        """Whether its view of the topics has the partition."""
        try:
            return partition.partition < self.view.topics.by_id(partition.topic_id).partition_count
        except TidelogError:
            return False


class SimulatedPeers(Peers):
    """The real one, over channels that need no socket."""

    def __init__(self, caller: RoutedBroker, at_address: Callable[[str], RoutedBroker | None]) -> None:
        super().__init__(caller.broker_id)
        self._channels = PeerChannels(caller, at_address)

    async def close(self) -> None:
        """Keeps the channels: what is still served here may ask other brokers."""


class PeerChannels(dict[str, Any]):
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
        self.turns = asyncio.Semaphore(WRITES_AT_ONCE)

    async def connected(self, peer: Registration, timeout_s: float) -> None:
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
