"""Judges what the members of consumer groups did in a chaos run. Pure.

    group-skip            an offset that no member of the group has processed: a member begins behind it, or the run ends with it
    group-gap             a member's answer leaves out offsets, within one assignment
    group-went-back       a member is handed out again, within one assignment, what it was handed out before
    not-owned             a member is handed out records of what it was not assigned, or gave up
    two-owners            two members are handed out records of one partition in one generation
    lost-commit           a member begins before what was acknowledged as committed when it was assigned the partition
    commit-went-back      a broker reports less than was acknowledged, or than it reported before
    commit-beyond         a broker reports more than was processed
    group-lag             something is left in the end

What a member had in its hands when it was dropped is not processed. That offsets come again when members or brokers are struck is
no anomaly: `Figures` counts it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import (
    AnyEvent,
    Assigned,
    Committed,
    CommittedReported,
    GaveUp,
    GroupEnd,
    HandedOut,
    Healed,
    Lived,
    Processed,
    Served,
)
from tests.simulation.group_judge import Offsets

# (its name, what proves it)
Anomaly = tuple[str, str]
NOT_BEGUN = -1
NOT_YET_S = -1.0


@dataclass(slots=True)
class Figures:
    """Of one group."""

    assignments: int = 0
    generations: set[int] = field(default_factory=set)
    handed_out: int = 0
    # Records that were handed out to the group before.
    again: int = 0
    # Records that a member was handed out which did not know yet that its partition had gone to another.
    by_former_owners: int = 0
    commits: int = 0
    lives: int = 0
    dropped: int = 0
    # When a member was handed out records last.
    last_s: float = NOT_YET_S
    # The longest time in which none was, after the first and while there was load.
    pause_s: float = 0.0

    def reads(self, time_s: float) -> None:
        self.pause_s = max(self.pause_s, time_s - self.last_s if self.last_s > NOT_YET_S else 0.0)
        self.last_s = time_s


@dataclass(slots=True)
class _Reading:
    """One assignment of a partition to a member."""

    # What was acknowledged when it began.
    committed: int
    next_offset: int = NOT_BEGUN
    processed: int = NOT_BEGUN


@dataclass(slots=True)
class _Partition:
    """Of one group."""

    # By member that has not given it up.
    readings: dict[str, _Reading] = field(default_factory=dict)
    newest_owner: str = ""
    # By generation: who was handed out records first.
    owner_in: dict[int, str] = field(default_factory=dict)
    handed_out: Offsets = field(default_factory=Offsets)
    processed: Offsets = field(default_factory=Offsets)
    # The times at which a higher offset was acknowledged; `acknowledged` has these offsets.
    acknowledged_s: list[float] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=lambda: [0])
    reported: int = 0

    def acknowledges(self, offset: int, time_s: float) -> None:
        if offset > self.acknowledged[-1]:
            self.acknowledged.append(offset)
            self.acknowledged_s.append(time_s)

    def acknowledged_before(self, time_s: float) -> int:
        return self.acknowledged[bisect_left(self.acknowledged_s, time_s)]


def anomalies(events: Sequence[AnyEvent]) -> list[Anomaly]:
    return list(_Judge(events).anomalies())


def figures(events: Sequence[AnyEvent]) -> dict[str, Figures]:
    """By group."""
    judge = _Judge(events)
    for _ in judge.anomalies():
        pass
    return judge.figures


class _Judge:
    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.figures: defaultdict[str, Figures] = defaultdict(Figures)
        self._events = events
        self._healed = False
        self._partitions: defaultdict[tuple[str, int], _Partition] = defaultdict(_Partition)

    def anomalies(self) -> Iterator[Anomaly]:
        for event in self._events:
            match event:
                case Assigned():
                    yield from self._assigned(event)
                case GaveUp(group=group, member=member, partitions=partitions):
                    for partition in partitions:
                        self._partitions[group, partition].readings.pop(member, None)
                case HandedOut():
                    yield from self._handed_out(event)
                case Processed():
                    self._processed(event)
                case Committed(time_s=time_s, group=group, offsets=offsets):
                    self.figures[group].commits += 1
                    for partition, offset in offsets:
                        self._partitions[group, partition].acknowledges(offset, time_s)
                case CommittedReported():
                    yield from self._reported(event)
                case Lived(group=group, dropped=dropped):
                    self.figures[group].lives += 1
                    self.figures[group].dropped += dropped
                case GroupEnd():
                    yield from self._end(event)
                case Healed(time_s=time_s):
                    self._healed = True
                    for tally in self.figures.values():
                        tally.reads(time_s)

    def _assigned(self, event: Assigned) -> Iterator[Anomaly]:
        tally = self.figures[event.group]
        tally.assignments += len(event.partitions)
        tally.generations.add(event.generation)
        for partition in event.partitions:
            found = self._partitions[event.group, partition]
            found.readings[event.member] = _Reading(committed=found.acknowledged[-1])
            found.newest_owner = event.member
        yield from ()

    def _handed_out(self, event: HandedOut) -> Iterator[Anomaly]:
        found, tally = self._partitions[event.group, event.partition], self.figures[event.group]
        who = f"{event.member} in partition {event.partition} after {event.time_s} s"
        first, end = event.records[0][0], event.records[-1][0] + 1
        reading = found.readings.get(event.member)
        if reading is None:
            yield "not-owned", f"{who} was handed out {first}, and had not been assigned the partition, or given it up"
            return
        if reading.next_offset == NOT_BEGUN:
            if first > (complete_to := found.processed.complete_to):
                yield "group-skip", f"{who} begins at {first}; {complete_to} was processed by no member"
            if first < reading.committed:
                yield "lost-commit", f"{who} begins at {first}, though {reading.committed} was acknowledged as committed"
            reading.next_offset = reading.processed = first
        for offset, _ in event.records:
            if offset > reading.next_offset:
                yield "group-gap", f"{who} was handed out {offset} in place of {reading.next_offset}"
            elif offset < reading.next_offset:
                yield "group-went-back", f"{who} was handed out {offset} after {reading.next_offset - 1}"
            reading.next_offset = offset + 1
        if event.generation >= 0:
            owner = found.owner_in.setdefault(event.generation, event.member)
            if owner != event.member:
                yield "two-owners", f"{who} was handed out {first} in generation {event.generation}, in which {owner} reads, too"
        if not self._healed:
            tally.reads(event.time_s)
        tally.handed_out += end - first
        tally.again += found.handed_out.add(first, end)
        if found.newest_owner != event.member:
            tally.by_former_owners += end - first

    def _processed(self, event: Processed) -> None:
        """What was lost meanwhile does not count: who reads it now gets it again."""
        found = self._partitions[event.group, event.partition]
        reading = found.readings.get(event.member)
        if reading is not None and NOT_BEGUN < reading.processed < event.next_offset:
            found.processed.add(reading.processed, event.next_offset)
            reading.processed = event.next_offset

    def _reported(self, event: CommittedReported) -> Iterator[Anomaly]:
        for partition, offset in event.offsets:
            found = self._partitions[event.group, partition]
            what = f"after {event.time_s} s {offset} is reported as committed of partition {partition} by {event.group}"
            if offset < (least := max(found.reported, found.acknowledged_before(event.asked_s))):
                yield "commit-went-back", f"{what}; it was {least} before"
            if offset > (complete_to := found.processed.complete_to):
                yield "commit-beyond", f"{what}; {complete_to} was processed by no member"
            found.reported = max(found.reported, offset)

    def _end(self, event: GroupEnd) -> Iterator[Anomaly]:
        committed = dict(event.offsets)
        if event.lag_records:
            yield "group-lag", f"{event.group} is {event.lag_records} records behind in the end"
        for served in self._events:
            if not isinstance(served, Served) or not served.records:
                continue
            partition, end = served.partition, served.records[-1][0] + 1
            if (complete_to := self._partitions[event.group, partition].processed.complete_to) < end:
                evidence = f"{complete_to} of partition {partition} was processed by no member of {event.group}; it ends at {end}"
                yield "group-skip", evidence
            if committed.get(partition) != end:
                evidence = f"{event.group} has committed {committed.get(partition)} of partition {partition} in the end, not {end}"
                yield "group-lag", evidence
