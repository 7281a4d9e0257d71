"""Finds the brokers of a cluster, its topics, and the leaders of their partitions.

    connect("http://a:8080,http://b:8080")  ──GET /v1/cluster──▶ grpc_address of each broker
    connect("grpc://a:9090")                ──GetCluster───────▶ the same, and what each broker takes
    https://, grpcs://                      the same with TLS to all of them

The first address that answers is enough. What was learnt about a topic (routes.py) is kept for `topic_age_ms_max`, and asked for
again when a broker says that it has changed; one question at a time for each topic, however many wait for it. A broker that gives
no answer is asked last from then on, one whose answer does not help (it may be cut off from etcd) behind the others, and a leader
that can't be connected is reached through another one (reachability.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from copy import copy
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import grpc.aio

from gateway.proto import admin_pb2, groups_pb2
from metadata.errors import (
    Denied,
    FencedLeaderEpoch,
    InvalidArgument,
    NoCoordinator,
    NoLeader,
    NotCoordinator,
    NotLeader,
    Rejected,
    Throttled,
    TidelogError,
    Unavailable,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from tidelog.settings import ClientSettings
from tidelog.transport.addresses import (
    Address,
    cluster_over_http,
    grpc_target,
    parse_address,
    parse_addresses,
    speaks_http,
    speaks_tls,
    wants_tls,
)
from tidelog.transport.channels import Channels
from tidelog.transport.channels import Stubs as Stubs
from tidelog.transport.credentials import Credentials
from tidelog.transport.reachability import Reachability
from tidelog.transport.retry import newer_unless_cut_short, retry_pauses
from tidelog.transport.routes import DEFAULT_LIMITS, NO_LEADER_EPOCH, BrokerLimits, LeaderEpochs, is_shrunk, limits_from, route_from
from tidelog.transport.routes import TopicRoute as TopicRoute
from tidelog.transport.rpc_errors import error_of_rpc, is_broker_status, is_said_by_broker

_Answer = TypeVar("_Answer")

# How long one broker has to say who leads, before another is asked.
QUESTION_S: Final = 2.0
# The same once every one was too slow: doubled from one to the next, up to this.
QUESTION_S_MAX: Final = 5.0
# To connect to a broker that the cluster names: at most this, since another one can be asked to forward.
LEADER_CONNECT_S: Final = 2.0
# A broker that has heard nothing of etcd for longer is asked behind those that have. When all is well, that is 3 s.
METADATA_AGE_MS_MAX: Final = 5_000
# A repeated question within this time goes to another broker: the first one's answer did not help.
ASKED_AGAIN_S: Final = 2.0

# Brokers that an error names beside the one that it comes from.
SILENT_NAMED_MAX: Final = 5

log = logging.getLogger("tidelog")


class _Question:
    """A topic's route, or the cluster, as it is asked for: one asks, the others wait for the answer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failure: TidelogError | None = None
        # Since when it is known that it failed.
        self.failed_s = 0.0


