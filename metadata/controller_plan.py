"""What the controller does next. Pure: the whole cluster as it is known goes in, steps come out.

    topics ─────────┐                    ┌─▶ unregistered   sessions to seal on the bucket, before anything of theirs is given away
    partition states┼─▶ plan ─▶ Steps ───┼─▶ decisions      who leads what has no leader; who shall hand over to whom
    live brokers ───┘                    └─▶ forgotten      states of partitions that no topic has

Invariants: a partition is given away only when it has no leader, or its leader's session is known to be sealed; a leader that
lives is asked, never overruled; what was planned on an old view does no harm, since every write compares what it was decided on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition
from metadata.partition_assignments import FORMAT_VERSION, Decision, PartitionState, appointed, moving
from metadata.placement import Candidate, is_balanced, place

MOVES_MAX = 256
"""Partitions on their way from a live leader to another at the same time: while one moves, nobody takes its records."""


class View(NamedTuple):
    """The cluster, as its watches told it."""

    partition_counts: Mapping[TopicId, int]
    """Of every topic."""
    states: Mapping[TopicPartition, tuple[PartitionState, Revision]]
    unreadable: Set[TopicPartition]
    """Partitions whose state can't be read: they are left as they are, as are those of a newer version."""
    candidates: Sequence[Candidate]
    """The registered brokers."""


class Steps(NamedTuple):
    unregistered: list[SessionId]
    """Sessions that lead partitions and have no broker: to be confirmed, then sealed."""
    decisions: list[Decision]
    forgotten: list[TopicPartition]
    """To be confirmed, then deleted."""


def plan(view: View, sealed: Set[SessionId], *, moves_max: int = MOVES_MAX) -> Steps:
    """`sealed` are sessions that were confirmed to have no broker, and have been sealed since."""
    scan = _Scan(view, sealed)
    decisions: list[Decision] = []
    moved: Mapping[TopicPartition, SessionId] = {}
    if scan.leaderless or scan.unknown or not is_balanced(scan.loads, view.candidates):
        placement = place(scan.leaders(view), view.candidates, moves_max=max(0, moves_max - scan.in_move))
        moved = placement.moved
        decisions = [_decided(view, partition, session) for partition, session in placement.given.items()]
        decisions += [_asked(view, partition, session) for partition, session in moved.items()]
    decisions += [_asked(view, partition, None) for partition in scan.in_vain if partition not in moved]
    return Steps(sorted(scan.unregistered), decisions, scan.forgotten)


class _Scan:
    """One look at every state: what is to be done, and whether anything must be placed. Most of the time nothing must."""

    def __init__(self, view: View, sealed: Set[SessionId]) -> None:
        self.unregistered: set[SessionId] = set()
        self.loads: Counter[SessionId] = Counter()
        """Partitions that each registered session leads, or is about to."""
        self.leaderless: list[TopicPartition] = []
        self.left_alone: set[TopicPartition] = set()
        """Whose state can't be read, or whose leader is not sealed yet."""
        self.in_move = 0
        self.in_vain: list[TopicPartition] = []
        """On their way to a session that is gone."""
        counts = view.partition_counts
        self.forgotten = [
            held for held in (*view.states, *sorted(view.unreadable)) if held.partition >= counts.get(held.topic_id, 0)
        ]
        self._registered = {candidate.session for candidate in view.candidates}
        self._forgotten = set(self.forgotten)
        self._look(view, sealed)
        known = len(view.states.keys() | view.unreadable) - len(self._forgotten)
        self.unknown = sum(counts.values()) - known
        """How many partitions have no state yet."""

    def _look(self, view: View, sealed: Set[SessionId]) -> None:
        registered, forgotten = self._registered, self._forgotten
        self.left_alone |= view.unreadable
        for partition, (state, _) in view.states.items():
            if partition in forgotten or partition in view.unreadable:
                continue
            leader, to = state.leader_session, state.moving_to
            if state.format_version > FORMAT_VERSION:
                self.left_alone.add(partition)
            elif leader in registered:
                if to is None:
                    self.loads[leader] += 1
                    continue
                self.in_move += 1
                if to not in registered:
                    self.in_vain.append(partition)
                self.loads[to if to in registered else leader] += 1
            elif leader in sealed:
                self.leaderless.append(partition)
            else:
                self.unregistered.add(leader)
                self.left_alone.add(partition)

    def leaders(self, view: View) -> dict[TopicPartition, SessionId | None]:
        """Of all partitions but those that are left alone, the session that leads each, or is about to."""
        leaders: dict[TopicPartition, SessionId | None] = {}
        for partition in _partitions(view.partition_counts):
            if partition in self.left_alone:
                continue
            held = view.states.get(partition)
            leader, to = (held[0].leader_session, held[0].moving_to) if held is not None else (None, None)
            if leader not in self._registered:
                leaders[partition] = None
            else:
                leaders[partition] = to if to in self._registered else leader
        return leaders


def _partitions(counts: Mapping[TopicId, int]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic_id, Partition(p)) for topic_id, count in counts.items() for p in range(count))


def _decided(view: View, partition: TopicPartition, session: SessionId) -> Decision:
    state, revision = view.states.get(partition, (None, Revision(0)))
    return Decision(partition, revision, appointed(state, session))


def _asked(view: View, partition: TopicPartition, to: SessionId | None) -> Decision:
    state, revision = view.states[partition]
    return Decision(partition, revision, moving(state, to if to != state.leader_session else None))
