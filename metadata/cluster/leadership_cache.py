"""Caches the state of every partition of the cluster, fed by a watch. Every broker has one.

Invariants: the cache shows one revision of the store, which never falls; subscribers receive every change, in order. An unreadable
value changes nothing: it is damage, not an order to stop leading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set

from metadata.cluster.leadership import PartitionState, decode_state
from metadata.errors import Corrupt
from metadata.model import Revision, SessionId, TopicId, TopicPartition
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch

log = logging.getLogger(__name__)

# Called with the partitions whose state has changed, or is gone. Must not block, nor raise.
PartitionsChanged = Callable[[Set[TopicPartition]], None]


class PartitionCache:
    """Caches which session leads each partition. Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, layout: KeyLayout) -> None:
        self._store = store
        self._layout = layout
        self._tables = _Tables()
        self._subscribers: list[PartitionsChanged] = []
        self._watched = RangeWatch(store, layout.partitions, read=self._reading, apply=self._apply)
        self.run = self._watched.run
        self.wait_for = self._watched.wait_for

    @property
    def states(self) -> Mapping[TopicPartition, tuple[PartitionState, Revision]]:
        """Returns the states with the revisions that wrote them; where the newest can't be read, the one before it."""
        return self._tables.states

    @property
    def corrupt(self) -> Set[TopicPartition]:
        """Returns the partitions whose newest value can't be read."""
        return self._tables.corrupt

    @property
    def moving(self) -> Set[TopicPartition]:
        """Returns the partitions that are to be handed over."""
        return self._tables.moving

    @property
    def set_back(self) -> TopicPartition | None:
        """Returns a partition whose leader epoch has fallen since this cache was made; None where there is none.

        Epochs never fall, so an older copy of the metadata has replaced these.
        """
        return self._tables.set_back

    def get(self, partition: TopicPartition) -> PartitionState | None:
        held = self._tables.states.get(partition)
        return held[0] if held is not None else None

    def led_by(self, session: SessionId) -> Set[TopicPartition]:
        return self._tables.led_by.get(session, set())

    async def catch_up(self, topic_id: TopicId) -> None:
        """Reads the states of the topic's partitions from the store, and returns when this cache holds at least what was read.

        Raises what the store raises.
        """
        stored = await self._store.range(self._layout.partitions_of(topic_id))
        await self.wait_for(max((item.mod_revision for item in stored.items), default=Revision(0)), timeout_s=None)

    def subscribe(self, changed: PartitionsChanged) -> Callable[[], None]:
        """Calls `changed` after each change, and returns how to end that."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def _apply(self, events: Sequence[Event]) -> None:
        changed = set()
        for event in events:
            if (partition := _parsed(self._layout, event.key)) is not None:
                changed.add(partition)
                before = self._tables.states.get(partition)
                self._tables.remove(partition)
                if event.kind == "put":
                    kept = KeyValue(event.key, event.value, event.mod_revision, event.mod_revision, version=1)
                    self._tables.put(partition, kept, before)
        self._notify(changed)

    def _reading(self) -> _Reading:
        return _Reading(self._layout, self._tables, self._replace)

    def _replace(self, tables: _Tables, changed: Set[TopicPartition]) -> None:
        tables.set_back = tables.set_back or self._tables.set_back
        self._tables = tables
        self._notify(changed)

    def _notify(self, changed: Set[TopicPartition]) -> None:
        for notify in tuple(self._subscribers):
            notify(changed)


class _Tables:
    """Holds the states, also by leader."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, tuple[PartitionState, Revision]] = {}
        self.led_by: dict[SessionId, set[TopicPartition]] = {}
        self.moving: set[TopicPartition] = set()
        self.corrupt: set[TopicPartition] = set()
        self.set_back: TopicPartition | None = None

    def put(self, partition: TopicPartition, kept: KeyValue, before: tuple[PartitionState, Revision] | None) -> None:
        """Adds a partition that is not in these tables. `before` stays its state where the newest can't be read."""
        held = before
        try:
            held = decode_state(kept), kept.mod_revision
        except Corrupt as error:
            log.error("%s", error)
            self.corrupt.add(partition)
        if held is not None:
            if before is not None and held[0].leader_epoch < before[0].leader_epoch:
                log.error("leader epoch fell partition=%s from=%s to=%s", partition, before[0].leader_epoch, held[0].leader_epoch)
                self.set_back = partition
            self.states[partition] = held
            self.led_by.setdefault(held[0].leader_session, set()).add(partition)
            if held[0].moving_to is not None:
                self.moving.add(partition)

    def remove(self, partition: TopicPartition) -> None:
        self.corrupt.discard(partition)
        self.moving.discard(partition)
        held = self.states.pop(partition, None)
        if held is not None:
            led = self.led_by[held[0].leader_session]
            led.discard(partition)
            if not led:
                del self.led_by[held[0].leader_session]


class _Reading:
    """Reads all states into new tables, a page at a time: 100,000 at once would hold the event loop for half a second.

    It also collects what has changed, so that subscribers are called for those partitions alone.
    """

    def __init__(self, layout: KeyLayout, before: _Tables, done: Callable[[_Tables, Set[TopicPartition]], None]) -> None:
        self._layout = layout
        self._before = before
        self._done = done
        self._tables = _Tables()
        self._changed: set[TopicPartition] = set()
        self._seen_before = 0

    def page(self, items: Sequence[KeyValue]) -> None:
        for item in items:
            if (partition := _parsed(self._layout, item.key)) is not None:
                before = self._before.states.get(partition)
                self._tables.put(partition, item, before)
                self._seen_before += before is not None
                if (before is None or before[1] != item.mod_revision) and partition not in self._tables.corrupt:
                    self._changed.add(partition)

    def replace(self) -> None:
        changed = self._changed | (self._before.corrupt ^ self._tables.corrupt)
        if self._seen_before < len(self._before.states):  # else none is gone
            changed |= self._before.states.keys() - self._tables.states.keys()
        self._done(self._tables, changed)


def _parsed(layout: KeyLayout, key: str) -> TopicPartition | None:
    try:
        return layout.parse_partition(key)
    except Corrupt as error:
        log.error("%s", error)
        return None
