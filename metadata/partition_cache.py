"""Who leads what, in memory, fed by a watch: of every partition of the cluster, at every broker.

Invariants: what is here was true at one revision of the store, which never goes back; subscribers hear of every change of what is
here, in order. A value that can't be read changes nothing: it is damage, and no order to stop leading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set

from metadata.errors import Corrupt
from metadata.etcd_layout import EtcdLayout
from metadata.model import Revision, SessionId, TopicPartition
from metadata.partition_assignments import PartitionState, decode_state
from metadata.store import Event, KeyValue, MetadataStore
from metadata.watched_range import WatchedRange

log = logging.getLogger(__name__)

PartitionsChanged = Callable[[Set[TopicPartition]], None]
"""Called with the partitions whose state has changed, or is gone. Must not block, nor raise."""


class PartitionCache:
    """Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, layout: EtcdLayout) -> None:
        self._layout = layout
        self._states: dict[TopicPartition, tuple[PartitionState, Revision]] = {}
        self._led_by: dict[SessionId, set[TopicPartition]] = {}
        self._moving: set[TopicPartition] = set()
        self._corrupt: set[TopicPartition] = set()
        self._subscribers: list[PartitionsChanged] = []
        self._watched = WatchedRange(store, layout.partitions, replace=self._replace, apply=self._apply)
        self.run = self._watched.run
        self.wait_for = self._watched.wait_for

    @property
    def states(self) -> Mapping[TopicPartition, tuple[PartitionState, Revision]]:
        """The states with the revisions that wrote them; where the newest can't be read, the one before it."""
        return self._states

    @property
    def corrupt(self) -> Set[TopicPartition]:
        """Those whose newest value can't be read: they have a state, and nobody knows which."""
        return self._corrupt

    @property
    def moving(self) -> Set[TopicPartition]:
        """Those that shall be handed over."""
        return self._moving

    def get(self, partition: TopicPartition) -> PartitionState | None:
        held = self._states.get(partition)
        return held[0] if held is not None else None

    def led_by(self, session: SessionId) -> Set[TopicPartition]:
        return self._led_by.get(session, set())

    def subscribe(self, changed: PartitionsChanged) -> Callable[[], None]:
        """Answers how to end it."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        found = {partition for item in items if (partition := self._put(item)) is not None}
        gone = [partition for partition in (*self._states, *self._corrupt) if partition not in found]
        for partition in gone:
            self._remove(partition)
        self._tell(found.union(gone))

    def _apply(self, events: Sequence[Event]) -> None:
        changed = set()
        for event in events:
            if event.kind == "put":
                kept = KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1)
                if (put := self._put(kept)) is not None:
                    changed.add(put)
            elif (partition := self._parse(event.key)) is not None:
                self._remove(partition)
                changed.add(partition)
        self._tell(changed)

    def _put(self, kept: KeyValue) -> TopicPartition | None:
        partition = self._parse(kept.key)
        if partition is None:
            return None
        try:
            state = decode_state(kept)
        except Corrupt as error:
            log.error("%s", error)
            self._corrupt.add(partition)
            return partition
        self._remove(partition)
        self._states[partition] = (state, kept.mod_revision)
        self._led_by.setdefault(state.leader_session, set()).add(partition)
        if state.moving_to is not None:
            self._moving.add(partition)
        return partition

    def _remove(self, partition: TopicPartition) -> None:
        self._corrupt.discard(partition)
        self._moving.discard(partition)
        held = self._states.pop(partition, None)
        if held is not None:
            led = self._led_by[held[0].leader_session]
            led.discard(partition)
            if not led:
                del self._led_by[held[0].leader_session]

    def _parse(self, key: str) -> TopicPartition | None:
        try:
            return self._layout.parse_partition(key)
        except Corrupt as error:
            log.error("%s", error)
            return None

    def _tell(self, changed: Set[TopicPartition]) -> None:
        for told in tuple(self._subscribers):
            told(changed)
