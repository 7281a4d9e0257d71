"""Where a member of a group over HTTP reads on, in each partition that it was assigned. Pure.

    cursor ─▶ entries; of partitions that it does not tell: what is committed, else where the reader wants to begin
                 └▶ in turn: targets ─▶ records ─▶ moved ─▶ the next cursor

A cursor holds so many entries and no more (cursor.py). Where all partitions fit, it holds all. Of a member that has more, it
holds what was read and is not committed; when it is full of these, nothing else is read until they are committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gateway.http.groups.cursor import ENTRIES_MAX, TOPIC_WEIGHT, Cursor, CursorEntry, weight
from metadata.errors import InvalidArgument
from metadata.model import TopicId, TopicPartition


class MemberPositions:
    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        cursor: Cursor,
        *,
        unknown_here: Mapping[TopicPartition, CursorEntry] | None = None,
    ) -> None:
        """`partitions`: those of the member's assignment that can be read, in order. `unknown_here`: entries of the cursor in
        partitions that this broker does not know yet; the next cursor has them too. Raises InvalidArgument where the cursor tells
        of others, unless their topic is gone."""
        self.partitions = partitions
        self._unheard_of = dict(unknown_here or {})
        self._generation = cursor.generation
        self._rotation = cursor.rotation
        self._order = {partition: at for at, partition in enumerate(partitions)}
        self._fits_all = weight({**self._order, **self._unheard_of}) <= ENTRIES_MAX
        self._check_own(cursor.entries.keys() - self._order.keys() - self._unheard_of.keys())
        self._entries: dict[TopicPartition, CursorEntry] = {}
        self._staying: Counter[TopicId] = Counter()
        """How many entries of each topic must stay."""
        for partition, entry in self._unheard_of.items():
            self._staying[partition.topic_id] += entry.must_stay
        for partition, entry in cursor.entries.items():
            if partition in self._order:
                self._put(partition, entry)

    def _check_own(self, others: Collection[TopicPartition]) -> None:
        topics = {partition.topic_id for partition in self.partitions}
        if any(partition.topic_id in topics for partition in others):
            raise InvalidArgument(
                "the cursor tells of partitions that are not this member's in this generation",
                hint="Leave it out: then reading begins at what is committed.",
            )

    @property
    def without_entry(self) -> list[TopicPartition]:
        """Those that no entry is known of."""
        return [partition for partition in self.partitions if partition not in self._entries]

    @property
    def is_full(self) -> bool:
        """Whether nothing more is read before this member commits: the cursor has no room for another entry."""
        return not self._fits_all and ENTRIES_MAX - self._weight < TOPIC_WEIGHT + 1

    def has_entry(self, partition: TopicPartition) -> bool:
        return partition in self._entries

    @property
    def in_rotation(self) -> list[TopicPartition]:
        """What may be looked at, first the partition whose turn it is: all of them, those without a entry too; where the cursor is
        full, those that must stay."""
        begins = self._rotation % max(1, len(self.partitions))
        in_rotation = [*self.partitions[begins:], *self.partitions[:begins]]
        return [partition for partition in in_rotation if self._must_stay(partition)] if self.is_full else in_rotation

    def begin(self, partition: TopicPartition, offset: int, *, at_the_end: bool) -> None:
        """Places a partition that the cursor does not name, or whose entry is no longer in the log. What begins at the end of the
        log must stay: the end will be elsewhere; unless there is no room for it, and then it begins another time."""
        if not at_the_end or self._fits_all or self._has_room_for(partition):
            self._put(partition, CursorEntry(offset, must_stay=at_the_end))

    def targets(self, partitions: Sequence[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        """Which of these to read, and from where."""
        only_those_that_stay = self.is_full
        return [
            (partition, entry.offset)
            for partition in partitions
            if (entry := self._entries.get(partition)) is not None and (entry.must_stay or not only_those_that_stay)
        ]

    def may_move(self, partition: TopicPartition) -> bool:
        """Whether there is room in the cursor for what is read of this partition."""
        return self._fits_all or self._must_stay(partition) or self._has_room_for(partition)

    def advance(self, partition: TopicPartition, next_offset: int) -> None:
        """It was read up to there. The next in order comes first in the next answer."""
        self._put(partition, CursorEntry(next_offset, must_stay=True))
        self._rotation = self._order[partition] + 1

    def mark_committed(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            if (entry := self._entries.get(partition)) is not None:
                self._put(partition, entry._replace(must_stay=False))

    def drop(self, partition: TopicPartition) -> int:
        """Its entry is no longer in the log. Answers where it was."""
        entry = self._entries.pop(partition)
        self._staying[partition.topic_id] -= entry.must_stay
        return entry.offset

    def cursor(self) -> Cursor:
        return Cursor(self._generation, {**self._unheard_of, **self._entries}, self._rotation % max(1, len(self.partitions)))

    def _put(self, partition: TopicPartition, entry: CursorEntry) -> None:
        before = self._entries.get(partition)
        self._entries[partition] = entry
        self._staying[partition.topic_id] += entry.must_stay - (before is not None and before.must_stay)

    def _must_stay(self, partition: TopicPartition) -> bool:
        entry = self._entries.get(partition)
        return entry is not None and entry.must_stay

    @property
    def _weight(self) -> int:
        """Of the entries that must stay."""
        return sum(TOPIC_WEIGHT + count for count in self._staying.values() if count)

    def _has_room_for(self, partition: TopicPartition) -> bool:
        needed = 1 if self._staying[partition.topic_id] else TOPIC_WEIGHT + 1
        return self._weight + needed <= ENTRIES_MAX
