"""Plans the controller's next steps. Pure: the cluster as it is known goes in, steps come out.

    topics ─────────┐                        ┌─▶ unregistered   sessions to seal on the bucket, before they lose what they led
    partition states┴─▶ ledger ─┬─▶ plan ────┼─▶ decisions      leaders of partitions without one; handovers to ask for
    live brokers ───────────────┘            ├─▶ closing        partitions that no topic has but a session leads: to be closed
                                             └─▶ forgotten      partitions that neither a topic nor a session has

Invariants: a partition is given away only when it has no leader, or its leader's session is known to be sealed; a live leader
is asked, never overruled; the session that it is asked to hand over to is never replaced by another one, since a copy of the
metadata may know that the handover has happened. Only the deletion of the topic ends that request. Where the leader dies, that
session is appointed, or it is sealed before another one is appointed. What was planned on an old view is not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from metadata.cluster.broker_registry import Candidate
from metadata.cluster.leadership import FORMAT_VERSION, LeadershipChange, PartitionState, appointed, moving
from metadata.controller.ledger import PartitionLedger
from metadata.controller.placement import is_balanced, place
from metadata.model import Revision, SessionId, TopicPartition

# Bound on handovers between live leaders at once: a partition that moves takes no records.
MOVES_MAX = 256


class Steps(NamedTuple):
    """Holds what the controller does next."""

    # Sessions that lead partitions and have no broker: to be confirmed, then sealed.
    unregistered: list[SessionId]
    decisions: list[LeadershipChange]
    # Partitions of no known topic with a live leader: to be confirmed, then the leader is asked to close them.
    closing: list[TopicPartition]
    # Partitions of no known topic without a live leader: to be confirmed, then deleted.
    forgotten: list[TopicPartition]


def plan(ledger: PartitionLedger, candidates: Sequence[Candidate], sealed: Set[SessionId], *, moves_max: int = MOVES_MAX) -> Steps:
    """Plans the next steps. `candidates`: the registered brokers; `sealed`: unregistered sessions that were sealed."""
    survey = _Survey(ledger, candidates, sealed)
    decisions = [_decided(ledger, partition, session) for partition, session in survey.inherited]
    if survey.leaderless or not is_balanced(survey.loads, candidates):
        moves_left = max(0, moves_max - survey.in_move)
        placement = place(ledger.led, survey.leaderless, candidates, arriving=survey.arriving, moves_max=moves_left)
        decisions += [_decided(ledger, partition, session) for partition, session in placement.given.items()]
        decisions += [
            _asked(ledger, partition, session) for partition, session in placement.moved.items() if partition not in ledger.moving
        ]
    return Steps(sorted(survey.unregistered), decisions, survey.closing, survey.forgotten)


def closed_by_leader(state: PartitionState, revision: Revision, partition: TopicPartition) -> LeadershipChange:
    """Returns the change that asks the leader to close a partition whose topic was deleted."""
    return LeadershipChange(partition, revision, moving(state, state.leader_session))


class _Survey:
    """Collects what is to be done, and whether any partition must be placed; most of the time none must."""

    def __init__(self, ledger: PartitionLedger, candidates: Sequence[Candidate], sealed: Set[SessionId]) -> None:
        registered = {candidate.session for candidate in candidates}
        self.unregistered = ledger.led.keys() - registered - sealed
        # Partitions that each registered session leads, or is about to.
        self.loads: Counter[SessionId] = Counter({session: ledger.loads[session] for session in registered})
        self.leaderless = list(ledger.missing())
        # On their way, with the session that they count for.
        self.arriving: list[tuple[TopicPartition, SessionId]] = []
        # On their way from a leader that is sealed to a session that is registered.
        self.inherited: list[tuple[TopicPartition, SessionId]] = []
        self.in_move = 0
        for session in (ledger.led.keys() & sealed) - registered:
            for partitions in ledger.led[session].values():
                self.leaderless += partitions
        for partition in sorted(ledger.moving):
            leader, to = ledger.states[partition][0].leader_session, ledger.states[partition][0].moving_to
            assert to is not None, "it is moving"
            if leader in registered:
                self.in_move += 1
                counts_for = to if to in registered else leader
                self.arriving.append((partition, counts_for))
                self.loads[counts_for] += 1
            elif leader not in sealed:
                self.unregistered.add(leader)
            elif to == leader or (to in sealed and to not in registered):
                self.leaderless.append(partition)
            elif to in registered:
                self.inherited.append((partition, to))
                self.arriving.append((partition, to))
                self.loads[to] += 1
            else:
                self.unregistered.add(to)
        self.closing: list[TopicPartition] = []
        self.forgotten: list[TopicPartition] = []
        for partition in sorted(ledger.forgotten):
            state = ledger.states[partition][0] if partition in ledger.states else None
            if state is None or state.format_version > FORMAT_VERSION or state.is_closed or state.leader_session in sealed:
                self.forgotten.append(partition)
            elif state.leader_session not in registered:
                self.unregistered.add(state.leader_session)
            elif state.moving_to != state.leader_session:
                self.closing.append(partition)


def _decided(ledger: PartitionLedger, partition: TopicPartition, session: SessionId) -> LeadershipChange:
    state, revision = ledger.states.get(partition, (None, Revision(0)))
    return LeadershipChange(partition, revision, appointed(state, session, first_epoch=ledger.first_epoch(partition)))


def _asked(ledger: PartitionLedger, partition: TopicPartition, to: SessionId) -> LeadershipChange:
    state, revision = ledger.states[partition]
    return LeadershipChange(partition, revision, moving(state, to))
