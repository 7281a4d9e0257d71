"""Where the brokers are: addresses, gRPC channels, topics and who leads their partitions.

    connect("http://a:8080,http://b:8080")  ──GET /v1/cluster──▶ grpc_address of each broker
    connect("grpc://a:9090")                ──GetCluster───────▶ the same

The first address that answers is enough. What was learnt about a topic is kept for `topic_age_ms_max`, and asked for again when a
broker says that it has changed; one question at a time for each topic, however many wait for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from gateway.proto import admin_pb2, admin_pb2_grpc, log_pb2_grpc
from metadata.errors import Rejected, TidelogError, Unavailable
from tidelog.addresses import Address, cluster_over_http, grpc_target, parse_addresses, speaks_http
from tidelog.rpc_errors import error_of_rpc, unreachable
from tidelog.settings import MIB, ClientSettings

_Answer = TypeVar("_Answer")

MESSAGE_BYTES_MAX = 64 * MIB
"""Above the largest answer to a fetch: `fetch_bytes_max`, or one batch where that is larger."""

LAST_EVENTS_S = 0.01

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that vanished without a word is noticed after 30 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a client's back-off is its own
)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """What a client needs to know of a topic to reach its partitions."""

    name: str
    topic_id: str
    settings: dict[str, str]
    leaders: tuple[str, ...]
    """gRPC address by partition."""
    learnt_s: float

    @property
    def partition_count(self) -> int:
        return len(self.leaders)


class Stubs:
    """The three services at one address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        # The generated stubs carry no types, and are made for blocking channels too.
        self.log: Any = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.topics: Any = admin_pb2_grpc.TopicsStub(channel)  # type: ignore[no-untyped-call]
        self.cluster: Any = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]


