"""Chooses which broker leads which partition. Pure and deterministic.

    partitions without a leader ─┐
    surplus of overloaded ones  ─┴─▶ the broker with room that has least of the topic, on the rack that has least of it

`led` is sorted by session and topic, as ledger.py keeps it, and not changed: decisions are laid over it. So a placement costs as
much as there is to place, not as much as there are partitions.

Invariants: loads differ by at most one afterwards; no more partitions move than that takes; a draining broker gets nothing, and
keeps nothing while another can take it; every partition without a leader gets one while any broker takes part.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from metadata.cluster.broker_registry import Candidate
from metadata.model import SessionId, TopicId, TopicPartition

# What each session leads, by topic.
Led = Mapping[SessionId, Mapping[TopicId, Collection[TopicPartition]]]


class Placement(NamedTuple):
    """Holds the leaders that were chosen."""

    # For partitions without a leader.
    given: dict[TopicPartition, SessionId]
    # For partitions that leave their leader.
    moved: dict[TopicPartition, SessionId]


def place(
    led: Led,
    leaderless: Collection[TopicPartition],
    candidates: Sequence[Candidate],
    *,
    arriving: Iterable[tuple[TopicPartition, SessionId]] = (),
    moves_max: int | None = None,
) -> Placement:
    """Chooses a leader for every partition of `leaderless`, and moves the surplus of overloaded candidates.

    Sessions of `led` that are no candidates are ignored. `arriving`: partitions on their way that are not in `led`, each with the
    candidate that it counts for. At most `moves_max` partitions that have a leader are moved; the next call goes on.
    """
    staying = sorted((candidate for candidate in candidates if not candidate.draining), key=lambda candidate: candidate.session)
    if not staying:  # a broker that is about to stop is better than none
        staying = sorted(candidates, key=lambda candidate: candidate.session)
        if not staying:
            return Placement({}, {})
    tables = _Tables(led, arriving, candidates)
    room = _quotas(sum(tables.loads.values()) + len(leaderless), staying, tables.loads)
    surplus = {candidate.session: -room.get(candidate.session, -tables.loads[candidate.session]) for candidate in candidates}
    given = {partition: tables.give(partition, room) for partition in sorted(leaderless)}
    moved: dict[TopicPartition, SessionId] = {}
    for candidate in sorted(candidates, key=lambda candidate: (not candidate.draining, candidate.session)):
        count = surplus[candidate.session]
        if moves_max is not None:
            count = min(count, moves_max - len(moved))
        for partition in tables.most_crowded(candidate.session, count):
            tables.take(partition, candidate.session)
            moved[partition] = tables.give(partition, room)
    return Placement(given, moved)


def is_balanced(loads: Mapping[SessionId, int], candidates: Sequence[Candidate]) -> bool:
    """Returns whether `place` would move nothing, where each candidate leads as many partitions as `loads` say, and all are led."""
    staying = [candidate for candidate in candidates if not candidate.draining] or candidates
    if not staying:
        return True
    held = [loads.get(candidate.session, 0) for candidate in staying]
    return max(held) - min(held) <= 1 and sum(held) == sum(loads.values())


class _Tables:
    """Counts the partitions of each broker and rack, with the decisions laid over `led`."""

    def __init__(self, led: Led, arriving: Iterable[tuple[TopicPartition, SessionId]], candidates: Sequence[Candidate]) -> None:
        self._racks = {candidate.session: candidate.rack for candidate in candidates}
        self._led: Led = {session: led.get(session, {}) for session in self._racks}
        self._arriving: dict[SessionId, dict[TopicId, list[TopicPartition]]] = {s: defaultdict(list) for s in self._racks}
        self._crowds: dict[TopicId, _Crowd] = {}  # of the topics that were needed
        self.loads = {session: sum(map(len, topics.values())) for session, topics in self._led.items()}
        for partition, session in arriving:
            self._arriving[session][partition.topic_id].append(partition)
            self.loads[session] += 1

    def give(self, partition: TopicPartition, room: dict[SessionId, int]) -> SessionId:
        """Chooses a leader that has room, and counts the partition to it."""
        by_session, by_rack = self._crowd(partition.topic_id)
        racks = self._racks
        _, _, _, chosen = min((by_rack[racks[s]], by_session[s], -left, s) for s, left in room.items() if left > 0)
        room[chosen] -= 1
        by_session[chosen] += 1
        by_rack[racks[chosen]] += 1
        return chosen

    def take(self, partition: TopicPartition, session: SessionId) -> None:
        by_session, by_rack = self._crowd(partition.topic_id)
        by_session[session] -= 1
        by_rack[self._racks[session]] -= 1

    def most_crowded(self, session: SessionId, count: int) -> list[TopicPartition]:
        """Returns partitions that the session gives away: each time the last one of the topic that it has most of."""
        if count <= 0:
            return []
        topics = [(-self._held(session, topic), topic) for topic in {*self._led[session], *self._arriving[session]}]
        heapq.heapify(topics)
        partitions: dict[TopicId, list[TopicPartition]] = {}
        chosen: list[TopicPartition] = []
        while len(chosen) < count:
            size, topic = topics[0]
            if topic not in partitions:
                partitions[topic] = sorted((*self._led[session].get(topic, ()), *self._arriving[session].get(topic, ())))
            chosen.append(partitions[topic].pop())
            heapq.heapreplace(topics, (size + 1, topic))
        return chosen

    def _held(self, session: SessionId, topic: TopicId) -> int:
        return len(self._led[session].get(topic, ())) + len(self._arriving[session].get(topic, ()))

    def _crowd(self, topic: TopicId) -> _Crowd:
        crowd = self._crowds.get(topic)
        if crowd is None:
            by_session = {session: self._held(session, topic) for session in self._racks}
            by_rack = dict.fromkeys(self._racks.values(), 0)
            for session, rack in self._racks.items():
                by_rack[rack] += by_session[session]
            crowd = self._crowds[topic] = _Crowd(by_session, by_rack)
        return crowd


class _Crowd(NamedTuple):
    """Counts the partitions of one topic that each session and each rack leads."""

    by_session: dict[SessionId, int]
    by_rack: dict[str, int]


def _quotas(partition_count: int, staying: Iterable[Candidate], loads: Mapping[SessionId, int]) -> dict[SessionId, int]:
    """Returns how many more partitions each broker may take; below 0, its surplus.

    The remainder stays where most partitions are led, and goes to one broker of each rack before a second one.
    """
    turn_in_rack: Counter[str] = Counter()
    turn_of: dict[SessionId, int] = {}
    for candidate in staying:
        turn_of[candidate.session] = turn_in_rack[candidate.rack]
        turn_in_rack[candidate.rack] += 1
    by_load = sorted(turn_of, key=lambda session: (-loads[session], turn_of[session], session))
    share, rest = divmod(partition_count, len(by_load))
    return {session: share + (rank < rest) - loads[session] for rank, session in enumerate(by_load)}
