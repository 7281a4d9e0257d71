"""What the controller does next. Pure: the whole cluster as it is known goes in, steps come out.

    topics ─────────┐                    ┌─▶ unregistered   sessions to seal on the bucket, before anything of theirs is given away
    partition states┼─▶ plan ─▶ Steps ───┼─▶ decisions      who leads what has no leader; who shall hand over to whom
    live brokers ───┘                    └─▶ forgotten      states of partitions that no topic has

Invariants: a partition is given away only when it has no leader, or its leader's session is known to be sealed; a leader that
lives is asked, never overruled; what was planned on an old view does no harm, since every write compares what it was decided on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from metadata.model import Partition, Revision, SessionId, TopicId, TopicPartition
from metadata.partition_assignments import Decision, PartitionState, appointed, moving
from metadata.placement import Candidate, place

MOVES_MAX = 256
"""Partitions on their way from a live leader to another at the same time: while one moves, nobody takes its records."""


class View(NamedTuple):
    """The cluster, as its watches told it."""

    partition_counts: Mapping[TopicId, int]
    """Of every topic."""
    states: Mapping[TopicPartition, tuple[PartitionState, Revision]]
    unreadable: Set[TopicPartition]
    """Partitions whose state can't be read: they are left as they are."""
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
    registered = {candidate.session for candidate in view.candidates}
    unregistered: set[SessionId] = set()
    leaders: dict[TopicPartition, SessionId | None] = {}
    in_move = 0
    for partition in _partitions(view.partition_counts):
        if partition in view.unreadable:
            continue
        held = view.states.get(partition)
        if held is None:
            leaders[partition] = None
            continue
        state, _ = held
        if state.leader_session in registered:
            to = state.moving_to
            leaders[partition] = to if to in registered else state.leader_session
            in_move += to is not None
        elif state.leader_session in sealed:
            leaders[partition] = None
        else:
            unregistered.add(state.leader_session)
    placement = place(leaders, view.candidates, moves_max=max(0, moves_max - in_move))
    decisions = [_decided(view, partition, session) for partition, session in placement.given.items()]
    decisions += [_asked(view, partition, session) for partition, session in placement.moved.items()]
    for partition, leader in leaders.items():
        to = view.states[partition][0].moving_to if leader is not None else None
        if to is not None and to not in registered and partition not in placement.moved:
            decisions.append(_asked(view, partition, None))
    counts = view.partition_counts
    forgotten = [partition for partition in view.states if partition.partition >= counts.get(partition.topic_id, 0)]
    return Steps(sorted(unregistered), decisions, forgotten)


def _partitions(counts: Mapping[TopicId, int]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic_id, Partition(p)) for topic_id, count in counts.items() for p in range(count))


def _decided(view: View, partition: TopicPartition, session: SessionId) -> Decision:
    state, revision = view.states.get(partition, (None, Revision(0)))
    return Decision(partition, revision, appointed(state, session))


def _asked(view: View, partition: TopicPartition, to: SessionId | None) -> Decision:
    state, revision = view.states[partition]
    return Decision(partition, revision, moving(state, to if to != state.leader_session else None))
