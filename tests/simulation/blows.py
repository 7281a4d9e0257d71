"""All that can befall a simulated world, drawn from its seed: what happens to brokers, to the bucket, to the metadata, to topics.

Each blow is a method: it strikes, lasts for its time, and takes itself back where it is not for good.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from metadata.cluster import leadership
from metadata.cluster.leadership import LeadershipChange, moving
from metadata.errors import Fenced
from metadata.model import SessionId, TopicPartition
from metadata.store.keys import KeyLayout
from tests.kit.faulty_store import CALM, STORMY, Faults, Outage, between
from tests.simulation.appointments import OPERATOR
from tests.simulation.broker_process import BrokerProcess
from tests.simulation.cluster import BROKERS_MAX, Cluster
from tests.simulation.virtual_loop import virtual_loop

LOSSY = Faults(answer_lost=0.3, request_lost=0.1, late=0.2, lands_after_cancel=0.9)
SLOW = Faults(request_s=between(0.5, 3.0), answer_s=between(0.2, 2.0), late=0.1, late_s=between(5.0, 60.0))
BUSY = Faults(error_503=0.7)
CONFLICTS = Faults(conflict_409=0.5)
# Segments on the wire that a blow waits for, and for how long.
PILED_UP, PILE_UP_S_MAX = 2, 2.0
# Between one blow and the next, from … to.
PAUSE_S = (0.5, 4.0)
Blow = Callable[[], Awaitable[None]]
# That one blow asks for: each reads the whole history again.
MOVES_MAX = 60


class Load(Protocol):
    """What clients do meanwhile."""

    def in_a_hurry(self) -> AbstractContextManager[None]: ...

    async def grow(self) -> None: ...

    async def make_again(self) -> None: ...


class Blows:
    def __init__(self, cluster: Cluster, load: Load, chance: random.Random, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._load = load
        self._chance = chance
        self._note = note
        self._site = cluster.site
        self._over_s = math.inf
        self.fallen: Counter[str] = Counter()
        """How many there were of each kind."""

    async def rain(self, for_s: float, *, pause_s: tuple[float, float] = PAUSE_S, linger_s: float = math.inf) -> None:
        """One after the other, and several at a time; returns when the last has passed, which lasts no longer than `linger_s` more.

        Each world has blows that are frequent in it, and some that never fall: what needs several of one kind comes up that way.
        """
        blows = self._frequencies()
        weights = [weight * self._chance.choice((0, 1, 1, 5)) for _, weight in blows]
        until_s = virtual_loop().time() + for_s
        self._over_s = until_s + linger_s
        async with asyncio.TaskGroup() as under_way:
            while virtual_loop().time() < until_s:
                (blow,) = self._chance.choices([blow for blow, _ in blows], weights)
                self.fallen[_name(blow)] += 1
                self._note(_name(blow))
                under_way.create_task(_called(blow))
                await asyncio.sleep(self._chance.uniform(*pause_s))

    def _frequencies(self) -> Sequence[tuple[Blow, int]]:
        """All blows of this kind of world, and how often each falls in comparison."""
        return [
            (self._kill, 6),
            (self._freeze, 6),
            (self._double, 1),
            (self._drain, 2),
            (self._drain_by_command, 2),
            (self._comes_back, 3),
            (self._takeovers_are_slow, 1),
            (self._cut_from_clients, 2),
            (self._cut_from_bucket, 3),
            (self._cut_from_metadata, 6),
            (self._bucket_down, 2),
            (self._bucket_slow, 3),
            (self._weather_changes, 4),
            (self._metadata_restarts, 1),
            (self._metadata_slow, 2),
            (self._metadata_loses_answers, 2),
            (self._history_compacted, 1),
            (self._lease_ends_early, 3),
            (self._leases_end_late, 2),
            (self._controller_stalls, 5),
            (self._controller_changes, 2),
            (self._clock_jumps, 1),
            (self._moves_to_and_fro, 2),
            (self._moves_under_load, 7),
            (self._load.grow, 3),
            (self._load.make_again, 3),
        ]

    def _seconds(self, *choices: float) -> Awaitable[None]:
        return self._last(self._chance.choice(choices))

    async def _last(self, for_s: float) -> None:
        """How long it goes on, unless the rain is over before."""
        await asyncio.sleep(self._left(for_s))

    def _left(self, for_s: float) -> float:
        return max(0.0, min(for_s, self._over_s - virtual_loop().time()))

    # ── brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _kill(self) -> None:
        victim = self._cluster.any_leader()
        await self._pile_up(victim)
        self._cluster.kill(victim)
        await self._seconds(0.0, 0.5, 10.0)
        self._cluster.start(victim.broker_id)

    async def _freeze(self) -> None:
        """A zombie: its session is sealed while it sleeps, and then it goes on as if nothing had happened."""
        zombie = self._cluster.any_leader()
        await self._pile_up(zombie)
        zombie.freeze(wire_too=self._chance.random() < 0.5)
        self._note(f"{zombie.name} is frozen")
        if self._chance.random() < 0.5:
            self._cluster.start(zombie.broker_id)
        await self._last(self._chance.uniform(0.5, 1.5) * self._chance.choice((1.0, 6.0, 20.0)))
        with self._load.in_a_hurry():
            self._cluster.wake(zombie)
            await asyncio.sleep(1.0)

    async def _pile_up(self, broker: BrokerProcess) -> None:
        """Lets several segments be on the wire when the blow falls, so that some land after the seal, and beyond it."""
        if self._chance.random() < 0.8:
            broker.store.slow_factor = self._chance.choice((50.0, 200.0, 400.0))
            until_s = virtual_loop().time() + PILE_UP_S_MAX
            with self._load.in_a_hurry():
                while broker.store.objects_on_the_wire < PILED_UP and virtual_loop().time() < until_s:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            broker.store.slow_factor = 1.0

    async def _double(self) -> None:
        """Two processes under one broker id, until the older one dies or gives way."""
        older = self._cluster.any()
        self._cluster.start(older.broker_id)
        await self._last(self._chance.uniform(1.0, 20.0))
        self._cluster.kill(older)

    async def _drain(self) -> None:
        older = self._cluster.any()
        older.stop()
        await older.stopped(timeout_s=self._left(self._chance.choice((1.0, 30.0))))
        self._cluster.kill(older)
        await self._seconds(0.0, 2.0, 10.0)
        self._cluster.start(older.broker_id)

    async def _drain_by_command(self) -> None:
        """It hands over all that it leads and lives on, unless another blow falls on it; an operator takes the drain back."""
        drained = self._cluster.any().broker_id
        if all(self._cluster.drains(other) for other in self._cluster.slots if other != drained):
            return  # no broker would be left to lead
        await self._cluster.drain(drained, True)
        await self._seconds(0.2, 3.0, 15.0)
        await self._cluster.drain(drained, False)

    async def _comes_back(self) -> None:
        """A broker that joins the others, or one that had ended by itself."""
        for number in range(BROKERS_MAX):
            broker_id = f"b{number + 1}"
            if broker_id not in self._cluster.slots or self._cluster.slots[broker_id].ended:
                self._cluster.start(broker_id)
                return

    async def _takeovers_are_slow(self) -> None:
        """A broker dies, and to those who follow it, each footer takes its time."""
        victim = self._cluster.any()
        self._cluster.kill(victim)
        others = [broker for broker in self._cluster.processes if broker.alive]
        for broker in others:
            broker.store.slow_factor = 100.0
        await self._last(self._chance.uniform(5.0, 20.0))
        for broker in others:
            broker.store.slow_factor = 1.0
        self._cluster.start(victim.broker_id)

    async def _cut_from_clients(self) -> None:
        cut_off = self._cluster.any()
        cut_off.cut_from_clients()
        await self._seconds(0.1, 1.0, 10.0)
        cut_off.unreachable = False

    async def _clock_jumps(self) -> None:
        self._cluster.any().clock_skew_ms += self._chance.choice((-60_000, 60_000))

    # ── the bucket ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _bucket_down(self) -> None:
        await self._bucket_out_for(list(self._cluster.processes))

    async def _cut_from_bucket(self) -> None:
        await self._bucket_out_for([self._cluster.any_leader()])

    async def _bucket_out_for(self, brokers: list[BrokerProcess]) -> None:
        kind = self._chance.choice((Outage.REFUSES, Outage.HANGS, Outage.ERRORS))
        for broker in brokers:
            broker.store.outage = kind
        await self._seconds(0.5, 3.0, 12.0, 12.0, 40.0)
        for broker in brokers:
            broker.store.outage = Outage.NONE

    async def _weather_changes(self) -> None:
        self._cluster.set_weather(self._chance.choice((CALM, STORMY, LOSSY, SLOW, BUSY, CONFLICTS)))

    async def _bucket_slow(self) -> None:
        slow = self._cluster.any()
        slow.store.slow_factor = self._chance.choice((10.0, 50.0, 300.0))
        await self._last(self._chance.uniform(1.0, 10.0))
        slow.store.slow_factor = 1.0

    # ── the metadata ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _cut_from_metadata(self) -> None:
        """Mostly it can hardly look for its seal, either, while another takes over and clients go on asking it."""
        cut_off = self._cluster.any_leader()
        cut_off.metadata.cut()
        if self._chance.random() < 0.9:
            cut_off.store.slow_factor = self._chance.choice((1.0, 100.0))
            session_timeout_s = self._site.cluster.session_timeout_ms / 1000
            await asyncio.sleep(0.6 * session_timeout_s)
            if self._chance.random() < 0.5:
                cut_off.store.outage = Outage.HANGS
            with self._load.in_a_hurry():
                await asyncio.sleep(0.4 * session_timeout_s + 3.0)
            cut_off.store.slow_factor, cut_off.store.outage = 1.0, Outage.NONE
        await self._seconds(0.5, 3.0, 12.0)
        cut_off.metadata.mend()

    async def _metadata_restarts(self) -> None:
        cut_off = list(self._cluster.processes)
        for broker in cut_off:
            broker.metadata.cut()
        await self._seconds(0.5, 3.0)
        self._site.metadata.restart()
        for broker in cut_off:
            broker.metadata.mend()

    async def _metadata_slow(self) -> None:
        slow = self._cluster.any()
        slow.metadata.latency_s, slow.metadata.watch_delay_s = self._chance.choice(((0.5, 0.0), (0.01, 3.0), (0.2, 1.0)))
        await self._last(self._chance.uniform(1.0, 20.0))
        slow.metadata.calm_down()

    async def _metadata_loses_answers(self) -> None:
        deaf = self._cluster.any()
        deaf.metadata.answer_lost = self._chance.choice((0.1, 0.5))
        await self._last(self._chance.uniform(1.0, 10.0))
        deaf.metadata.calm_down()

    async def _history_compacted(self) -> None:
        """While a broker is cut off, or its watches are far behind: they find a hole, and it must read everything again."""
        behind = self._cluster.any()
        if self._chance.random() < 0.5:
            behind.metadata.cut()
        else:
            behind.metadata.watch_delay_s = 6.0
            for _ in range(4):
                await self._ask_for_a_move()
        await self._seconds(1.0, 5.0)
        revision = (await self._site.metadata.range("/", limit=1)).revision
        while self._site.recorder.revision < revision:  # noqa: ASYNC110  # no event shows it
            await asyncio.sleep(0.001)
        await self._site.metadata.compact(revision)
        behind.metadata.mend()
        behind.metadata.calm_down()

    async def _lease_ends_early(self) -> None:
        """Its session is sealed while it is hard at work, and its last segments meet the seal, or land beyond it."""
        victim = self._cluster.any_leader()
        await self._pile_up(victim)
        await self._end_lease_of(victim)

    async def _leases_end_late(self) -> None:
        """As where etcd has changed its own leader: those who are gone seem to live on."""
        self._site.metadata.late_s = self._chance.choice((1.0, 5.0, 20.0))
        if self._chance.random() < 0.5:
            self._cluster.kill(self._cluster.any())
        await self._last(self._chance.uniform(2.0, 20.0))
        self._site.metadata.late_s = 0.0

    async def _controller_stalls(self) -> None:
        """What it has decided is still on its way when it is the controller no more."""
        stalled = await self._controller()
        if stalled is None:
            return
        others = self._delay_watches(stalled)
        for broker in (stalled, *others):  # else the next controller has done it all before
            broker.metadata.write_latency_s = 3.0
        await self._load.grow()
        if others:
            await self._end_lease_of(self._chance.choice(others))
        until_s = virtual_loop().time() + PILE_UP_S_MAX
        while not stalled.metadata.writes_on_the_wire and virtual_loop().time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._end_lease_of(stalled)
        await self._seconds(3.0, 10.0)
        for broker in (stalled, *others):
            broker.metadata.calm_down()

    async def _controller_changes(self) -> None:
        """The next one hears late of brokers that the one before has known."""
        changing = await self._controller()
        if changing is None:
            return
        others = self._delay_watches(changing)
        if others:
            newcomer = self._chance.choice(others)
            self._cluster.kill(newcomer)
            self._cluster.start(newcomer.broker_id)
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        await self._end_lease_of(changing)
        await self._seconds(3.0, 6.0)
        for broker in others:
            broker.metadata.calm_down()

    def _delay_watches(self, one: BrokerProcess) -> list[BrokerProcess]:
        """Delays the watches of all brokers but one."""
        others = [broker for broker in self._cluster.slots.values() if broker.alive and broker is not one]
        for broker in others:
            broker.metadata.watch_delay_s = 4.0
        return others

    async def _controller(self) -> BrokerProcess | None:
        held = await self._site.metadata.get(KeyLayout().controller)
        return None if held is None else self._cluster.slots.get(held.value.decode().partition(" ")[0])

    async def _end_lease_of(self, broker: BrokerProcess) -> None:
        held = await self._site.metadata.get(KeyLayout().broker(broker.broker_id))
        if held is not None:
            await self._site.metadata.revoke_lease(held.lease)

    async def _moves_to_and_fro(self) -> None:
        """Partitions are asked to move, faster than they can, and often back to where they came from."""
        until_s = virtual_loop().time() + self._chance.uniform(2.0, 15.0)
        pace_s = self._chance.choice((0.05, 0.3, 1.0))
        with self._load.in_a_hurry():
            for _ in range(MOVES_MAX):
                if virtual_loop().time() < until_s:
                    await self._ask_for_a_move()
                    await asyncio.sleep(self._chance.expovariate(1 / pace_s))

    async def _moves_under_load(self) -> None:
        """A leader is asked for all that it leads while much of it is on its way, and learns late that it leads it no more."""
        leader = self._cluster.any_leader()
        await self._pile_up(leader)
        session = leader.leadership.session
        with self._load.in_a_hurry():
            for partition, (state, _) in sorted(self._cluster.partitions.states.items()):
                if state.leader_session == session:
                    await self._ask_for_a_move(partition)
            await asyncio.sleep(0.02)  # it has heard the question by now
            leader.metadata.all_watches_delay_s = 2.0
            await asyncio.sleep(3.0)
        leader.metadata.calm_down()

    async def _ask_for_a_move(self, partition: TopicPartition | None = None) -> None:
        states = self._cluster.partitions.states
        sessions = sorted(registration.session for registration in self._cluster.registered.brokers.values())
        if not states:
            return
        partition = partition or self._chance.choice(sorted(states))
        if partition not in states:
            return
        state, revision = states[partition]
        others: list[SessionId | None] = [session for session in sessions if session != state.leader_session]
        if others:
            asked = LeadershipChange(partition, revision, moving(state, self._chance.choice([*others, *others, None])))
            try:
                wrote = await leadership.write(self._site.metadata, [asked], KeyLayout())
            except Fenced:
                return  # somebody else was faster
            self._site.recorder.wrote(wrote, OPERATOR)


def _name(blow: Callable[[], Awaitable[None]]) -> str:
    return blow.__name__.strip("_").replace("_", " ")


async def _called(blow: Callable[[], Awaitable[None]]) -> None:
    await blow()
