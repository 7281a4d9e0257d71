"""What groups have committed, as far as this broker has heard: kept for metrics, which must cost the metadata store nothing.
Pure.

    commits at the coordinator ─┐
                                ├─▶ by group      a reading brings what was committed before, and what was missed
    readings of the store ──────┘   and none are needed of a group that begins here

Nobody is told from here where to read on, and nothing is decided on it alone. A group that is loaded anew is read anew: another
broker may have written its offsets meanwhile. Who runs metrics drops the groups that are not its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from metadata.groups.offsets import CommittedOffset
from metadata.model import TopicPartition

Offsets = Mapping[TopicPartition, CommittedOffset]


class CommittedOffsetCache:
    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._read: set[str] = set()

    def __getitem__(self, group: str) -> Offsets:
        return self._groups.get(group, {})

    def __iter__(self) -> Iterator[str]:
        """The groups of which anything is known."""
        return iter(self._groups)

    def committed(self, group: str, offsets: Offsets) -> None:
        self._groups.setdefault(group, {}).update(_slim(offsets))

    def deleted(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        held = self._groups.get(group, {})
        for partition in partitions:
            held.pop(partition, None)

    def read(self, group: str, offsets: Offsets, *, began_ms: int) -> None:
        """All that the store held when reading began: what was committed since is newer."""
        newer = {at: offset for at, offset in self[group].items() if offset.committed_at_ms >= began_ms}
        self._groups[group] = _slim(offsets) | newer
        self._read.add(group)

    def has_none_before(self, group: str) -> None:
        """It has no record in the store, and so no offsets there: they are written under one, and deleted before it."""
        self._read.add(group)

    def is_whole(self, group: str) -> bool:
        """Whether it was read, or need not be: then nothing is missing."""
        return group in self._read

    def forget(self, group: str) -> None:
        """It was deleted, or may have changed elsewhere."""
        self._groups.pop(group, None)
        self._read.discard(group)

    def keep_only(self, groups: Collection[str]) -> None:
        for group in (self._groups.keys() | self._read).difference(groups):
            self.forget(group)


def _slim(offsets: Offsets) -> dict[TopicPartition, CommittedOffset]:
    """Without what clients keep with them, which may be kilobytes each."""
    return {at: replace(offset, metadata="") if offset.metadata else offset for at, offset in offsets.items()}
