"""One simulated world of consumer groups: three brokers that coordinate them, their members, and all that can befall them.

    0 s ──────── trouble ────────▶ trouble_s ─ all is well again ─▶ everything is owned and read ─▶ rest ─▶ all leave ─▶ judge

The coordinator, the member, the view and the registration are the real ones; records are offsets that grow (ModelLog), so a world
costs little. In a third of the worlds none comes to harm, and every offset must be delivered exactly once; in another third only
members do. Same seed, same run, byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from gateway.groups.coordinator_lease import PROOF_S
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import GroupPhase
from metadata.groups.settings import GroupSettings
from metadata.store.interface import KeyValue, Put
from tests.simulation.etcd_model import EtcdModel
from tests.simulation.group_blows import GroupBlows, Harm
from tests.simulation.group_broken_rules import BrokenGroupRule, in_force
from tests.simulation.group_brokers import BROKERS, LAYOUT, GroupBrokers, GroupSite
from tests.simulation.group_judge import Broken, GroupJudge
from tests.simulation.group_load import GroupLoad, GroupOf
from tests.simulation.virtual_loop import run, virtual_loop

# How long it lasts, one of them, by the seed.
TROUBLE_S: Final = (8.0, 8.0, 30.0)
SAMPLE_S: Final = 0.2
# Beyond session and rebalance timeout, and what a new coordinator waits longer, until a partition must have an owner: for finding
# the coordinator, back-off, storing.
MARGIN_S: Final = 5.0
# How long nothing may change, once everything is owned and read.
REST_S: Final = 5.0


class GroupOutcome:
    def __init__(self, seed: int, broken: list[Broken], failures: list[str], trace: list[str], tallies: dict[str, int]) -> None:
        self.seed = seed
        self.broken = broken
        self.failures = failures
        """Tasks that failed by themselves, and what did not come to rest though all was well again."""
        self.trace = trace
        self.tallies = tallies

    @property
    def findings(self) -> list[str]:
        return [*map(str, self.broken), *self.failures]


def simulate_groups(
    seed: int, *, broken: BrokenGroupRule = BrokenGroupRule.NOTHING, trouble_s: float | None = None
) -> GroupOutcome:
    """Runs one world to its end and judges it; with `trouble_s`, not of the length that its seed gives it. Raises Stuck where
    nothing moves any more.
    """
    if trouble_s is None:
        trouble_s = random.Random(f"{seed}/length").choice(TROUBLE_S)
    with in_force(broken):
        return run(GroupWorld(seed, trouble_s).run(), seed=seed, shuffled=seed % 2 == 1)


class GroupWorld:
    def __init__(self, seed: int, trouble_s: float) -> None:
        self._seed = seed
        self._trouble_s = trouble_s
        self._chance = random.Random(f"{seed}/groups")
        self._trace: list[str] = []
        self._failures: list[str] = []
        self._harm = self._chance.choice((Harm.NONE, Harm.MEMBERS, Harm.ALL, Harm.ALL))

    async def run(self) -> GroupOutcome:
        chance = self._chance
        self._etcd = etcd = EtcdModel(virtual_loop().time)
        await etcd.transact([], [Put(LAYOUT.partition_count, b"0")])  # as the registry of topics does
        self._judge = judge = GroupJudge(virtual_loop().time, self._note)
        site = GroupSite(
            self._seed,
            etcd,
            GroupSettings(
                group_session_timeout_ms_min=1_000,
                group_initial_rebalance_delay_ms=chance.choice((0, 100, 500)),
                commit_linger_ms=chance.choice((0, 5, 50)),
                group_consumer_session_timeout_ms=4_000,
                group_consumer_heartbeat_interval_ms=500,
            ),
            chance.choice((1.5, 3.0)),
            judge,
            self._note,
            self._failures,
        )
        self._note(f"{self._harm.value}, {site.settings}")
        self._brokers = brokers = GroupBrokers(site, chance)
        for number in range(BROKERS):
            brokers.start(f"b{number + 1}")
        await asyncio.sleep(0.5)
        self._load = load = GroupLoad(site, brokers, chance, gentle=self._harm is Harm.NONE)
        self._blows = GroupBlows(brokers, load, site, chance)
        background = [asyncio.ensure_future(work) for work in (etcd.run(), self._watch())]
        await asyncio.sleep(chance.choice((0.0, 2.0, 8.0)))
        await self._blows.rain(self._trouble_s, self._harm)
        self._calm_down()
        await self._rest()
        await self._leave()
        self._judge_the_end()
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        await self._check_nothing_is_left()
        return GroupOutcome(self._seed, judge.broken, self._failures, self._trace, self._tallies())

    def _note(self, what: str) -> None:
        self._trace.append(f"{virtual_loop().time():12.6f} {what}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._brokers.count_trouble(SAMPLE_S)
            for group in self._load.groups.values():
                if any(consumer.runs for consumer in self._load.living(group.name)):
                    self._judge.sampled(
                        group.name, self._partitions(group), bound_s=_bound_s(group), calm_since_s=self._blows.calm_since_s
                    )

    def _partitions(self, group: GroupOf) -> list[TopicPartitionName]:
        return self._load.log.partitions(group.topics)

    # ── rest ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _calm_down(self) -> None:
        self._note("calm")
        self._brokers.calm_down()
        for broker_id, broker in list(self._brokers.slots.items()):
            if not broker.alive:
                self._brokers.start(broker_id)
        self._load.calm_down()
        self._load.log.stopped_s = virtual_loop().time() + 1.0
        self._blows.struck_s = virtual_loop().time()

    async def _rest(self) -> None:
        """Everything is owned, read, and committed; and from then on nothing is written."""
        until_s = virtual_loop().time() + 3 * max(map(_bound_s, self._load.groups.values()))
        while unrest := await self._unrest():
            if virtual_loop().time() > until_s:
                self._failures += [f"it does not come to rest: {what}" for what in unrest[:5]]
                return
            await asyncio.sleep(0.5)
        await asyncio.sleep(max(map(_bound_s, self._load.groups.values())))  # until who died unheard is missed
        self._note("rest")
        before = self._etcd.revision
        await asyncio.sleep(REST_S)
        if self._etcd.revision > before:
            self._failures.append(f"{self._etcd.revision - before} writes in {REST_S:g} s, though all is at rest")

    async def _unrest(self) -> list[str]:
        found: list[str] = []
        for group in self._load.groups.values():
            for partition in self._partitions(group):
                end = self._load.log.end(partition)
                if not self._judge.is_owned(group.name, partition):
                    found.append(f"{partition} of {group.name} is not owned")
                elif end and self._judge.acknowledged[group.name, partition] < end:
                    found.append(f"{partition} of {group.name} is not committed to its end, {end}")
        return found

    async def _leave(self) -> None:
        """All leave, and nothing of them is left in the memory of any coordinator."""
        for consumer in self._load.living():
            consumer.stop()
        longest_s = max(map(_bound_s, self._load.groups.values()))
        if left := [consumer.main for consumer in self._load.living()]:
            await asyncio.wait(left, timeout=longest_s)
        self._failures += [f"{consumer.name} does not stop" for consumer in self._load.living()]
        await asyncio.sleep(longest_s)
        for broker in self._brokers.alive():
            if broker.open_calls:
                self._failures.append(f"{broker.name} still has {broker.open_calls} calls")
            for name in self._load.groups:
                if (held := broker.groups._groups.get(name)) is not None:
                    if held.group.phase is not GroupPhase.EMPTY or held.group.members or held.group.announced:
                        self._failures.append(f"{broker.name} holds {name} as {held.group.phase.value}, though all have left")
                    if held._waiting or held._silent_at_ms:
                        self._failures.append(f"{broker.name} keeps somebody waiting in {name}")
            if broker.groups._loading or broker.groups._writes._queue:
                self._failures.append(f"{broker.name} still loads, or writes")

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge_the_end(self) -> None:
        for group in self._load.groups.values():
            versions: dict[str, Iterable[KeyValue | None]] = {
                key: [kept for _, kept in held] for key, held in self._etcd._versions.items()
            }
            self._judge.judge_store(group.name, versions, LAYOUT)
            ends = {partition: self._load.log.end(partition) for partition in self._partitions(group)}
            self._judge.judge_delivery(group.name, ends, exactly_once=self._harm is Harm.NONE)

    async def _check_nothing_is_left(self) -> None:
        """Of what ended, no task and no timer is left; what was killed stays as it was."""
        for broker in self._brokers.alive():
            broker.stop()
        await asyncio.sleep(1.0)
        dead = {process.name for process in (*self._brokers.processes, *self._load.consumers) if not process.alive}
        for process, task in virtual_loop().running_in():
            if process not in dead and task is not asyncio.current_task():
                self._failures.append(f"{process} leaves {task.get_name() or task.get_coro()} behind")

    def _tallies(self) -> dict[str, int]:
        return {
            "group worlds": 1,
            **dict(sorted(self._judge.tallies.items())),
            "members": len(self._load.consumers),
            "coordinators": len(self._brokers.processes),
            "revisions": self._etcd.revision,
            "virtual seconds of groups": int(virtual_loop().time()),
            **{f"times {name}": count for name, count in sorted(self._blows.fallen.items())},
        }


def _bound_s(group: GroupOf) -> float:
    return (group.session_timeout_ms + group.rebalance_timeout_ms) / 1000 + PROOF_S + MARGIN_S
