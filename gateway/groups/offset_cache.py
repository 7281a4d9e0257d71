"""Caches the committed offsets of groups for metrics, which must cost the metadata store nothing. Pure.

  commits at the coordinator ─┐
                              ├─▶ by group      a read brings earlier and missed commits; a group that begins here needs none
  reads of the store ─────────┘

No reader's start and no decision depends on this cache alone. A group that is loaded again is read again: another broker may have
written its offsets meanwhile. The metrics drop the groups of other brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from metadata.groups.offsets import CommittedOffset
from metadata.model import TopicPartition

Offsets = Mapping[TopicPartition, CommittedOffset]


class CommittedOffsetCache:
    """Holds the committed offsets of groups, from commits and from reads of the store."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._read: set[str] = set()

    def __getitem__(self, group: str) -> Offsets:
        return self._groups.get(group, {})

    def __iter__(self) -> Iterator[str]:
        """Iterates over the groups with known offsets."""
        return iter(self._groups)

    def committed(self, group: str, offsets: Offsets) -> None:
        self._groups.setdefault(group, {}).update(_slim(offsets))

    def deleted(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        held = self._groups.get(group, {})
        for partition in partitions:
            held.pop(partition, None)

    def read(self, group: str, offsets: Offsets, *, began_ms: int) -> None:
        """Takes what the store held when the read began; later commits are newer."""
        newer = {at: offset for at, offset in self[group].items() if offset.committed_at_ms >= began_ms}
        self._groups[group] = _slim(offsets) | newer
        self._read.add(group)

    def has_none_before(self, group: str) -> None:
        """Notes that the group has no record in the store, and so no offsets: they are written under one, and deleted before it."""
        self._read.add(group)

    def is_whole(self, group: str) -> bool:
        """Returns whether no committed offset of the group is missing: it was read, or need not be."""
        return group in self._read

    def forget(self, group: str) -> None:
        """Forgets a group that was deleted, or may have changed at another broker."""
        self._groups.pop(group, None)
        self._read.discard(group)

    def keep_only(self, groups: Collection[str]) -> None:
        for group in (self._groups.keys() | self._read).difference(groups):
            self.forget(group)


def _slim(offsets: Offsets) -> dict[TopicPartition, CommittedOffset]:
    """Removes the clients' metadata, which may be kilobytes each."""
    return {at: replace(offset, metadata="") if offset.metadata else offset for at, offset in offsets.items()}
