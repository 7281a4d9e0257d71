"""Judges a world of consumer groups: who owned what when, what was handed out, what was committed. Pure: the caller has the clock.

    owned       no two live members of a group believe to own a partition at one instant; none hands out what another owns
    unowned     no partition of a group with live members is without an owner for longer than the bound
    generation  none is given twice, and none is answered before it is stored
    committed   committed offsets never go back, none is above what was handed out, and who begins, begins at what was acknowledged;
                no two members commit one partition in one generation, or in one epoch of KIP-848
    delivered   every offset reaches the group. In worlds without harm each does so once. Excepted are offsets of a member that left
                between the end of a rebalance and the answer to its join, since its last commit is refused
    answered    every call is answered within its bound

A process that is frozen owns what it owned, until its own clock says otherwise: so it is judged by what it does when it wakes.
One that was replaced under its instance id hears of it at its next heartbeat, as in Kafka: until its session has ended, it is not
judged.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, Joined
from metadata.groups.offsets import decode_offset
from metadata.groups.record import decode_group
from metadata.store.interface import KeyValue
from metadata.store.keys import KeyLayout

# A group, and a partition that its members share.
Owned = tuple[str, TopicPartitionName]


class GroupRule(Enum):
    OWNED = "owned"
    UNOWNED = "unowned"
    GENERATION = "generation"
    COMMITTED = "committed"
    DELIVERED = "delivered"
    ANSWERED = "answered"


class Broken(NamedTuple):
    rule: GroupRule
    what: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.what}"


class Owner(Protocol):
    """A consumer, as it sees itself."""

    name: str
    group: str
    alive: bool
    frozen: bool
    instance_id: str
    # How long a former process may not know that it was replaced under its instance id: its session timeout, at most.
    twins_s: float

    @property
    def is_member(self) -> bool:
        """Whether what it owns counts. A member of KIP-848 that was removed goes on until it hears of it, and commits nothing."""
        ...

    def believes(self, partition: TopicPartitionName) -> bool:
        """Whether it would hand out records of it at this instant, if it ran."""
        ...


class Offsets:
    """A set of offsets, as the ranges [start, end) that it consists of."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Answers how many of them were there before."""
        low = bisect_right(self._ends, start - 1)  # ranges that touch are one
        high = bisect_right(self._starts, end)
        known = sum(max(0, min(end, self._ends[index]) - max(start, self._starts[index])) for index in range(low, high))
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        return known

    @property
    def complete_to(self) -> int:
        """The first that is missing."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0


class GroupJudge:
    def __init__(self, clock: Callable[[], float], note: Callable[[str], None]) -> None:
        self.broken: list[Broken] = []
        self.tallies: Counter[str] = Counter()
        self.delivered: defaultdict[Owned, Offsets] = defaultdict(Offsets)
        self.acknowledged: defaultdict[Owned, int] = defaultdict(int)
        """The highest offset whose commit was acknowledged."""
        self.owners: defaultdict[Owned, dict[Owner, None]] = defaultdict(dict)
        """The member that was assigned it, and has not given it up."""
        self._clock = clock
        self._note = note
        self._generations: dict[tuple[str, int], Joined] = {}
        self._members: dict[tuple[str, int], frozenset[str]] = {}
        self._committers: dict[tuple[str, TopicPartitionName, int], str] = {}
        """Who committed a partition in a generation."""
        self._instances: dict[tuple[str, str], Owner] = {}
        """Who joined last under each instance id."""
        self._replaced_s: dict[Owner, float] = {}
        self._unowned_since_s: dict[Owned, float] = {}

    def _broke(self, rule: GroupRule, what: str) -> None:
        self.broken.append(Broken(rule, f"{what} (at {self._clock():.3f} s)"))
        self._note(f"BROKEN {self.broken[-1]}")

    # ── who owns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def assigned(self, owner: Owner, partitions: Collection[TopicPartitionName]) -> None:
        self._note(f"{owner.name} is assigned {_shown(partitions)}")
        self.tallies["partitions assigned"] += len(partitions)
        for partition in partitions:
            owners = self.owners[owner.group, partition]
            for other in owners:
                if not other.frozen and self._clash(owner, other, partition):
                    self._broke(GroupRule.OWNED, f"{owner.name} is assigned {_shown([partition])}, which {other.name} owns")
            owners[owner] = None

    def gave_up(self, owner: Owner, partitions: Collection[TopicPartitionName], why: str) -> None:
        self._note(f"{owner.name} gives up {_shown(partitions)}: {why}")
        self.tallies[f"partitions {why}"] += len(partitions)
        for partition in partitions:
            self.owners[owner.group, partition].pop(owner, None)

    def _clash(self, owner: Owner, other: Owner, partition: TopicPartitionName) -> bool:
        if other is owner or not other.alive or not other.believes(partition):
            return False
        if not (owner.is_member and other.is_member):
            return False
        return not any(self._clock() - self._replaced_s.get(each, -each.twins_s) < each.twins_s for each in (owner, other))

    def replaced(self, by: Owner) -> None:
        """A process joined under its instance id. The one that joined before it hears of that at its next heartbeat."""
        if not by.instance_id:
            return
        former = self._instances.get((by.group, by.instance_id))
        if former is not None and former is not by:
            self._replaced_s[former] = self._clock()
        self._replaced_s.pop(by, None)  # it came back, and replaced the one that had replaced it
        self._instances[by.group, by.instance_id] = by

    def sampled(self, group: str, partitions: Iterable[TopicPartitionName], *, bound_s: float, calm_since_s: float) -> None:
        """Called again and again while the group has members that run; `calm_since_s`: when it was last struck."""
        now_s = self._clock()
        for partition in partitions:
            owned = group, partition
            if self.is_owned(group, partition):
                self._unowned_since_s.pop(owned, None)
                continue
            since_s = self._unowned_since_s.setdefault(owned, now_s)
            if now_s - max(since_s, calm_since_s) > bound_s:
                self._broke(GroupRule.UNOWNED, f"{_shown([partition])} of {group} has had no owner for {now_s - since_s:.1f} s")
                self._unowned_since_s[owned] = now_s

    def is_owned(self, group: str, partition: TopicPartitionName) -> bool:
        for owner in self.owners[group, partition]:  # noqa: SIM110  # it is asked for each partition at each look
            if owner.alive and not owner.frozen and owner.believes(partition):
                return True
        return False

    # ── records and offsets ─────────────────────────────────────────────────────────────────────────────────────────────

    def began(self, owner: Owner, partition: TopicPartitionName, position: int, *, acknowledged: int) -> None:
        """`acknowledged`: as it was when the owner began to ask where to begin."""
        self._note(f"{owner.name} begins {_shown([partition])} at {position}")
        if position < acknowledged:
            self._broke(
                GroupRule.COMMITTED, f"{owner.name} begins {_shown([partition])} at {position}, and {acknowledged} was acknowledged"
            )

    def handed_out(self, owner: Owner, partition: TopicPartitionName, start: int, end: int) -> None:
        for other in self.owners[owner.group, partition]:
            if self._clash(owner, other, partition):
                self._broke(GroupRule.OWNED, f"{owner.name} hands out {_shown([partition])}, which {other.name} owns")
        repeated = self.delivered[owner.group, partition].add(start, end)
        self.tallies["offsets delivered"] += end - start
        self.tallies["offsets delivered again"] += repeated

    def committed(
        self, owner: Owner, partition: TopicPartitionName, offset: int, *, by: str = "", generation: int = NO_GENERATION
    ) -> None:
        """It was acknowledged. `generation`: or the epoch of a member of KIP-848, which is one of its group."""
        owned = owner.group, partition
        if generation != NO_GENERATION and not owner.instance_id:
            first = self._committers.setdefault((*owned, generation), by)
            if first != by:
                self._broke(GroupRule.COMMITTED, f"{by} and {first} commit {_shown([partition])} in generation {generation}")
        self.tallies["commits acknowledged"] += 1
        self.acknowledged[owned] = max(self.acknowledged[owned], offset)
        if (complete_to := self.delivered[owned].complete_to) < offset:
            self._broke(GroupRule.COMMITTED, f"{owner.name} commits {_shown([partition])} at {offset}; {complete_to} was not read")

    def left_in_a_rebalance(self, uncommitted: int) -> None:
        """A member that stopped while it joined was refused its last commit, of so many offsets: the group has a new generation."""
        self.tallies["offsets not committed by who left in a rebalance"] += uncommitted

    def committed_late(self, name: str, generation: int, present: int) -> None:
        self._broke(GroupRule.COMMITTED, f"{name} commits in generation {generation}, and the present one is {present}")

    # ── answers of the coordinator ──────────────────────────────────────────────────────────────────────────────────────

    def joined(self, group: str, reported: Joined, kept: KeyValue | None) -> None:
        """`kept`: the group's record, as it lies in the store when `reported` is about to be sent."""
        self.tallies["joins answered"] += 1
        stored = None if kept is None else decode_group(kept, now_ms=0)
        if stored is None or stored.generation < reported.generation:
            self._broke(GroupRule.GENERATION, f"generation {reported.generation} of {group} is answered, and not stored")
            return
        if not reported.members or any(member.instance_id != NO_INSTANCE for member in reported.members):
            return
        at = group, reported.generation
        members = frozenset(member.member_id for member in reported.members)
        if self._members.setdefault(at, members) != members:
            self._broke(GroupRule.GENERATION, f"generation {reported.generation} of {group} was given twice")

    def stays(self, group: str, generation: int, present: int) -> None:
        """A heartbeat was answered well: `present` is the generation of which the coordinator knows."""
        if generation != present:
            self._broke(GroupRule.GENERATION, f"a member of generation {generation} of {group} may stay, though it is {present}")

    def answered(self, name: str, what: str, took_s: float, bound_s: float) -> None:
        self.tallies["calls"] += 1
        if took_s > bound_s:
            self._broke(GroupRule.ANSWERED, f"a {what} took {took_s:.1f} s at {name}; its bound is {bound_s:.1f} s")

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def judge_store(self, group: str, versions: Mapping[str, Iterable[KeyValue | None]], layout: KeyLayout) -> None:
        """All versions of the keys of a group, in order."""
        for key, held in versions.items():
            if key == layout.group(group):
                self._judge_generations(group, held)
            elif key.startswith(layout.offsets(group)):
                offsets = [decode_offset(kept).offset for kept in held if kept is not None]
                for before, after in itertools.pairwise(offsets):
                    if after < before:
                        self._broke(GroupRule.COMMITTED, f"{key} goes back from {before} to {after}")

    def _judge_generations(self, group: str, versions: Iterable[KeyValue | None]) -> None:
        generation, phase = 0, ""
        for kept in versions:
            if kept is None:
                continue
            stored = decode_group(kept, now_ms=0)
            if stored.generation < generation:
                self._broke(GroupRule.GENERATION, f"{group} goes back from generation {generation} to {stored.generation}")
            if stored.generation == generation and (phase, stored.phase.value) == ("Stable", "CompletingRebalance"):
                self._broke(GroupRule.GENERATION, f"generation {generation} of {group} begins twice")
            generation, phase = stored.generation, stored.phase.value
        self.tallies["generations"] += generation

    def judge_delivery(self, group: str, ends: Mapping[TopicPartitionName, int], *, exactly_once: bool) -> None:
        for partition, end in ends.items():
            if (complete_to := self.delivered[group, partition].complete_to) < end:
                self._broke(GroupRule.DELIVERED, f"{_shown([partition])} of {group} ends at {end}; {complete_to} was not delivered")
        repeated = self.tallies["offsets delivered again"] - self.tallies["offsets not committed by who left in a rebalance"]
        if exactly_once and repeated > 0:
            self._broke(GroupRule.DELIVERED, f"{repeated} offsets were delivered again, though no member came to harm")


def _shown(partitions: Collection[TopicPartitionName]) -> str:
    return " ".join(f"{topic}/{partition}" for topic, partition in sorted(partitions)) or "nothing"
