"""Deletes what no group needs any more: expired offsets, offsets of deleted topics, and groups that hold nothing.

  an offset of a group without members   offsets_retention_ms after it was committed, and after the last member left
  an offset of a deleted topic           GRACE_MS after it was committed, with or without members
  a group without members and offsets    GRACE_MS after its last change
  a silent member                        its session restarts here, as if it had called: its coordinator may have died with it

Each coordinator expires its own groups. It examines what scan.py brings; if something seems expired, it decides again while no
commit
can be under way (GroupCoordinator.forget). Offsets of a group with members are kept, also those of topics that no member reads.

Invariant: nothing is deleted that was committed, or seen with members, within the retention.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.groups.admin.lag import KnownTopics
from gateway.groups.coordinator import GroupCoordinator
from metadata.errors import Corrupt, NoCoordinator, NotCoordinator, Stopping, UnknownGroup, UnknownTopic
from metadata.groups.model import Group, GroupPhase
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.measurements import counter
from metadata.model import TopicId, TopicPartition
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout
from metadata.topics.registry import read_topic_ids

# Grace for operators who restore a cluster, or look for a mistake.
GRACE_MS: Final = 600_000
# Deleted topics that are cached as such: each check reads all topics.
GONE_MAX: Final = 10_000

log = logging.getLogger(__name__)


class ExpiredState(NamedTuple):
    """Lists what has expired of one group."""

    offsets: Sequence[TopicPartition] = ()
    group: bool = False

    @property
    def is_nothing(self) -> bool:
        return not self.offsets and not self.group


def expired(
    group: Group,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    damaged: bool = False,
    deleted: Collection[TopicId],
    now_ms: int,
    retention_ms: int,
) -> ExpiredState:
    """Returns what has expired of a group. Pure. `damaged`: it has further offsets whose commit time cannot be read. `deleted`:
    topics that are known to be deleted."""
    is_empty = group.phase is GroupPhase.EMPTY and not group.announced

    def is_over(partition: TopicPartition, offset: CommittedOffset) -> bool:
        if partition.topic_id in deleted and now_ms - offset.committed_at_ms >= GRACE_MS:
            return True
        return is_empty and now_ms - max(offset.committed_at_ms, group.changed_at_ms) >= retention_ms

    over = [partition for partition, offset in offsets.items() if is_over(partition, offset)]
    kept_ms = max(GRACE_MS, retention_ms) if damaged else GRACE_MS
    return ExpiredState(over, is_empty and len(over) == len(offsets) and now_ms - group.changed_at_ms >= kept_ms)


@dataclass(slots=True)
class ExpiryCounts:
    """Counts what has expired at one broker since the process began."""

    offsets: int = counter("tidelog_group_offsets_expired", "Offsets that this broker has deleted as expired.")
    groups: int = counter("tidelog_groups_expired", "Groups that this broker has deleted as expired.")


class GroupExpiry:
    """Examines groups of this broker and deletes what has expired, counting it."""

    def __init__(
        self,
        store: MetadataStore,
        layout: KeyLayout,
        coordinator: GroupCoordinator,
        topics: KnownTopics,
        *,
        retention_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._layout = layout
        self._coordinator = coordinator
        self._topics = topics
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._deleted: set[TopicId] = set()
        self.counts = ExpiryCounts()

    async def visit(self, name: str, group: Group) -> None:
        """Examines a group as the store holds it. Raises Unavailable, OutcomeUnknown, Corrupt."""
        if group.members and not self._coordinator.is_loaded(name):
            with suppress(UnknownGroup, NotCoordinator, NoCoordinator, Stopping):  # it is examined again later
                await self._coordinator.describe(name)
        offsets = self._coordinator.known_offsets[name]
        await self._find_deleted({partition.topic_id for partition in offsets})
        if self._expired(group, offsets).is_nothing:
            return
        gone = ExpiredState()

        def decide(present: Group, stored: StoredOffsets) -> tuple[list[TopicPartition], bool]:
            nonlocal gone
            gone = self._expired(present, stored.committed, damaged=bool(stored.damaged))
            return list(gone.offsets), gone.group

        try:
            await self._coordinator.forget(name, decide)
        except UnknownGroup:
            return  # deleted meanwhile
        self.counts.offsets += len(gone.offsets)
        self.counts.groups += gone.group
        if not gone.is_nothing:
            log.info(
                "offsets expired group=%s offsets=%d: %s",
                name,
                len(gone.offsets),
                "the group, too" if gone.group else "the group stays",
            )

    def _expired(self, group: Group, offsets: Mapping[TopicPartition, CommittedOffset], *, damaged: bool = False) -> ExpiredState:
        now_ms, retention_ms = self._now_ms(), self._retention_ms
        return expired(group, offsets, damaged=damaged, deleted=self._deleted, now_ms=now_ms, retention_ms=retention_ms)

    async def _find_deleted(self, topic_ids: Collection[TopicId]) -> None:
        """Finds which topics were deleted. A topic missing from the cache may be new; one missing from the store after its offsets
        were read was deleted, and its id never returns."""
        unknown = {topic_id for topic_id in topic_ids if topic_id not in self._deleted and not self._is_known(topic_id)}
        if not unknown:
            return
        try:
            there = await read_topic_ids(self._store, self._layout)
        except Corrupt as error:
            log.error("topic check failed: %s; offsets of deleted topics are kept for now", error)
            return
        if len(self._deleted) >= GONE_MAX:
            self._deleted.clear()
        self._deleted |= unknown - there

    def _is_known(self, topic_id: TopicId) -> bool:
        try:
            self._topics.by_id(topic_id)
        except UnknownTopic:
            return False
        return True
