"""Consumers of a simulated world: the real member of a group, and a reader, as one process that freezes, wakes and dies.

    GroupMember ── GroupCalls ──▶ the coordinator that any broker names; asked for again where it is not it, or does not answer
         └─ RebalanceListener ──▶ where to begin ─▶ hands out ─▶ commits, in between and before it gives up

Records are offsets that grow with time: ModelLog.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.coordinator_lease import PROOF_S
from metadata.errors import (
    Fenced,
    InstanceFenced,
    OutcomeUnknown,
    RebalanceInProgress,
    StaleGeneration,
    TidelogError,
    Unavailable,
)
from metadata.group_member.member import GroupMember
from metadata.group_member.settings import MemberSettings
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION, Generation, InstanceId, Joined, JoinRequest, MemberId, Synced, SyncRequest
from metadata.groups.offsets import CommittedOffset
from metadata.model import TopicPartition
from tests.simulation.group_brokers import GroupBrokers, GroupSite
from tests.simulation.kafka_groups import stored_as
from tests.simulation.simulated_process import SimulatedProcess, Wire
from tests.simulation.virtual_loop import virtual_loop

COMMIT_AGAIN_S: Final = 0.05
# Between the commits of a consumer that has little to read: it hears of its coordinator by heartbeats alone.
RARELY_S: Final = 20.0
# Timeout of a call that does not wait for other members.
CALL_S: Final = 2.0
# What a coordinator may take for a call, beyond what it waits for others.
ANSWER_S: Final = 3.0
T = TypeVar("T")


class Member(Protocol):
    """What a consumer needs of its member: GroupMember, or one of KIP-848."""

    @property
    def member_id(self) -> MemberId: ...
    @property
    def generation(self) -> Generation: ...
    @property
    def owned(self) -> frozenset[TopicPartitionName]: ...
    async def run(self) -> None: ...
    def stop(self) -> None: ...
    def polled(self) -> None: ...


@dataclass(slots=True)
class ModelLog:
    """Topics whose partitions grow by so many offsets a second, until they stop."""

    rates: dict[str, float]
    counts: dict[str, int]
    began_s: dict[TopicPartitionName, float] = field(default_factory=dict)
    stopped_s: float = float("inf")
    # While it is above 0, whatever is handed out is committed at once.
    in_a_hurry: int = 0
    # While it is above 0, nothing is committed but what is given up: consumers hear of their coordinator by heartbeats alone.
    at_leisure: int = 0

    def end(self, partition: TopicPartitionName) -> int:
        now_s = min(virtual_loop().time(), self.stopped_s)
        return int(self.rates[partition[0]] * max(0.0, now_s - self.began_s.get(partition, 0.0)))

    def grow(self, topic: str) -> None:
        self.began_s[topic, self.counts[topic]] = virtual_loop().time()
        self.counts[topic] += 1

    def partitions(self, topics: Collection[str]) -> list[TopicPartitionName]:
        return [(topic, number) for topic in sorted(topics) for number in range(self.counts[topic])]


class GroupLine:
    """A member's way to its coordinator: GroupCalls, commits and committed offsets."""

    def __init__(
        self, caller: str, brokers: GroupBrokers, chance: random.Random, *, longest_s: float, joined: Callable[[], None]
    ) -> None:
        """`longest_s`: the longest rebalance timeout in the group. `joined` is called when a coordinator takes the member in."""
        self.wire = Wire(chance)
        self._caller = caller
        self._brokers = brokers
        self._chance = chance
        self._longest_s = longest_s
        self._joined = joined
        self._coordinator: str | None = None

    async def join(self, name: str, request: JoinRequest) -> Joined:
        async def join(groups: GroupCoordinator) -> Joined:
            answer = await groups.join(name, request)
            self._joined()
            return answer

        return await self._ask(name, "join", join, waits_s=self._longest_s)

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        return await self._ask(name, "sync", lambda groups: groups.sync(name, request), waits_s=self._longest_s)

    async def heartbeat(self, name: str, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
        async def beat(groups: GroupCoordinator) -> None:
            await groups.heartbeat(name, member_id, instance_id, generation)
            self._brokers.judge_heartbeat(name, groups, generation)

        await self._ask(name, "heartbeat", beat)

    async def leave(self, name: str, leaving: Sequence[tuple[MemberId, InstanceId]]) -> list[TidelogError | None]:
        return await self._ask(name, "leave", lambda groups: groups.leave(name, leaving))

    async def commit(
        self,
        name: str,
        member_id: MemberId,
        instance_id: InstanceId,
        generation: Generation,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, TidelogError]:
        return await self._ask(name, "commit", lambda groups: groups.commit(name, member_id, instance_id, generation, offsets))

    async def offsets(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        return dict((await self._ask(name, "offsets", lambda groups: groups.offsets(name))).committed)

    async def _ask(self, group: str, what: str, ask: Callable[[GroupCoordinator], Awaitable[T]], *, waits_s: float = 0.0) -> T:
        brokers, wire = self._brokers, self.wire
        if waits_s:
            waits_s += PROOF_S  # a coordinator that has just come waits so much longer for members that it has not heard of
        try:
            if self._coordinator is None:
                self._coordinator = await brokers.find(self._caller, wire, group, self._chance)
            return await brokers.ask(
                self._caller,
                wire,
                self._coordinator,
                group,
                ask,
                what=what,
                bound_s=waits_s + ANSWER_S,
                timeout_s=waits_s + CALL_S,
            )
        except (Unavailable, OutcomeUnknown):
            self._coordinator = None
            raise


class Consumer(SimulatedProcess):
    """One process; another one may run under the same instance id."""

    def __init__(
        self,
        name: str,
        site: GroupSite,
        brokers: GroupBrokers,
        log: ModelLog,
        settings: MemberSettings,
        *,
        group: str,
        topics: Sequence[str],
        longest_s: float,
    ) -> None:
        super().__init__(name, site.failures.append)
        self.group = group
        self.topics = topics
        self.settings = settings
        self.instance_id = settings.instance_id
        self.twins_s = settings.session_timeout_ms / 1000
        self.is_slow = False
        """Its caller takes no records."""
        self.finished = False
        """It left, or another took its place."""
        self._is_stopping = False
        self._site = site
        self._log = log
        self._chance = chance = random.Random(f"{site.seed}/{name}")
        self.line = self._line_to(brokers, longest_s)
        self.member = self._new_member()
        self._poll_s = chance.choice((0.1, 0.2, 0.4))
        self._commit_s = chance.choice((0.3, 1.0, 3.0, RARELY_S))
        self._batch = chance.choice((100, 1000))
        self._held: dict[TopicPartitionName, int] = {}
        """What it was assigned, each with the number of the assignment that brought it."""
        self._assignments = 0
        self._positions: dict[TopicPartitionName, int] = {}
        self._committed: dict[TopicPartitionName, int] = {}
        self._committing = asyncio.Lock()
        self.main = self.start(self._run())

    def _line_to(self, brokers: GroupBrokers, longest_s: float) -> GroupLine:
        return GroupLine(self.name, brokers, self._chance, longest_s=longest_s, joined=lambda: self._site.judge.replaced(self))

    def _new_member(self) -> Member:
        return GroupMember(self.line, self, self.settings, group=self.group, jitter=self._chance.random)

    async def _run(self) -> None:
        reading = self.start(self._read())
        try:
            await self.member.run()
        except InstanceFenced:
            self._site.judge.tallies["instances fenced"] += 1
        finally:
            reading.cancel()
            self.finished = True
            self._site.note(f"{self.name} has ended")

    def stop(self) -> None:
        """As SIGTERM, or the end of the caller's loop."""
        self._is_stopping = True
        self.member.stop()

    @property
    def is_member(self) -> bool:
        """Its own clock says when it is none any more: see `believes`."""
        return True

    def believes(self, partition: TopicPartitionName) -> bool:
        return not self.finished and partition in self._held and partition in self.member.owned

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen and not self.finished and not self.is_slow

    # ── RebalanceListener ─────────────────────────────────────────────────────────────────────────────────────────────────

    def subscribed(self) -> Mapping[str, int]:
        return {topic: self._log.counts[topic] for topic in self.topics}

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        await asyncio.sleep(self.line.wire.travel_s())
        return {topic: self._log.counts[topic] for topic in topics if topic in self._log.counts}

    async def assigned(self, partitions: frozenset[TopicPartitionName]) -> None:
        self._assignments += 1
        self._held |= dict.fromkeys(sorted(partitions), self._assignments)
        self._site.judge.assigned(self, partitions)

    async def revoked(self, partitions: frozenset[TopicPartitionName]) -> None:
        stopping = {at: self._positions.pop(at) for at in sorted(partitions) if at in self._positions}
        uncommitted = sum(offset - self._committed[at] for at, offset in stopping.items())
        self._forget_reading(partitions)
        until_s = virtual_loop().time() + self.settings.rebalance_timeout_ms / 2000
        while stopping and virtual_loop().time() < until_s:
            try:
                await self._commit(stopping)
                break
            except TidelogError as error:
                if isinstance(error, Fenced) and not isinstance(error, RebalanceInProgress):
                    if self._is_stopping and isinstance(error, StaleGeneration):
                        self._site.judge.left_in_a_rebalance(uncommitted)
                    break
                await asyncio.sleep(COMMIT_AGAIN_S)
        self._site.judge.gave_up(self, partitions, "revoked")

    async def lost(self, partitions: frozenset[TopicPartitionName]) -> None:
        for at in partitions:
            self._positions.pop(at, None)
        self._forget_reading(partitions)
        self._site.judge.gave_up(self, partitions, "lost")

    def _forget_reading(self, partitions: Collection[TopicPartitionName]) -> None:
        for at in partitions:
            self._held.pop(at, None)
            self._committed.pop(at, None)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        committed_s = 0.0
        while True:
            await asyncio.sleep(self._poll_s)
            if self.is_slow:
                continue
            self.member.polled()
            await self._find_positions()
            self._hand_out()
            if self._log.at_leisure:
                continue
            if self._log.in_a_hurry or virtual_loop().time() >= committed_s + self._commit_s:
                committed_s = virtual_loop().time()
                try:
                    await self._commit(dict(self._positions))
                except TidelogError as error:
                    self._site.judge.tallies[f"commits answered {error.code}"] += 1

    def _hand_out(self) -> None:
        owned = self.member.owned
        for partition, position in self._positions.items():
            end = min(self._log.end(partition), position + self._batch)
            if partition in owned and end > position:
                self._site.judge.handed_out(self, partition, position, end)
                self._positions[partition] = end

    async def _find_positions(self) -> None:
        """Where it begins to read what is new. What it asked for before it was assigned does not count."""
        missing = {at: number for at, number in self._held.items() if at not in self._positions}
        if not missing:
            return
        judge = self._site.judge
        acknowledged = {at: judge.acknowledged[self.group, at] for at in missing}
        try:
            found = await self.line.offsets(self.group)
        except TidelogError:
            return
        for at, number in missing.items():
            if self._held.get(at) == number and at in self.member.owned:
                kept = found.get(stored_as(at))
                position = 0 if kept is None else kept.offset
                judge.began(self, at, position, acknowledged=acknowledged[at])
                self._positions[at] = self._committed[at] = position

    async def _commit(self, positions: Mapping[TopicPartitionName, int]) -> None:
        """Of what was handed out: one commit after the other, so that none overtakes another. Raises what refuses it."""
        async with self._committing:
            moved = {at: offset for at, offset in positions.items() if self._committed.get(at) != offset}
            member = self.member
            if not moved or member.generation == NO_GENERATION:
                return
            offsets = {stored_as(at): CommittedOffset(offset=offset, committed_at_ms=0) for at, offset in moved.items()}
            instance_id = InstanceId(self.settings.instance_id)
            by, generation = member.member_id, member.generation
            refused = await self.line.commit(self.group, by, instance_id, generation, offsets)
            for at, offset in moved.items():
                if stored_as(at) not in refused:
                    self._site.judge.committed(self, at, offset, by=by, generation=generation)
                    if at in self._held:
                        self._committed[at] = offset

    def commit_of_now(self) -> tuple[MemberId, Generation, dict[TopicPartition, CommittedOffset]]:
        """Returns what it would commit now. A test sends that late."""
        offsets = {stored_as(at): CommittedOffset(offset=offset, committed_at_ms=0) for at, offset in self._positions.items()}
        return self.member.member_id, self.member.generation, offsets