class Connection:
    def __init__(self, addresses: Iterable[str], settings: ClientSettings) -> None:
        self._addresses = parse_addresses(addresses)
        self._settings = settings
        self._stubs: dict[str, Stubs] = {}
        self._reached = self._addresses[0]
        """The address that answered."""
        self._seed = ""
        """gRPC address of the broker that answers what any broker can answer."""
        self._grpc_address_of: dict[str, str] = {}
        """By broker id."""
        self._routes: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def open(self) -> None:
        """Finds the cluster at the first address that answers; raises Unavailable with what each of them met."""
        met: list[TidelogError] = []
        for address in self._addresses:
            try:
                cluster = await self._ask_for_cluster(address)
                self._reached = address
                self._learn_cluster(cluster)
            except TidelogError as error:
                met.append(error)
            else:
                return
        if len(met) == 1:
            raise met[0]
        raise Unavailable("no address answered: " + "; ".join(error.message for error in met), hint=met[0].hint)

    async def close(self) -> None:
        for stubs in self._stubs.values():
            await stubs.channel.close()
        # grpc reports cancelled operations once more from its own thread; after the loop's end that would disturb the next loop.
        await asyncio.sleep(LAST_EVENTS_S)

    def stubs(self, address: str) -> Stubs:
        """The services at a gRPC address; the connection is made at the first call, and again whenever it broke."""
        if address not in self._stubs:
            self._stubs[address] = Stubs(address)
        return self._stubs[address]

    async def until_connected(self, address: str) -> None:
        """Returns when a connection stands; so whoever calls next knows that before it nothing went out. Raises Unavailable."""
        channel = self.stubs(address).channel
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise unreachable(address, "the connection is refused, or was lost")
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise unreachable(address, f"no connection within {self._settings.connect_timeout_ms:g} ms") from None

    async def call(self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, writes: bool) -> _Answer:
        """A unary call at any broker: `attempt` gets the services and its timeout in seconds.

        What wrote nothing is tried again until `request_timeout_ms`, at another broker where there is one.
        Errors: the tree of metadata/errors.py; OutcomeUnknown only where `writes`.
        """
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1000
        pause_s = self._settings.retry_pause_ms / 1000
        while True:
            try:
                return await self._attempt(attempt, address=self._seed, writes=writes, deadline_s=deadline_s)
            except Unavailable:
                if time.monotonic() + pause_s >= deadline_s:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)
            with suppress(TidelogError):
                await self.open()  # brokers come back at other addresses

    async def _attempt(
        self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, address: str, writes: bool, deadline_s: float
    ) -> _Answer:
        try:
            return await attempt(self.stubs(address), max(0.001, deadline_s - time.monotonic()))
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(error, address=address, writes=writes) from error

    # ── topics and leaders ──

    async def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """The topic's partitions and their leaders; `fresh` asks anew. Raises UnknownTopic, Unavailable."""
        wanted_since_s = time.monotonic() - (0.0 if fresh else self._settings.topic_age_ms_max / 1000)
        route = self._routes.get(topic)
        if route is not None and route.learnt_s >= wanted_since_s:
            return route
        async with self._asking.setdefault(topic, asyncio.Lock()):
            route = self._routes.get(topic)
            if route is None or route.learnt_s < wanted_since_s:  # nobody else has asked meanwhile
                route = self._routes[topic] = await self._ask_for_route(topic)
            return route

    async def _ask_for_route(self, name: str) -> TopicRoute:
        asked_s = time.monotonic()
        request = admin_pb2.GetTopicRequest(name=name)
        found: admin_pb2.Topic = await self.call(lambda to, timeout_s: to.topics.GetTopic(request, timeout=timeout_s), writes=False)
        unknown = {state.leader for state in found.partitions if state.leader} - self._grpc_address_of.keys()
        if unknown:
            await self.cluster()
        leaders = [self._seed] * found.partition_count
        for state in found.partitions:
            leaders[state.partition] = self._grpc_address_of.get(state.leader, self._seed)
        return TopicRoute(found.name, found.id, dict(found.settings), tuple(leaders), learnt_s=asked_s)

    # ── the cluster ──

    async def cluster(self) -> admin_pb2.ClusterDescription:
        answer: admin_pb2.ClusterDescription = await self.call(_get_cluster, writes=False)
        self._learn_cluster(answer)
        return answer

    async def _ask_for_cluster(self, address: Address) -> admin_pb2.ClusterDescription:
        timeout_s = self._settings.connect_timeout_ms / 1000
        if address.scheme == "http":
            return await cluster_over_http(address, timeout_s=timeout_s)
        try:
            await self.until_connected(address.host_port)
        except Unavailable as error:
            if await speaks_http(address, timeout_s=timeout_s):
                raise Rejected(
                    f"{address}: what answers there speaks HTTP: it is not the gRPC port of a broker",
                    hint=f"Give the broker's gRPC port (9090 by default), or http://{address.host_port}.",
                    address=str(address),
                ) from error
            raise
        deadline_s = time.monotonic() + timeout_s
        answer: admin_pb2.ClusterDescription = await self._attempt(
            _get_cluster, address=address.host_port, writes=False, deadline_s=deadline_s
        )
        return answer

    def _learn_cluster(self, cluster: admin_pb2.ClusterDescription) -> None:
        """Takes over who is there. A lone broker that was reached by gRPC is called where it was reached: port forwards work."""
        reached = self._reached
        known = {broker.broker_id: grpc_target(broker.grpc_address, reached=reached) for broker in cluster.brokers}
        if reached.scheme == "grpc":
            self._grpc_address_of = dict.fromkeys(known, reached.host_port) if len(known) == 1 else known
            self._seed = reached.host_port
            return
        if not known:
            raise Unavailable(f"{reached}: the cluster has no broker yet", hint="Try again in a moment.", address=str(reached))
        serving = [known[broker.broker_id] for broker in cluster.brokers if not broker.draining] or list(known.values())
        self._grpc_address_of = known
        if self._seed not in serving:
            self._seed = serving[0]


def _get_cluster(to: Stubs, timeout_s: float) -> Any:
    return to.cluster.GetCluster(admin_pb2.GetClusterRequest(), timeout=timeout_s)
