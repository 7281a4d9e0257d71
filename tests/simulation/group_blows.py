"""All that can befall consumer groups, drawn from the seed of a world: what happens to members, to coordinators, and between them.

Each blow strikes, lasts for its time, and takes itself back where it is not for good. Gentle ones harm none: a partition may be
without an owner for a moment, and no record is delivered twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from metadata.errors import MemberIdRequired, TidelogError
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, Subscription, encode_subscription
from metadata.groups.model import NO_INSTANCE, NO_MEMBER, JoinRequest, MemberId, Protocol
from metadata.groups.reconciliation.group import ReconciledGroup
from metadata.groups.record import decode_group
from tests.simulation.group_brokers import LAYOUT, GroupBroker, GroupBrokers, GroupSite
from tests.simulation.group_consumers import Consumer, GroupLine
from tests.simulation.group_load import GroupLoad
from tests.simulation.virtual_loop import virtual_loop

FLAP_S: Final = 0.01
# How late brokers hear of each other.
VIEW_DELAY_S: Final = 0.5


class Harm(Enum):
    """How much of it there is in a world."""

    NONE = "no member comes to harm"
    MEMBERS = "members come to harm"
    ALL = "all come to harm"


class GroupBlows:
    def __init__(self, brokers: GroupBrokers, load: GroupLoad, site: GroupSite, chance: random.Random) -> None:
        self.fallen: Counter[str] = Counter()
        """How many there were of each kind."""
        self.struck_s = 0.0
        """When something last came to harm, or recovered."""
        self._under_way = 0
        self._draining = asyncio.Lock()
        self._flaps = False
        self._brokers = brokers
        self._load = load
        self._site = site
        self._chance = chance

    @property
    def calm_since_s(self) -> float:
        return virtual_loop().time() if self._under_way else self.struck_s

    async def rain(self, for_s: float, harm: Harm) -> None:
        """One after the other, and several at a time; returns when the last has passed."""
        gentle: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._join, 5),
            (self._leave, 4),
            (self._join_all_at_once, 1),
            (self._flap, 2),
            (self._coordinator_drains, 3),
            (self._partitions_added, 1),
        ]
        of_members: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._crash, 5),
            (self._pause, 6),
            (self._short_pause, 2),
            (self._commit_late, 5),
            (self._same_instance, 3),
            (self._restart_static, 3),
            (self._slow_caller, 2),
            (self._flap_with_ids, 1),
        ]
        of_coordinators: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._coordinator_killed, 4),
            (self._coordinator_paused, 5),
            (self._coordinator_restarts, 2),
            (self._etcd_lost, 4),
            (self._etcd_answers_late, 8),
            (self._etcd_slow, 3),
            (self._etcd_away, 4),
            (self._views_differ, 4),
            (self._lossy_line, 4),
            (self._slow_line, 3),
            (self._member_cut_off, 4),
        ]
        blows = gentle + (of_members if harm is not Harm.NONE else []) + (of_coordinators if harm is Harm.ALL else [])
        weights = [weight * self._chance.choice((0, 0, 1, 6)) for _, weight in blows]
        pace_s = self._chance.choice((1.0, 2.0, 4.0))
        until_s = virtual_loop().time() + for_s
        async with asyncio.TaskGroup() as under_way:
            while virtual_loop().time() < until_s:
                (blow,) = self._chance.choices([blow for blow, _ in blows], weights) if any(weights) else (self._join,)
                name = blow.__name__.strip("_").replace("_", " ")
                self.fallen[name] += 1
                self._site.note(f"BLOW {name}")
                under_way.create_task(self._fall(blow, harmless=blow == self._flap))
                await asyncio.sleep(self._chance.uniform(0.1, pace_s))
        if harm is Harm.ALL:  # once in peace: amid other blows a group rebalances so often that what lands late is refused anyway
            for blow in (self._etcd_answers_late, self._coordinator_paused):
                self._site.note(f"BLOW {blow.__name__} in peace")
                await self._fall(blow, harmless=False)

    async def _fall(self, blow: Callable[[], Awaitable[None]], *, harmless: bool) -> None:
        """Flapping does not count: it must hold up no other."""
        if harmless:
            await blow()
            return
        self._under_way += 1
        try:
            await blow()
        finally:
            self._under_way -= 1
            self.struck_s = virtual_loop().time()

    def _sleep(self, *choices: float) -> Awaitable[None]:
        return asyncio.sleep(self._chance.choice(choices) * self._chance.uniform(0.7, 1.3))

    # ── members ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _join(self) -> None:
        self._load.join()

    async def _join_all_at_once(self) -> None:
        for _ in range(self._chance.randint(2, 4)):
            self._load.join()
            await asyncio.sleep(self._chance.choice((0.0, 0.1)))

    async def _leave(self) -> None:
        self._load.leave()

    async def _crash(self) -> None:
        self._load.crash()
        if self._chance.random() < 0.6:
            await self._sleep(0.05, 1.0)
            self._load.join()

    async def _pause(self) -> None:
        """Past its session: the others share what it owned, and then it wakes as if nothing had happened."""
        if (paused := self._load.any()) is not None:
            await self._paused(paused, self._load.session_s(paused.group) * self._chance.uniform(0.9, 3.0))

    async def _short_pause(self) -> None:
        if (paused := self._load.any()) is not None:
            await self._paused(paused, self._load.session_s(paused.group) * self._chance.uniform(0.2, 1.1))

    async def _paused(self, paused: Consumer, for_s: float) -> None:
        if not paused.frozen:
            self._site.note(f"{paused.name} is frozen")
            paused.freeze()
            await asyncio.sleep(for_s)
            self._site.note(f"{paused.name} wakes")
            paused.thaw()
            await asyncio.sleep(0.5)

    async def _slow_caller(self) -> None:
        """It takes no records for longer than it may."""
        if (slow := self._load.any()) is not None:
            slow.is_slow = True
            await asyncio.sleep(slow.settings.max_poll_interval_ms / 1000 * self._chance.uniform(0.5, 1.6))
            slow.is_slow = False

    async def _commit_late(self) -> None:
        """What a member sent in an earlier generation arrives, at any brokers."""
        if (late := self._load.any()) is None:
            return
        member_id, generation, offsets = late.commit_of_now()
        until_s = virtual_loop().time() + 20.0
        if self._chance.random() < 0.5:
            self._load.join(late.group)
        while offsets and generation >= 0 and virtual_loop().time() < until_s:
            if await self._generation(late.group, member_id) > generation:
                await self._sleep(0.0, 0.0, 0.5, 3.0)
                await self._commit_everywhere(late.group, member_id, generation, offsets)
                return
            await asyncio.sleep(0.05)

    async def _commit_everywhere(self, group: str, member_id: MemberId, generation: int, offsets: object) -> None:
        for broker in self._brokers.alive():
            with contextlib.suppress(TidelogError):
                present = await self._generation(group, member_id)
                refused = await broker.call(
                    "late",
                    broker.wire,
                    lambda at=broker: at.groups.commit(group, member_id, NO_INSTANCE, generation, offsets),  # type: ignore[misc]
                    timeout_s=5.0,
                )
                if len(refused) < len(offsets):  # type: ignore[arg-type]
                    self._site.judge.committed_late(str(member_id), generation, present)

    async def _generation(self, group: str, member_id: MemberId) -> int:
        """The present one of the group; for a member of KIP-848, its epoch."""
        kept = await self._site.etcd.get(LAYOUT.group(group))
        if kept is None:
            return 0
        held = decode_group(kept, now_ms=0)
        if isinstance(held, ReconciledGroup) and (member := held.consumer.members.get(member_id)) is not None:
            return member.epoch
        return held.generation

    async def _same_instance(self) -> None:
        """Two processes under one instance id: the later one stays."""
        if (twin := self._load.any_static()) is not None:
            self._load.join(twin.group, instance_id=twin.settings.instance_id)
            await self._sleep(0.2, 3.0)

    async def _restart_static(self) -> None:
        """Within its session, or later."""
        if (restarted := self._load.any_static()) is not None:
            if self._chance.random() < 0.5:
                self._load.kill(restarted)
            else:
                restarted.stop()
            await asyncio.sleep(self._load.session_s(restarted.group) * self._chance.choice((0.1, 0.5, 1.5)))
            self._load.join(restarted.group, instance_id=restarted.settings.instance_id)

    async def _flap(self) -> None:
        """Somebody asks to join and hangs up, every ten milliseconds."""
        await self._flapping(member_id_required=False)

    async def _flap_with_ids(self) -> None:
        """The same, and it gets an id each time that it never joins with; or joins with it, and leaves at once."""
        await self._flapping(member_id_required=True)

    async def _flapping(self, *, member_id_required: bool) -> None:
        if self._flaps:
            return
        self._flaps = True
        try:
            await self._flap_for(self._chance.choice((0.5, 1.5, 4.0)), member_id_required=member_id_required)
        finally:
            self._flaps = False

    async def _flap_for(self, for_s: float, *, member_id_required: bool) -> None:
        group = self._load.any_group()
        if self._load.groups[
            group
        ].reconciles:  # a member of the classic protocol that comes while it is empty would make it its own
            return
        until_s = virtual_loop().time() + for_s
        name = f"flapper {self.fallen.total()}"
        line = GroupLine(name, self._brokers, self._chance, longest_s=self._load.rebalance_s(group), joined=lambda: None)
        joins = self._chance.random() < 0.5
        while virtual_loop().time() < until_s:
            member_id = NO_MEMBER
            try:
                async with asyncio.timeout(FLAP_S):
                    await line.join(group, self._request(group, member_id, member_id_required))
            except MemberIdRequired as reported:
                member_id = MemberId(str(reported.details["member_id"]))
            except (TidelogError, TimeoutError):
                pass
            if member_id and joins:
                with contextlib.suppress(TidelogError, TimeoutError):
                    async with asyncio.timeout(FLAP_S):
                        await line.join(group, self._request(group, member_id, member_id_required))
                with contextlib.suppress(TidelogError, TimeoutError):
                    async with asyncio.timeout(FLAP_S):
                        await line.leave(group, [(member_id, NO_INSTANCE)])
            await asyncio.sleep(FLAP_S)

    def _request(self, group: str, member_id: MemberId, member_id_required: bool) -> JoinRequest:
        metadata = encode_subscription(Subscription(tuple(self._load.topics_of(group))))
        protocols = tuple(Protocol(name, metadata) for name in self._load.assignors_of(group))
        session_ms, rebalance_ms = (int(1000 * s) for s in (self._load.session_s(group), self._load.rebalance_s(group)))
        return JoinRequest(
            member_id, NO_INSTANCE, "flapper", "", PROTOCOL_TYPE, protocols, session_ms, rebalance_ms, member_id_required
        )

    async def _partitions_added(self) -> None:
        self._load.grow()

    # ── coordinators ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _coordinator(self) -> GroupBroker:
        return self._brokers.coordinating(self._load.any_group())

    async def _in_mid_rebalance(self) -> None:
        """Half of the time, the blow falls into a rebalance."""
        if self._chance.random() < 0.5:
            self._load.join()
            await asyncio.sleep(self._chance.choice((0.002, 0.05, 0.5)) * self._chance.uniform(0.5, 1.5))

    async def _coordinator_drains(self) -> None:
        """Its groups move, and back again; but not at once: members have to find each coordinator in time."""
        async with self._draining:
            drained = self._coordinator()
            await self._in_mid_rebalance()
            await self._brokers.drain(drained.broker_id, True)
            sessions_s = [self._load.session_s(group) for group in self._load.groups]
            await asyncio.sleep(min(sessions_s) * self._chance.choice((0.02, 0.2, 1.0)))
            await self._brokers.drain(drained.broker_id, False)
            await asyncio.sleep(max(sessions_s) / 2)

    async def _coordinator_killed(self) -> None:
        victim = self._coordinator()
        await self._in_mid_rebalance()
        self._brokers.kill(victim)
        await self._sleep(0.05, 1.0, 6.0)
        if not self._brokers.slots[victim.broker_id].alive:
            self._brokers.start(victim.broker_id)

    async def _coordinator_restarts(self) -> None:
        """As under SIGTERM: waiting calls are answered."""
        victim = self._coordinator()
        await self._in_mid_rebalance()
        victim.stop()
        await asyncio.sleep(0.1)
        self._brokers.kill(victim)
        if not self._brokers.slots[victim.broker_id].alive:
            self._brokers.start(victim.broker_id)

    async def _coordinator_paused(self) -> None:
        """Past its lease: another one coordinates, and then it wakes with all that it had in mind."""
        paused = self._coordinator()
        await self._in_mid_rebalance()
        if self._chance.random() < 0.7:  # so that a commit is on its way, and lands when others have gone on
            paused.metadata.write_latency_s = 1.0
            with self._load.in_a_hurry():
                await asyncio.sleep(0.5)
        if not paused.frozen and paused.alive:
            self._site.note(f"{paused.name} is frozen")
            with self._load.in_a_hurry():
                paused.freeze()
                await asyncio.sleep(self._site.session_timeout_s * self._chance.choice((0.5, 1.5, 2.5, 4.0)))
                self._site.note(f"{paused.name} wakes")
                paused.thaw()
                await asyncio.sleep(0.5)
        paused.metadata.write_latency_s = 0.0

    async def _etcd_lost(self) -> None:
        broker = self._coordinator()
        broker.metadata.answer_lost = self._chance.choice((0.1, 0.5))
        await self._in_mid_rebalance()
        await self._sleep(1.0, 5.0)
        broker.metadata.answer_lost = 0.0

    async def _etcd_answers_late(self) -> None:
        """A write of unknown outcome for its coordinator happens later: the coordinator, and the group, go on meanwhile."""
        broker = self._coordinator()
        broker.metadata.lands_late = self._chance.choice((0.1, 0.3, 0.6))
        await self._in_mid_rebalance()
        with self._load.in_a_hurry():
            await self._sleep(1.0, 4.0, 8.0)
            await self._last_write_lands_late(broker)
        broker.metadata.lands_late = 0.0

    async def _last_write_lands_late(self, broker: GroupBroker) -> None:
        """What a coordinator sent last lands when another one coordinates the group."""
        for _ in range(3):
            broker.metadata.lands_late = 1.0
            until_s = virtual_loop().time() + 1.0
            while not broker.metadata.writes_on_the_wire and virtual_loop().time() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            broker.metadata.lands_late = 0.0
            await self._brokers.drain(broker.broker_id, True)
            await self._sleep(1.0, 2.0)
            await self._brokers.drain(broker.broker_id, False)
            await asyncio.sleep(1.0)

    async def _etcd_slow(self) -> None:
        broker = self._coordinator()
        broker.metadata.latency_s = self._chance.choice((0.1, 0.5))
        broker.metadata.write_latency_s = self._chance.choice((0.0, 1.0))
        await self._in_mid_rebalance()
        await self._sleep(2.0, 6.0)
        broker.metadata.latency_s, broker.metadata.write_latency_s = 0.001, 0.0

    async def _etcd_away(self) -> None:
        """From all, or from some, for a moment or past their leases."""
        alive = self._brokers.alive()
        for_s = self._site.session_timeout_s * self._chance.choice((0.1, 0.3, 1.5, 4.0, 8.0))
        cut = self._chance.choice(
            (alive, [self._coordinator()], [self._coordinator()], self._chance.sample(alive, len(alive) // 2))
        )
        await self._in_mid_rebalance()
        for broker in cut:
            broker.metadata.cut()
        with self._load.at_leisure():  # a commit that fails would make its member look for another coordinator
            await asyncio.sleep(for_s / 2)
            self._load.join()
            await asyncio.sleep(for_s / 2)
        for broker in cut:
            broker.metadata.mend()

    async def _views_differ(self) -> None:
        """Some hear late of who lives and who drains: two brokers, or none, take a group for theirs."""
        late = [broker for broker in self._brokers.alive() if self._chance.random() < 0.5]
        for broker in late:
            broker.metadata.all_watches_delay_s = VIEW_DELAY_S * self._chance.choice((0.2, 1.0))
        moved = self._coordinator()
        await self._in_mid_rebalance()
        await self._brokers.drain(moved.broker_id, True)
        await self._sleep(0.1, 1.0, 3.0)
        await self._brokers.drain(moved.broker_id, False)
        await self._sleep(0.1, 3.0)
        for broker in late:
            broker.metadata.all_watches_delay_s = 0.0

    # ── between them ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _lossy_line(self) -> None:
        for line in (lines := self._load.some_lines()):
            line.lost = self._chance.choice((0.05, 0.3, 0.6))
        await self._sleep(1.0, 6.0)
        for line in lines:
            line.lost = 0.0

    async def _slow_line(self) -> None:
        for line in (lines := self._load.some_lines()):
            line.latency_s = self._chance.choice((0.05, 0.5, 1.5))
        await self._sleep(1.0, 6.0)
        for line in lines:
            line.latency_s = 0.002

    async def _member_cut_off(self) -> None:
        """From every coordinator, past its session or not. Either they notice it, or they take its calls for waiting."""
        if (cut := self._load.any()) is not None:
            cut.line.wire.cut = True
            if self._chance.random() < 0.5:
                for broker in self._brokers.alive():
                    broker.drop_calls_of(cut.name)
            await asyncio.sleep(self._load.session_s(cut.group) * self._chance.uniform(0.2, 2.0))
            cut.line.wire.cut = False
