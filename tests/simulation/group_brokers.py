"""Three brokers that coordinate groups: the real coordinator, registration and view of each, as processes over one etcd model.

Only what groups need of a broker is there: no bucket, partitions or listeners. A call that reaches the wrong broker makes one hop,
as gateway/groups/router.py lets it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.cluster.broker_lease import BrokerLease
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.coordinator_lease import ANSWER_S as VIEW_ANSWER_S
from gateway.groups.coordinator_lease import ClusterSnapshot, CoordinatorLease
from gateway.groups.coordinator_lookup import CoordinatorLookup
from metadata.cluster.broker_registry import BrokerCache, BrokerRegistration, read_revisions, write_draining
from metadata.errors import NoCoordinator, NotCoordinator, NotFound, OutcomeUnknown, Rejected, Unavailable
from metadata.groups.model import Joined, MemberId
from metadata.groups.settings import GroupSettings
from metadata.model import Revision, SessionId
from metadata.store.keys import KeyLayout
from tests.simulation.appointments import Writer
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.group_judge import GroupJudge
from tests.simulation.kafka_groups import KafkaHandlers, ModelTopics, kafka_address
from tests.simulation.metadata_wire import MetadataWire
from tests.simulation.simulated_process import CalledProcess, Wire
from tests.simulation.virtual_loop import virtual_loop

LAYOUT: Final = KeyLayout()
BROKERS: Final = 3
HOP_TIMEOUT_S: Final = 15.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSite:
    """What all brokers and members of one run share."""

    seed: int
    etcd: EtcdModel
    settings: GroupSettings
    # Of brokers: how long their leases last.
    session_timeout_s: float
    judge: GroupJudge
    note: Callable[[str], None]
    # Bugs that came to light: tasks that ended with an error which no caller was meant to get, and what does not come to rest.
    failures: list[str]
    topics: ModelTopics = field(default_factory=ModelTopics)
    sessions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    member_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class GroupBroker(CalledProcess):
    def __init__(self, name: str, site: GroupSite, slots: Mapping[str, GroupBroker], *, broker_id: str) -> None:
        """`slots`: where each broker is found."""
        super().__init__(name, site.failures.append)
        self._slots = slots
        self.broker_id = broker_id
        self.troubled_s = 0.0
        """For how long it could not do its work so far: it was frozen, or etcd was in trouble for it."""
        self._site = site
        self._session: SessionId | None = None
        self.metadata = MetadataWire(
            site.etcd,
            random.Random(f"{site.seed}/{name}/metadata"),
            sender=lambda: Writer(broker_id, self._session),
            wrote=self._wrote,
        )
        self.seen = BrokerCache(self.metadata, LAYOUT)
        self.view = CoordinatorLease(
            self.seen,
            broker_id=broker_id,
            registered=lambda: read_revisions(self.metadata, LAYOUT),
            ask=self._asked_what_it_sees,
            is_needed=lambda: len(self.groups) > 0,
        )
        self.coordinators = CoordinatorLookup(
            self.seen, broker_id=broker_id, session=lambda: self._session, is_stopping=lambda: False
        )
        self.groups = GroupCoordinator(
            self.metadata,
            LAYOUT,
            site.settings,
            session=self.coordinators.session,
            coordinates=self.coordinators.here,
            verify=self.view.verify,
            is_proven=lambda: self.view.is_fresh,
            now_ms=virtual_loop().now_ms,
            new_member_id=lambda client: MemberId(f"{client}-{next(site.member_ids)}"),
            topics=site.topics.group_topics,
        )
        self.kafka = KafkaHandlers(self.groups, self.coordinators, self.view, site.topics, lambda: self.seen.brokers)
        self.view.subscribe(self.groups.proven)
        self.coordinators.subscribe(self.groups.brokers_changed)
        self.wire = Wire(random.Random(f"{site.seed}/{name}/wire"))
        work = (self.seen.run(), self.view.run(), self.groups.run(), self._register())
        self.tasks = [self.start(each) for each in work]

    async def _register(self) -> None:
        """Session after session, as gateway/cluster/session_manager.py has them."""
        sessions: set[SessionId] = set()
        while True:
            number = SessionId(next(self._site.sessions))
            node_id, listeners = kafka_address(self.broker_id)
            registration = BrokerRegistration(broker_id=self.broker_id, session=number, node_id=node_id, kafka_listeners=listeners)
            broker_lease = BrokerLease(
                self.metadata, LAYOUT, registration, ttl_s=self._site.session_timeout_s, own_sessions=sessions
            )
            try:
                if await broker_lease.join():
                    sessions.add(number)
                    self._session = number
                    await broker_lease.keep()
            except Rejected:  # what a former process had sent has landed: this one would end, and be started again
                sessions.clear()
            self._session = None

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()

    @property
    def is_troubled(self) -> bool:
        wire = self.metadata
        return (
            self.frozen or wire.down or wire.latency_s > 0.01 or bool(wire.write_latency_s or wire.answer_lost or wire.lands_late)
        )

    def _wrote(self, revision: Revision, writer: Writer) -> None:
        self._site.note(f"{self.name} wrote revision {revision} as session {writer.session}")

    async def _asked_what_it_sees(self, broker: BrokerRegistration) -> ClusterSnapshot:
        at = self._slots[broker.broker_id]

        async def serve() -> ClusterSnapshot:
            return at.view.here._replace(revisions=dict(at.seen.revisions))

        return await at.call(self.name, self.wire, serve, timeout_s=VIEW_ANSWER_S)

    # ── what members ask ────────────────────────────────────────────────────────────────────────────────────────────────

    async def coordinator_of(self, group: str) -> str:
        """The broker id, as this broker sees it."""
        return self.coordinators.of(group).broker_id

    async def answered(self, group: str, ask: Callable[[GroupCoordinator], Awaitable[T]], what: str, bound_s: float) -> T:
        """Of the coordinator here: its answers are judged before they are sent."""
        began_s, troubled_s = virtual_loop().time(), self.troubled_s
        try:
            answer = await ask(self.groups)
        finally:
            took_s = virtual_loop().time() - began_s - (self.troubled_s - troubled_s)
            if self.alive:
                self._site.judge.answered(self.name, what, took_s, bound_s)
        if isinstance(answer, Joined):
            self._site.judge.joined(group, answer, await self._site.etcd.get(LAYOUT.group(group)))
        return answer


class GroupBrokers:
    def __init__(self, site: GroupSite, chance: random.Random) -> None:
        self.slots: dict[str, GroupBroker] = {}
        """By broker id, the process that runs under it, or ran last."""
        self.processes: list[GroupBroker] = []
        self.moves = 0
        self._site = site
        self._chance = chance

    def start(self, broker_id: str) -> GroupBroker:
        broker = GroupBroker(f"{broker_id}.{len(self.processes) + 1}", self._site, self.slots, broker_id=broker_id)
        self._site.note(f"{broker.name} starts")
        self.processes.append(broker)
        self.slots[broker_id] = broker
        return broker

    def kill(self, broker: GroupBroker) -> None:
        if broker.alive:
            self._site.note(f"{broker.name} is killed")
            broker.kill()

    def any(self) -> GroupBroker:
        return self._chance.choice(list(self.slots.values()))

    def alive(self) -> list[GroupBroker]:
        return [broker for broker in self.slots.values() if broker.alive]

    def coordinating(self, group: str) -> GroupBroker:
        """One that has it loaded, where there is one: faults of the others harm no member."""
        return next((broker for broker in self.alive() if not broker.frozen and broker.coordinators.here(group)), self.any())

    async def drain(self, broker_id: str, draining: bool) -> None:
        """As `tidelog cluster drain` and `undrain` do, while the broker is registered."""
        try:
            await write_draining(self._site.etcd, LAYOUT, broker_id, draining=draining)
        except (NotFound, Unavailable):
            return

    def calm_down(self) -> None:
        for broker in self.processes:
            broker.metadata.mend()
            broker.metadata.calm_down()
            broker.thaw()

    def count_trouble(self, for_s: float) -> None:
        for broker in self.processes:
            if broker.is_troubled:
                broker.troubled_s += for_s

    def judge_heartbeat(self, group: str, groups: GroupCoordinator, generation: int) -> None:
        """One that was answered well."""
        if (held := groups._groups.get(group)) is not None:
            self._site.judge.stays(group, generation, held.group.generation)

    # ── the way of a call ───────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, caller: str, wire: Wire, group: str, chance: random.Random) -> str:
        """FindCoordinator, at any broker. Raises Unavailable, NoCoordinator, OutcomeUnknown."""
        asked = chance.choice(list(self.slots.values()))
        return await asked.call(caller, wire, lambda: asked.coordinator_of(group), timeout_s=2.0)

    async def ask(
        self,
        caller: str,
        wire: Wire,
        broker_id: str,
        group: str,
        ask: Callable[[GroupCoordinator], Awaitable[T]],
        *,
        what: str,
        bound_s: float,
        timeout_s: float,
    ) -> T:
        """At a broker, which answers itself, or asks the coordinator that it knows of."""
        asked = self.slots[broker_id]

        async def serve() -> T:
            elsewhere = asked.coordinators.elsewhere(group)
            if elsewhere is None:
                return await asked.answered(group, ask, what, bound_s)
            return await self._forwarded(asked, elsewhere.broker_id, group, ask, what=what, bound_s=bound_s, timeout_s=timeout_s)

        return await asked.call(caller, wire, serve, timeout_s=timeout_s)

    async def _forwarded(
        self,
        from_: GroupBroker,
        broker_id: str,
        group: str,
        ask: Callable[[GroupCoordinator], Awaitable[T]],
        *,
        what: str,
        bound_s: float,
        timeout_s: float,
    ) -> T:
        at = self.slots[broker_id]
        try:
            longest_s = min(timeout_s, bound_s + HOP_TIMEOUT_S)
            return await at.call(from_.name, from_.wire, lambda: at.answered(group, ask, what, bound_s), timeout_s=longest_s)
        except (NotCoordinator, NoCoordinator):
            raise
        except OutcomeUnknown as error:
            if what == "commit":
                raise
            raise NotCoordinator(error.message) from None
        except Unavailable as error:
            if at.alive:
                raise
            raise NoCoordinator(error.message) from None
