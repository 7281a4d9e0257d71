"""Which broker leads which partition. Pure, and the same answer for the same question.

    partitions without a leader ─┐
    what brokers have too much of ┴─▶ the broker with room that has least of the topic, on the rack that has least of it

Invariants: loads differ by at most one afterwards; no more partitions move than that takes; a draining broker gets nothing, and
keeps nothing while another can take it; every partition without a leader gets one while any broker takes part.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from metadata.model import SessionId, TopicId, TopicPartition


class Candidate(NamedTuple):
    """A broker that may lead partitions, in its present session."""

    session: SessionId
    rack: str = ""
    draining: bool = False


class Placement(NamedTuple):
    given: dict[TopicPartition, SessionId]
    """To partitions that nobody leads."""
    moved: dict[TopicPartition, SessionId]
    """From one that leads them to another."""


def place(
    leaders: Mapping[TopicPartition, SessionId | None], candidates: Sequence[Candidate], *, moves_max: int | None = None
) -> Placement:
    """`leaders` are all partitions with the session that leads each, or is about to; None, or one that is no candidate: nobody.

    At most `moves_max` partitions that have a leader are moved; what is left unbalanced is for the next time.
    """
    staying = sorted((candidate for candidate in candidates if not candidate.draining), key=lambda candidate: candidate.session)
    if not staying:  # better a broker that is about to leave than none
        staying = sorted(candidates, key=lambda candidate: candidate.session)
        if not staying:
            return Placement({}, {})
    tables = _Tables(leaders, candidates)
    room = _quotas(len(leaders), staying, tables)
    given = {partition: tables.give(partition, room) for partition in sorted(tables.leaderless)}
    moved: dict[TopicPartition, SessionId] = {}
    for candidate in sorted(candidates, key=lambda candidate: (not candidate.draining, candidate.session)):
        surplus = -room.get(candidate.session, -tables.load(candidate.session))
        for partition in tables.most_crowded(candidate.session, surplus):
            if moves_max is not None and len(moved) >= moves_max:
                return Placement(given, moved)
            tables.take(partition, candidate.session)
            moved[partition] = tables.give(partition, room)
    return Placement(given, moved)


def is_balanced(loads: Mapping[SessionId, int], candidates: Sequence[Candidate]) -> bool:
    """Whether `place` would move nothing, where each candidate leads as many partitions as `loads` say, and all are led."""
    staying = [candidate for candidate in candidates if not candidate.draining] or candidates
    if not staying:
        return True
    held = [loads.get(candidate.session, 0) for candidate in staying]
    return max(held) - min(held) <= 1 and sum(held) == sum(loads.values())


class _Tables:
    """Who leads what, counted by broker and by rack."""

    def __init__(self, leaders: Mapping[TopicPartition, SessionId | None], candidates: Sequence[Candidate]) -> None:
        self._racks = {candidate.session: candidate.rack for candidate in candidates}
        self._led: dict[SessionId, dict[TopicId, list[TopicPartition]]] = {session: defaultdict(list) for session in self._racks}
        self._on_rack: Counter[tuple[TopicId, str]] = Counter()
        self.leaderless: list[TopicPartition] = []
        for partition, session in leaders.items():
            if session in self._led:
                self._add(partition, session)
            else:
                self.leaderless.append(partition)

    def load(self, session: SessionId) -> int:
        return sum(map(len, self._led[session].values()))

    def give(self, partition: TopicPartition, room: dict[SessionId, int]) -> SessionId:
        """Chooses the leader, one with room, and counts the partition to it."""
        topic = partition.topic_id

        def crowdedness(session: SessionId) -> tuple[int, int, int, SessionId]:
            return (
                self._on_rack[topic, self._racks[session]],
                len(self._led[session].get(topic, ())),
                -room[session],
                session,
            )

        chosen = min((session for session, left in room.items() if left > 0), key=crowdedness)
        room[chosen] -= 1
        self._add(partition, chosen)
        return chosen

    def take(self, partition: TopicPartition, session: SessionId) -> None:
        self._led[session][partition.topic_id].remove(partition)
        self._on_rack[partition.topic_id, self._racks[session]] -= 1

    def most_crowded(self, session: SessionId, count: int) -> list[TopicPartition]:
        """Partitions to give away: each time the last one of the topic that this broker has most of."""
        if count <= 0:
            return []
        topics = [(-len(partitions), topic, sorted(partitions)) for topic, partitions in self._led[session].items() if partitions]
        heapq.heapify(topics)
        chosen: list[TopicPartition] = []
        while len(chosen) < count:
            size, topic, partitions = topics[0]
            chosen.append(partitions.pop())
            if partitions:
                heapq.heapreplace(topics, (size + 1, topic, partitions))
            else:
                heapq.heappop(topics)
        return chosen

    def _add(self, partition: TopicPartition, session: SessionId) -> None:
        self._led[session][partition.topic_id].append(partition)
        self._on_rack[partition.topic_id, self._racks[session]] += 1


def _quotas(partition_count: int, staying: Iterable[Candidate], tables: _Tables) -> dict[SessionId, int]:
    """How many more each may take, below 0 what it has too much. What does not divide stays where most is led already, and
    goes to one broker of each rack before a second one."""
    turn_in_rack: Counter[str] = Counter()
    turns: dict[SessionId, int] = {}
    for candidate in staying:
        turns[candidate.session] = turn_in_rack[candidate.rack]
        turn_in_rack[candidate.rack] += 1
    loads = {session: tables.load(session) for session in turns}
    by_load = sorted(turns, key=lambda session: (-loads[session], turns[session], session))
    share, rest = divmod(partition_count, len(by_load))
    return {session: share + (place < rest) - loads[session] for place, session in enumerate(by_load)}
