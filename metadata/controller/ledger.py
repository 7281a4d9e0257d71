"""Sorts every partition's state by what the controller may have to do with it, and follows each change. Pure.

    a state that is  of no topic                ─▶ forgotten
                     unreadable, or newer       ─▶ known, and left alone
                     to be handed over          ─▶ moving
                     any other                  ─▶ led: by its leader's session and its topic
    no state, in a topic                        ─▶ missing

So a plan costs as much as has changed and is to be done, not as much as there are partitions. States are sorted by what is stored,
never by which brokers live: a broker comes or goes without a check of each partition.

Invariant: a ledger that applied changes one by one equals a new one that applied everything at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from metadata.cluster.leadership import FORMAT_VERSION, PartitionState
from metadata.model import LeaderEpoch, Partition, Revision, SessionId, TopicId, TopicPartition

# A state, and the revision that wrote it.
StoredState = tuple[PartitionState, Revision]


class Changes(NamedTuple):
    """Holds what differs from the last call; for a new ledger, everything."""

    # 0 where the topic is gone.
    partition_counts: Mapping[TopicId, int]
    # None where the partition has no state, or none was ever read.
    states: Mapping[TopicPartition, StoredState | None]
    # The partitions of `states` whose newest value can't be read.
    unreadable: Set[TopicPartition]
    # The epoch of the first leader of each topic in `partition_counts`; 0 for those not named.
    first_epochs: Mapping[TopicId, LeaderEpoch] = {}


class PartitionLedger:
    """Indexes the states of all partitions for the controller's plan."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, StoredState] = {}
        self.led: dict[SessionId, dict[TopicId, set[TopicPartition]]] = {}
        # How many partitions `led` has of each session.
        self.loads: Counter[SessionId] = Counter()
        self.moving: set[TopicPartition] = set()
        self.forgotten: set[TopicPartition] = set()
        self._unreadable: set[TopicPartition] = set()
        self._counts: dict[TopicId, int] = {}
        self._first_epochs: dict[TopicId, LeaderEpoch] = {}
        # Partitions of each topic that have a state, readable or not.
        self._known: Counter[TopicId] = Counter()
        self._incomplete: set[TopicId] = set()

    def apply(self, changes: Changes) -> None:
        for topic_id, count in changes.partition_counts.items():
            self._resize(topic_id, count)
            if count and (first_epoch := changes.first_epochs.get(topic_id)):
                self._first_epochs[topic_id] = first_epoch
            else:
                self._first_epochs.pop(topic_id, None)
        for partition, stored in changes.states.items():
            self._take_out(partition)
            if stored is None:
                self.states.pop(partition, None)
            else:
                self.states[partition] = stored
            if partition in changes.unreadable:
                self._unreadable.add(partition)
            else:
                self._unreadable.discard(partition)
            self._put_in(partition)

    def missing(self) -> Iterator[TopicPartition]:
        """Yields the partitions of topics that have no state yet."""
        for topic_id in self._incomplete:
            for number in range(self._counts[topic_id]):
                partition = TopicPartition(topic_id, Partition(number))
                if not self._has(partition):
                    yield partition

    def first_epoch(self, partition: TopicPartition) -> LeaderEpoch:
        """Returns the epoch at which the partition's first leader begins."""
        return self._first_epochs.get(partition.topic_id, LeaderEpoch(0))

    def _has(self, partition: TopicPartition) -> bool:
        return partition in self.states or partition in self._unreadable

    def _resize(self, topic_id: TopicId, count: int) -> None:
        before = self._counts.get(topic_id, 0)
        if count > before:
            moved = [held for held in self.forgotten if held.topic_id == topic_id]
        else:
            numbers = range(count, before)
            moved = [held for n in numbers if self._has(held := TopicPartition(topic_id, Partition(n)))]
        for partition in moved:
            self._take_out(partition)
        if count:
            self._counts[topic_id] = count
        else:
            self._counts.pop(topic_id, None)
        for partition in moved:
            self._put_in(partition)
        self._count(topic_id, 0)

    def _take_out(self, partition: TopicPartition) -> None:
        if partition in self.forgotten:
            self.forgotten.discard(partition)
        elif self._has(partition):
            self._count(partition.topic_id, -1)
            self.moving.discard(partition)
            state = self._placeable(partition)
            if state is not None and state.moving_to is None:
                topics = self.led[state.leader_session]
                topics[partition.topic_id].discard(partition)
                self.loads[state.leader_session] -= 1
                if not topics[partition.topic_id]:
                    del topics[partition.topic_id]
                if not topics:
                    del self.led[state.leader_session], self.loads[state.leader_session]

    def _put_in(self, partition: TopicPartition) -> None:
        if not self._has(partition):
            return
        if partition.partition >= self._counts.get(partition.topic_id, 0):
            self.forgotten.add(partition)
            return
        self._count(partition.topic_id, 1)
        state = self._placeable(partition)
        if state is not None and state.moving_to is not None:
            self.moving.add(partition)
        elif state is not None:
            self.led.setdefault(state.leader_session, {}).setdefault(partition.topic_id, set()).add(partition)
            self.loads[state.leader_session] += 1

    def _placeable(self, partition: TopicPartition) -> PartitionState | None:
        """Returns the state; None where its newest value is unreadable or newer, and the partition is left alone."""
        stored = self.states.get(partition)
        if stored is None or partition in self._unreadable or stored[0].format_version > FORMAT_VERSION:
            return None
        return stored[0]

    def _count(self, topic_id: TopicId, more: int) -> None:
        self._known[topic_id] += more
        if self._known[topic_id] < self._counts.get(topic_id, 0):
            self._incomplete.add(topic_id)
        else:
            self._incomplete.discard(topic_id)
        if not self._known[topic_id]:
            del self._known[topic_id]
