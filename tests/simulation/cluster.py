"""The brokers of one simulated world: who runs under which id, who leads what, and whether the cluster has come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from metadata.cluster.broker_registry import BrokerCache, write_draining
from metadata.cluster.leadership_cache import PartitionCache
from metadata.errors import NotFound, TidelogError, Unavailable
from metadata.model import LeaderEpoch, SessionId, TopicPartition
from metadata.store.keys import KeyLayout
from tests.kit.faulty_store import CALM, Faults, Outage
from tests.simulation.appointments import OPERATOR
from tests.simulation.broker_process import BrokerProcess, Site

BROKERS_MAX = 3
ZOMBIES_MAX = 2


class Cluster:
    # Of the names of its processes.
    prefix = ""

    def __init__(self, site: Site, chance: random.Random, note: Callable[[str], None]) -> None:
        self.site = site
        self.processes: list[BrokerProcess] = []
        self.slots: dict[str, BrokerProcess] = {}
        """By broker id, the process that runs under it, or ran last."""
        self.zombies_woken = 0
        self.partitions = PartitionCache(site.metadata, KeyLayout())
        self.registered = BrokerCache(site.metadata, KeyLayout())
        self._weather = CALM
        self._chance = chance
        self._note = note

    # ── brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, broker_id: str) -> None:
        name = f"{self.prefix}{broker_id}.{len(self.processes) + 1}"
        broker = self._process(name, broker_id, self._weather)
        self._note(f"{name} starts")
        self.processes.append(broker)
        self.slots[broker_id] = broker
        alive = [broker for broker in self.processes if broker.alive and broker is not self.slots[broker.broker_id]]
        for oldest in alive[:-ZOMBIES_MAX]:
            self.kill(oldest)

    def _process(self, name: str, broker_id: str, weather: Faults) -> BrokerProcess:
        """Starts a process under the broker id."""
        return BrokerProcess(name, self.site, broker_id=broker_id, rack=f"rack-{broker_id}", faults=weather)

    def kill(self, broker: BrokerProcess) -> None:
        if broker.alive:
            self._note(f"{broker.name} is killed")
            broker.kill()
            broker.store.outage = Outage.NONE
            broker.store.thaw()

    def wake(self, broker: BrokerProcess) -> None:
        if broker.frozen and broker.alive:
            self._note(f"{broker.name} wakes")
            self.zombies_woken += 1
            broker.thaw()

    def any(self) -> BrokerProcess:
        return self._chance.choice(list(self.slots.values()))

    def any_leader(self) -> BrokerProcess:
        """One that leads something and runs, where there is one: faults of the others harm no client."""
        led = {state.leader_session for state, _ in self.partitions.states.values()}
        running = (broker for broker in self.slots.values() if broker.alive and not broker.frozen)
        leading = [broker for broker in running if broker.leadership.session in led]
        return self._chance.choice(leading) if leading else self.any()

    def set_weather(self, weather: Faults) -> None:
        """For those who run, and those who start from now on."""
        self._weather = weather
        for broker in self.processes:
            broker.store.faults = weather

    def calm_down(self) -> None:
        """All that ails them is over."""
        self.set_weather(CALM)
        for broker in self.processes:
            broker.store.outage = Outage.NONE
            broker.store.slow_factor = 1.0
            broker.metadata.mend()
            broker.metadata.calm_down()
            broker.unreachable = False
            self.wake(broker)

    async def keep_up(self) -> None:
        """Doubles die, ended brokers restart, and none is to be drained any more, until cancelled."""
        for broker in self.processes:
            if broker is not self.slots[broker.broker_id]:
                self.kill(broker)
        while True:
            for broker_id, broker in list(self.slots.items()):
                if broker.ended:
                    self.start(broker_id)
                elif self.drains(broker_id):
                    await self.drain(broker_id, False)
            await asyncio.sleep(1.0)

    def drains(self, broker_id: str) -> bool:
        registered = self.registered.brokers.get(broker_id)
        return registered is not None and registered.draining

    async def drain(self, broker_id: str, draining: bool) -> None:
        """As `tidelog cluster drain` and `undrain` do, while the broker is registered."""
        with contextlib.suppress(NotFound, Unavailable):
            self.site.recorder.wrote(await write_draining(self.site.metadata, KeyLayout(), broker_id, draining=draining), OPERATOR)

    # ── who leads ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def leader(self, partition: TopicPartition) -> BrokerProcess:
        """The broker that the metadata name; any where they name none that runs."""
        state = self.partitions.get(partition)
        if state is not None:
            for broker in self.processes:
                if broker.alive and broker.leadership.session == state.leader_session:
                    return broker
        return next(reversed(self.slots.values()))

    def route(self, chance: random.Random, partition: TopicPartition) -> BrokerProcess:
        """The broker that a client takes for the leader: mostly the present one, sometimes a former one."""
        if chance.random() < 0.8:
            return self.leader(partition)
        return chance.choice(self.processes[-2 * BROKERS_MAX :])

    def balanced(self, chance: random.Random) -> BrokerProcess:
        """Any that runs."""
        return chance.choice([broker for broker in self.processes if broker.alive] or list(self.slots.values()))

    def epoch_of(self, partition: TopicPartition) -> LeaderEpoch:
        state = self.partitions.get(partition)
        return state.leader_epoch if state is not None else LeaderEpoch(0)

    # ── rest ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def unrest(self, partitions: list[TopicPartition]) -> list[str]:
        """What is not yet as it shall be when nothing happens any more; `partitions` are those of all topics."""
        sessions = {registration.session for registration in self.registered.brokers.values()}
        found = [f"{partition} is not forgotten" for partition in self.partitions.states if partition not in partitions]
        loads = dict.fromkeys(sessions, 0)
        for partition in partitions:
            state = self.partitions.get(partition)
            if state is None or state.leader_session not in sessions:
                found.append(f"{partition} is not led")
                continue
            loads[state.leader_session] += 1
            if state.moving_to is not None:
                found.append(f"{partition} is to move to {state.moving_to}")
            if not self._serves(partition, state.leader_session):
                found.append(f"{partition} is not served by session {state.leader_session}")
        for broker_id, registration in self.registered.brokers.items():
            if registration.draining or registration.unwritable_bytes:
                found.append(f"{broker_id} is to drain, or can't write")
        found += [f"a write of {broker.name} waits for the bucket" for broker in self.slots.values() if broker.watched.unwritable]
        found += [
            f"{broker.name} has deletions to tell of" for broker in self.slots.values() if broker.leadership._deletions.pending
        ]
        if len(sessions) != len(self.slots):
            found.append(f"{len(self.slots)} brokers run, and {len(sessions)} are registered")
        if loads and max(loads.values()) - min(loads.values()) > 1:
            found.append(f"loads differ: {sorted(loads.values())}")
        return found

    def _serves(self, partition: TopicPartition, session: SessionId) -> bool:
        try:
            return any(
                broker.leadership.session == session and partition in broker.leadership.log.partitions
                for broker in self.slots.values()
            )
        except TidelogError:
            return False

    def work_done(self) -> int:
        """What was written so far: transactions of the metadata, and objects of the bucket."""
        return sum(broker.metadata.counts["transact"] + broker.store.counts["create"] for broker in self.processes)
