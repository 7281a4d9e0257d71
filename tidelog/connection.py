"""Where the brokers are: addresses, gRPC channels, topics and who leads their partitions.

    connect("http://a:8080,http://b:8080")  ──GET /v1/cluster──▶ grpc_address of each broker
    connect("grpc://a:9090")                ──GetCluster───────▶ the same, and what each broker takes

The first address that answers is enough. What was learnt about a topic (routes.py) is kept for `topic_age_ms_max`, and asked for
again when a broker says that it has changed; one question at a time for each topic, however many wait for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from gateway.proto import admin_pb2, admin_pb2_grpc, log_pb2_grpc
from metadata.errors import Rejected, Throttled, TidelogError, Unavailable, UnknownTopic
from tidelog.addresses import Address, cluster_over_http, grpc_target, parse_address, parse_addresses, speaks_http
from tidelog.routes import UNTOLD, BrokerLimits, limits_from, route_from
from tidelog.routes import TopicRoute as TopicRoute
from tidelog.rpc_errors import error_of_rpc, unreachable
from tidelog.settings import MIB, ClientSettings

_Answer = TypeVar("_Answer")

ANSWER_SLACK_BYTES = 32 * MIB
"""An answer to a fetch may be this much above `fetch_bytes_max`: one batch is always answered, were it larger."""

LAST_EVENTS_S = 0.01

CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that vanished without a word is noticed after 30 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a client's back-off is its own
)


class Stubs:
    """The three services at one address."""

    def __init__(self, address: str, *, answer_bytes_max: int) -> None:
        self.address = address
        options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", answer_bytes_max))
        self.channel = channel = grpc.aio.insecure_channel(address, options=options)
        # The generated stubs carry no types, and are made for blocking channels too.
        self.log: Any = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.topics: Any = admin_pb2_grpc.TopicsStub(channel)  # type: ignore[no-untyped-call]
        self.cluster: Any = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]


class _Question:
    """A topic's route, as it is asked for: one asks, the others wait for the answer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failure: TidelogError | None = None
        self.failed_s = 0.0
        """Since when it is known that it failed."""


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
        self._limits_at: dict[str, BrokerLimits] = {}
        """By gRPC address, of those that told."""
        self._routes: dict[str, TopicRoute] = {}
        self._questions: WeakValueDictionary[str, _Question] = WeakValueDictionary()
        """By topic, as long as somebody waits for the answer."""

    async def open(self) -> None:
        """Finds the cluster at the first address that answers; raises Unavailable with what each of them met.

        The addresses that were given come first, then those of brokers that were there before.
        """
        met: list[TidelogError] = []
        learnt = [parse_address(f"grpc://{host_port}") for host_port in self._grpc_address_of.values()]
        for address in dict.fromkeys([*self._addresses, *learnt]):
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
            self._stubs[address] = Stubs(address, answer_bytes_max=self._settings.fetch_bytes_max + ANSWER_SLACK_BYTES)
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

    async def call(self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, writes: bool, at: str | None = None) -> _Answer:
        """A unary call at any broker, or first of all at the address `at`: `attempt` gets the services and its timeout in seconds.

        What wrote nothing is tried again until `request_timeout_ms`, at another broker where there is one. What only reads is
        tried at least three times in that time, so that a broker that keeps silent does not use it up.
        Errors: the tree of metadata/errors.py; OutcomeUnknown only where `writes`.
        """
        timeout_s = self._settings.request_timeout_ms / 1000
        attempt_timeout_s = timeout_s if writes else timeout_s / 3
        deadline_s = time.monotonic() + timeout_s
        pause_s = self._settings.retry_pause_ms / 1000
        address = at or self._seed
        while True:
            attempt_deadline_s = min(deadline_s, time.monotonic() + attempt_timeout_s)
            try:
                return await self._attempt(attempt, address=address, writes=writes, deadline_s=attempt_deadline_s)
            except Unavailable as error:
                wait_s = error.retry_after_s if isinstance(error, Throttled) else pause_s * random.uniform(0.5, 1.5)
                if time.monotonic() + wait_s >= deadline_s:
                    raise
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)
            with suppress(TidelogError, TimeoutError):
                async with asyncio.timeout(deadline_s - time.monotonic()):
                    await self.open()  # brokers come back at other addresses
            address = self._seed

    async def _attempt(
        self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, address: str, writes: bool, deadline_s: float
    ) -> _Answer:
        try:
            return await attempt(self.stubs(address), max(0.001, deadline_s - time.monotonic()))
        except grpc.aio.AioRpcError as error:
            raise error_of_rpc(error, address=address, writes=writes) from error

    # ── topics and leaders ──

    async def route(self, topic: str, *, fresh: bool = False, at: str | None = None) -> TopicRoute:
        """The topic's partitions and their leaders; `fresh` asks anew. `at` an address, that broker is asked, and only once.

        Raises UnknownTopic, Unavailable. Who comes while another asks shares its failure: they do not wait one after the other.
        """
        came_s = time.monotonic()
        wanted_since_s = came_s - (0.0 if fresh else self._settings.topic_age_ms_max / 1000)
        if (route := self._known_route(topic, wanted_since_s)) is not None:
            return route
        question = self._questions.setdefault(topic, _Question())
        async with question.lock:
            if (route := self._known_route(topic, wanted_since_s)) is not None:  # somebody else has asked meanwhile
                return route
            if question.failure is not None and question.failed_s >= came_s:
                raise copy(question.failure)
            asked_s = time.monotonic()
            try:
                route = await self._ask_for_route(topic, at)
            except TidelogError as error:
                if isinstance(error, UnknownTopic):
                    self._routes.pop(topic, None)
                if at is None:
                    # A topic may have been created while this was asked; that nobody answers is true until now.
                    question.failure, question.failed_s = (
                        copy(error),
                        time.monotonic() if isinstance(error, Unavailable) else asked_s,
                    )
                raise
            kept_since_s = asked_s - self._settings.topic_age_ms_max / 1000
            self._routes = {name: kept for name, kept in self._routes.items() if kept.learnt_s >= kept_since_s}
            self._routes[topic] = route
            return route

    def forget_route(self, topic: str) -> None:
        """The topic may have been changed by us: whoever asks next asks the cluster."""
        self._routes.pop(topic, None)

    def limits(self, address: str) -> BrokerLimits:
        """What the broker at this address takes, as far as it told."""
        return self._limits_at.get(address, UNTOLD)

    def _known_route(self, topic: str, wanted_since_s: float) -> TopicRoute | None:
        route = self._routes.get(topic)
        return route if route is not None and route.learnt_s >= wanted_since_s else None

    async def _ask_for_route(self, name: str, at: str | None) -> TopicRoute:
        asked_s = time.monotonic()
        request = admin_pb2.GetTopicRequest(name=name)

        def get_topic(to: Stubs, timeout_s: float) -> Any:
            return to.topics.GetTopic(request, timeout=timeout_s)

        # The cluster as well: leaders may be at other addresses by now, and take less.
        if at is None:
            await self.cluster()
            found = await self.call(get_topic, writes=False)
        else:
            deadline_s = asked_s + self._settings.connect_timeout_ms / 1000
            self._learn_cluster(await self._attempt(_get_cluster, address=at, writes=False, deadline_s=deadline_s))
            found = await self._attempt(get_topic, address=at, writes=False, deadline_s=deadline_s)
        return route_from(found, address_of=self._grpc_address_of, limits_at=self._limits_at, anyone=self._seed, learnt_s=asked_s)

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
            known = dict.fromkeys(known, reached.host_port) if len(known) == 1 else known
            self._seed = reached.host_port
        elif known:
            serving = [known[broker.broker_id] for broker in cluster.brokers if not broker.draining] or list(known.values())
            self._seed = self._seed if self._seed in serving else serving[0]
        else:
            raise Unavailable(f"{reached}: the cluster has no broker yet", hint="Try again in a moment.", address=str(reached))
        self._grpc_address_of = known
        told = {known[broker.broker_id]: limits_from(broker) for broker in cluster.brokers}
        self._limits_at = {address: limits or self.limits(address) for address, limits in told.items()}


def _get_cluster(to: Stubs, timeout_s: float) -> Any:
    return to.cluster.GetCluster(admin_pb2.GetClusterRequest(), timeout=timeout_s)