class Connection:
    """The connection of a client to a cluster: brokers, routes, and calls with retries."""

    def __init__(self, addresses: Iterable[str], settings: ClientSettings) -> None:
        self._addresses = parse_addresses(addresses)
        self._settings = settings
        self._credentials = Credentials(settings, tls=self._addresses[0].tls)
        self._grpc_scheme = "grpcs" if self._addresses[0].tls else "grpc"
        self._channels = Channels(settings, self._credentials)
        # The address that answered.
        self._reached = self._addresses[0]
        # gRPC addresses of brokers that answer what any broker can answer, the nearest first.
        self._seeds: list[str] = []
        self._reachability = Reachability()
        self.epochs = LeaderEpochs()
        self._throttled: Throttled | None = None
        self._throttled_until_s = 0.0
        self._cluster_id = ""
        # gRPC addresses by broker id.
        self._grpc_address_of: dict[str, str] = {}
        # Limits by gRPC address, of brokers that reported them.
        self._limits_at: dict[str, BrokerLimits] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._opening = _Question()
        self._opened_s = float("-inf")
        # By topic and whether outdated answers are refused, as long as a caller waits for the answer.
        self._questions: WeakValueDictionary[tuple[str, bool], _Question] = WeakValueDictionary()

    def authorization(self, *, newest: bool = False) -> str | None:
        """Returns the header of calls that begin now, as Credentials.authorization."""
        return self._credentials.authorization(newest=newest)

    async def open(self) -> None:
        """Finds the cluster at the first address that answers; raises Unavailable with what each of them met, or what they refuse.

        The addresses that were given come first, then those of brokers that were there before. A caller that comes while another
        looks for the cluster shares what comes of it.
        """
        came_s = time.monotonic()
        async with self._opening.lock:
            if self._opened_s >= came_s:
                return
            if self._opening.failure is not None and self._opening.failed_s >= came_s:
                raise copy(self._opening.failure)
            try:
                await self._find_cluster()
            except TidelogError as error:
                self._opening.failure, self._opening.failed_s = copy(error), time.monotonic()
                raise
            self._opened_s = time.monotonic()

    async def _find_cluster(self) -> None:
        met: list[TidelogError] = []
        learnt = [parse_address(f"{self._grpc_scheme}://{host_port}") for host_port in self._grpc_address_of.values()]
        for address in dict.fromkeys([*self._addresses, *learnt]):
            try:
                cluster = await self._ask_for_cluster(address)
                self._reached = address
                self._learn_cluster(cluster, address)
            except TidelogError as error:
                met.append(error)
            else:
                return
        denied = [error for error in met if isinstance(error, Denied)]
        if denied or len(met) == 1 or all(isinstance(error, Rejected) for error in met):
            raise (denied or met)[0]  # such an answer names a lasting cause, while silence may pass
        raise Unavailable("no address answered: " + "; ".join(error.message for error in met), hint=met[0].hint)

    async def close(self) -> None:
        await self._channels.close()

    # ── one broker ──

    def held(self, address: str) -> AbstractContextManager[Stubs]:
        """Yields the stubs of a gRPC address, whose channel stays open for the block."""
        return self._channels.held(address)

    async def until_connected(self, address: str) -> None:
        """Returns when a connection stands, so a call that fails earlier has sent nothing. Raises Unavailable."""
        timeout_s = self._settings.connect_timeout_ms / 1000
        if address in self._grpc_address_of.values() and len(self._seeds) > 1:
            timeout_s = min(timeout_s, LEADER_CONNECT_S)
        try:
            await self._channels.until_connected(address, timeout_s=timeout_s)
        except Unavailable:
            self._reachability.can_not_connect(address, time.monotonic())
            raise
        self._log_if_direct_again(address)

    async def kept_silent(self, address: str) -> None:
        """Handles a broker whose answer is overdue: asks another one about it.

        One that forwards to a leader which we can't reach is asked itself, so that another takes its place if need be.
        """
        self._reachability.gave_no_answer(address, time.monotonic())
        if self._reachability.is_detour(address):
            try:
                await self._attempt(_get_cluster, address=address, writes=False, timeout_s=QUESTION_S)
            except TidelogError:
                self._reachability.can_not_connect(address, time.monotonic())

    @property
    def _seed(self) -> str:
        """Returns the gRPC address for calls that any broker can answer."""
        return self._reachability.choose(self._seeds)

    def _log_if_direct_again(self, address: str) -> None:
        if self._reachability.connected(address):
            log.warning("connected again broker=%s: its partitions are reached directly", address)

    async def call(
        self,
        attempt: Callable[[Stubs, float], Awaitable[_Answer]],
        *,
        writes: bool,
        at: str | None = None,
        first_timeout_s: float | None = None,
    ) -> _Answer:
        """Makes a unary call at any broker, or first at the address `at`. `attempt` receives the stubs and its timeout in seconds.

        What wrote nothing is tried again until `request_timeout_ms`, at another broker where there is one. What only reads is
        tried at least three times in that time, so that a broker that keeps silent does not use it up; `first_timeout_s` is for
        what is answered soon: the first attempt has this time, each next one twice as long, up to QUESTION_S_MAX.
        Where the end of that time cuts an attempt short, the error of the one before is raised: short silence says nothing. What
        writes is not tried at a broker in less time than that has last taken to say that it can't, nor at a third one in less than
        two others have: cut short, its outcome would be unknown.
        Errors: the tree of metadata/errors.py; OutcomeUnknown only where `writes`.
        """
        timeout_s = self._settings.request_timeout_ms / 1000
        attempt_timeout_s_max = timeout_s if writes else timeout_s / 3
        if first_timeout_s is not None:
            attempt_timeout_s_max = min(attempt_timeout_s_max, QUESTION_S_MAX)
        attempt_timeout_s = min(first_timeout_s or attempt_timeout_s_max, attempt_timeout_s_max)
        deadline_s = time.monotonic() + timeout_s
        pauses = retry_pauses(self._settings)
        address = at or self._seed
        met: Unavailable | None = None
        refused_after_s: dict[str, float] = {}  # by address
        try:
            while True:
                began_s = time.monotonic()
                attempt_s = min(deadline_s - began_s, attempt_timeout_s)
                try:
                    return await self._attempt(attempt, address=address, writes=writes, timeout_s=attempt_s)
                except Unavailable as error:
                    met = newer_unless_cut_short(met, error, is_cut_short=attempt_s < attempt_timeout_s)
                    wait_s = pauses.next_s(error)
                    if writes and is_said_by_broker(error):
                        refused_after_s[address] = time.monotonic() - began_s
                    if time.monotonic() + wait_s >= deadline_s:
                        raise self.naming_all_that_are_silent(met)  # noqa: B904  # it has its own cause
                await asyncio.sleep(wait_s)
                attempt_timeout_s = min(2 * attempt_timeout_s, attempt_timeout_s_max)
                if self._reachability.none_answers(self._seeds):
                    with suppress(TidelogError, TimeoutError):
                        async with asyncio.timeout(deadline_s - time.monotonic()):
                            await self.open()  # brokers come back at other addresses
                address = self._seed
                at_others_s = max(refused_after_s.values()) if len(refused_after_s) > 1 else 0.0
                if time.monotonic() + refused_after_s.get(address, at_others_s) >= deadline_s:
                    raise self.naming_all_that_are_silent(met)
        finally:
            met = None  # its traceback holds this frame, and all that waits for it

    async def ask_once(
        self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, at: str, writes: bool, timeout_s: float
    ) -> _Answer:
        """Makes one unary call at this address, without a retry. A failed connection is known before the call is sent."""
        await self.until_connected(at)
        return await self._attempt(attempt, address=at, writes=writes, timeout_s=timeout_s)

    async def coordinator(self, group: str) -> str:
        """Returns the gRPC address of a group's coordinator. Raises NoCoordinator, Unavailable, InvalidGroupName."""
        request = groups_pb2.FindCoordinatorRequest(group=group)

        async def ask(to: Stubs, timeout_s: float) -> groups_pb2.FindCoordinatorResponse:
            answer: groups_pb2.FindCoordinatorResponse = await to.groups.FindCoordinator(request, timeout=timeout_s)
            return answer

        found = await self.call(ask, writes=False, first_timeout_s=QUESTION_S)
        return self.address_of(found.broker_id, found.grpc_address)

    def address_of(self, broker_id: str, grpc_address: str) -> str:
        """Returns the address to call for a broker that was named with its own address."""
        return self._grpc_address_of.get(broker_id) or grpc_target(grpc_address, reached=self._reached)

    def other_than(self, address: str) -> str:
        """Returns the address of a broker that forwards to a silent one; the same address if there is no other."""
        others = [seed for seed in self._seeds if seed != address]
        return self._reachability.choose(others) if others else address

    async def _attempt(
        self, attempt: Callable[[Stubs, float], Awaitable[_Answer]], *, address: str, writes: bool, timeout_s: float
    ) -> _Answer:
        try:
            with self._channels.held(address, writes=writes) as stubs:
                answer = await attempt(stubs, max(0.001, timeout_s))
        except grpc.aio.AioRpcError as error:
            raise self._heeded(
                error_of_rpc(error, address=address, writes=writes), address, is_answer=is_broker_status(error)
            ) from error
        except TidelogError as error:
            self._heeded(error, address, is_answer=True)
            raise
        self._reachability.answered(address)
        return answer

    def _heeded(self, error: TidelogError, address: str, *, is_answer: bool) -> TidelogError:
        """Notes what the error says of the broker at `address`, and returns it.

        Another broker may do better than one that does not answer or cannot work, and than one that knows of no leader or has not
        caught up with the metadata store. A broker that is busy, or knows of a newer leader than this client, is well.
        `is_answer`: the broker has answered so, and was not silent.
        """
        if isinstance(error, Throttled):
            self.note_throttled(error)
        is_older = isinstance(error, NoLeader | NotLeader | UnknownLeaderEpoch | NoCoordinator | NotCoordinator)
        if is_older or "is_outdated" in error.details:
            self._reachability.answered_older(address, time.monotonic())
        elif error.retryable and not isinstance(error, Throttled | FencedLeaderEpoch) and "ended_by_broker" not in error.details:
            self._reachability.gave_no_answer(address, time.monotonic())
        if is_answer or isinstance(error, Throttled):
            self._reachability.spoke(address)
        return error

    @property
    def throttled(self) -> Throttled | None:
        """Returns the last refusal of a broker for quota or room, until the time for the next attempt."""
        return self._throttled if time.monotonic() < self._throttled_until_s else None

    def naming_all_that_are_silent(self, error: Unavailable) -> Unavailable:
        """Returns the error, with the other brokers where all are silent: who reads of one alone looks for the fault in that one.

        One that said that it can't work is not silent. `error` names in its details which broker it comes from.
        """
        others = [seed for seed in self._seeds if seed != error.details.get("address")]
        if type(error) is not Unavailable or not others or not self._reachability.all_are_silent(self._seeds):
            return error
        shown = ", ".join(others[:SILENT_NAMED_MAX])
        more = f" and {len(others) - SILENT_NAMED_MAX} more" if len(others) > SILENT_NAMED_MAX else ""
        unavailable = Unavailable(f"{error.message}; no answer from {shown}{more} either", hint=error.hint, **error.details)
        unavailable.__cause__ = error.__cause__
        return unavailable

    def note_throttled(self, error: Throttled) -> None:
        self._throttled, self._throttled_until_s = error, time.monotonic() + error.retry_after_s

    # ── topics and leaders ──

    async def route(
        self, topic: str, *, fresh: bool = False, from_store: bool = False, refuses_outdated: bool = False, at: str | None = None
    ) -> TopicRoute:
        """Returns the topic's partitions and their leaders; `fresh` asks the cluster. `at`: the only broker to ask, once.

        `from_store`: the broker reads the topic from the metadata store first, so that partitions are found that were added through
        another broker a moment ago. A broker that can't do so in time answers what it has heard of, or Unavailable where
        `refuses_outdated`: another one is asked.

        Raises UnknownTopic, Unavailable. A caller that comes while another asks shares its failure: they do not wait one after the
        other.
        """
        came_s = time.monotonic()
        wanted_since_s = came_s - (0.0 if fresh or from_store else self._settings.topic_age_ms_max / 1000)
        if (route := self._known_route(topic, wanted_since_s)) is not None and not from_store:
            return route
        # One that refuses outdated answers may go on until the metadata store is back. It holds up no other.
        question = self._questions.setdefault((topic, refuses_outdated), _Question())
        async with question.lock:
            route = self._known_route(topic, wanted_since_s)
            if route is not None and not from_store:  # another caller has asked meanwhile
                return route
            if question.failure is not None and question.failed_s >= came_s:
                raise copy(question.failure)
            asked_s = time.monotonic()
            try:
                route = await self._ask_for_route(topic, at, from_store=from_store, refuses_outdated=refuses_outdated)
            except TidelogError as error:
                if isinstance(error, UnknownTopic):
                    self._routes.pop(topic, None)
                if at is None:
                    # A topic may have been created in the meantime; that no broker answers holds until now.
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
        """Drops a route after a change by this client, so that the next question goes to the cluster."""
        self._routes.pop(topic, None)

    def limits(self, address: str) -> BrokerLimits:
        """Returns the limits of the broker at this address, as far as it reported them."""
        return self._limits_at.get(address, DEFAULT_LIMITS)

    def _known_route(self, topic: str, wanted_since_s: float) -> TopicRoute | None:
        route = self._routes.get(topic)
        return route if route is not None and route.learnt_s >= wanted_since_s else None

    async def _ask_for_route(self, name: str, at: str | None, *, from_store: bool, refuses_outdated: bool) -> TopicRoute:
        asked_s = time.monotonic()
        # An older route is not held against a broker: the cluster may have been restored from a copy.
        known_since_s = asked_s - self._settings.topic_age_ms_max / 1000
        try:
            request = admin_pb2.GetTopicRequest(
                name=name, leaders_only=True, fresh=from_store, refuse_outdated=from_store and refuses_outdated
            )
        except (TypeError, ValueError) as error:  # a lone surrogate, as JSON may bring, is no mistake of ours
            raise InvalidArgument(f"{name!r} is no topic's name: {error}") from None

        async def ask(to: Stubs, timeout_s: float) -> tuple[Any, str, bool]:
            # The cluster as well: leaders may be at other addresses by now, and take less.
            cluster = await _get_cluster(to, timeout_s)
            found = await to.topics.GetTopic(request, timeout=timeout_s)
            self._learn_cluster(cluster, parse_address(f"{self._grpc_scheme}://{to.address}"))
            if self.epochs.is_outdated(found):
                raise UnknownLeaderEpoch(
                    f"{to.address} has not heard yet that topic {name} was deleted and made again, or knows no leader of it yet",
                    address=to.address,
                )
            if (before := self._known_route(name, known_since_s)) is not None and is_shrunk(before, found):
                raise UnknownLeaderEpoch(f"{to.address} has not heard yet of all partitions of topic {name}", address=to.address)
            return found, to.address, cluster.metadata_age_ms > METADATA_AGE_MS_MAX

        if at is None:
            found, answered_by, is_old = await self.call(ask, writes=False, first_timeout_s=QUESTION_S)
        else:
            timeout_s = min(self._settings.connect_timeout_ms / 1000, QUESTION_S)
            found, answered_by, is_old = await self._attempt(ask, address=at, writes=False, timeout_s=timeout_s)
        self._retry_connections()
        await self._channels.drop_idle(self._seeds)
        named = {
            state.leader: grpc_target(state.leader_grpc_address, reached=self._reached)
            for state in found.partitions
            if state.leader and state.leader_grpc_address
        }
        route = route_from(
            found,
            address_of=named | self._grpc_address_of,
            limits_at=self._limits_at,
            anyone=self._seed,
            learnt_s=asked_s,
            epochs=self.epochs,
            way_to=self._way_to,
        )
        if is_old or self._may_be_stale(route):
            self._reachability.answered_older(answered_by, time.monotonic())
        else:
            self._reachability.answered_newer(answered_by)
        return route

    def _may_be_stale(self, route: TopicRoute) -> bool:
        """Returns whether another broker may know better: a leader is absent, stale or unreachable, or nothing is new."""
        before = self._routes.get(route.name)
        return (
            route.has_detours
            or any(partition.leader_epoch == NO_LEADER_EPOCH for partition in route.partitions)
            or (before is not None and route.learnt_s - before.learnt_s < ASKED_AGAIN_S and before.partitions == route.partitions)
        )

    def _retry_connections(self) -> None:
        """Tries again to connect leaders that could not be connected: each lookup begins another attempt."""
        for address in set(self._grpc_address_of.values()):
            if self._reachability.is_unconnected(address) and self._channels.is_connected(address):
                self._log_if_direct_again(address)

    def _way_to(self, leader: str) -> str:
        has_detour = self._reachability.has_detour(leader)
        way = self._reachability.way_to(leader, self._seeds)
        if way != leader and not has_detour:
            log.warning("leader can't be connected from here leader=%s through=%s: the other broker forwards", leader, way)
        return way

    # ── the cluster ──

    async def cluster(self) -> admin_pb2.ClusterDescription:
        async def ask(to: Stubs, timeout_s: float) -> admin_pb2.ClusterDescription:
            answer: admin_pb2.ClusterDescription = await _get_cluster(to, timeout_s)
            self._learn_cluster(answer, parse_address(f"{self._grpc_scheme}://{to.address}"))
            return answer

        return await self.call(ask, writes=False, first_timeout_s=QUESTION_S)

    async def _ask_for_cluster(self, address: Address) -> admin_pb2.ClusterDescription:
        timeout_s = self._settings.connect_timeout_ms / 1000
        if not address.is_grpc:
            try:
                return await cluster_over_http(address, self._credentials, timeout_s=timeout_s)
            except TidelogError as error:
                if address.tls or isinstance(error, Denied) or not await self._speaks_tls(address):
                    raise
                raise wants_tls(address) from error
        try:
            await self.until_connected(address.host_port)
        except Unavailable as error:
            if not address.tls and await self._speaks_tls(address):
                raise wants_tls(address) from error
            if await speaks_http(address, self._credentials, timeout_s=timeout_s):
                raise Rejected(
                    f"{address}: what answers there speaks HTTP: it is not the gRPC port of a broker",
                    hint=f"Give the broker's gRPC port (9090 by default), or http{'s' * address.tls}://{address.host_port}.",
                    address=str(address),
                ) from error
            raise
        answer: admin_pb2.ClusterDescription = await self._attempt(
            _get_cluster, address=address.host_port, writes=False, timeout_s=timeout_s
        )
        return answer

    async def _speaks_tls(self, address: Address) -> bool:
        return await speaks_tls(address, self._credentials, timeout_s=QUESTION_S)

    def _learn_cluster(self, cluster: admin_pb2.ClusterDescription, reached: Address) -> None:
        """Takes over who is there, by whom answered at `reached`.

        A lone broker that was reached by gRPC is called where it was reached: port forwards work.
        """
        known = {broker.broker_id: grpc_target(broker.grpc_address, reached=reached) for broker in cluster.brokers}
        if reached.is_grpc:
            known = dict.fromkeys(known, reached.host_port) if len(known) == 1 else known
        given = [address.host_port for address in (self._reached, *self._addresses) if address.is_grpc]
        if not known and (not reached.is_grpc or not given):  # all are being restarted: whom we know now is asked again
            raise Unavailable(f"{reached}: the cluster has no broker yet", hint="Try again in a moment.", address=str(reached))

        def distance(broker: admin_pb2.Broker) -> tuple[bool, bool]:
            return broker.draining, reached.host_port not in (broker.http_address, known[broker.broker_id])

        nearest_first = [known[broker.broker_id] for broker in sorted(cluster.brokers, key=distance)]
        seeds = list(dict.fromkeys([*given, *nearest_first]))
        askable = [address for address in seeds if self._credentials.may_go_to(address.rpartition(":")[0])]
        self._seeds = askable or seeds  # where there is none, what is asked tells why
        self._grpc_address_of = known
        if cluster.cluster_id != self._cluster_id:
            self._cluster_id = cluster.cluster_id
            self.epochs.forget_ids()
        limits_of = {known[broker.broker_id]: limits_from(broker) for broker in cluster.brokers}
        self._limits_at = {address: limits or self.limits(address) for address, limits in limits_of.items()}
        self._reachability.keep(self._seeds)


def _get_cluster(to: Stubs, timeout_s: float) -> Any:
    return to.cluster.GetCluster(admin_pb2.GetClusterRequest(), timeout=timeout_s)
