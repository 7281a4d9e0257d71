"""Tracks the positions of a member over HTTP in its assigned partitions. Pure.

    cursor ─▶ positions; for partitions that it does not name: the committed offset, else the start policy
                 └▶ in rotation: targets ─▶ records ─▶ advance ─▶ the next cursor

A cursor holds a bounded number of entries (cursor.py): all of them if they fit. For a member with more partitions it holds those
that were read and not committed. Once it is full of these, the member reads no other partition until it commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gateway.http.groups.cursor import ENTRIES_MAX, TOPIC_WEIGHT, Cursor, CursorEntry, weight
from metadata.errors import InvalidArgument
from metadata.model import TopicId, TopicPartition


class MemberPositions:
    """Holds the entries of the next cursor, and chooses the partitions to read."""

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        cursor: Cursor,
        *,
        unknown_here: Mapping[TopicPartition, CursorEntry] | None = None,
    ) -> None:
        """`partitions` are the readable ones of the member's assignment, in order.

        `unknown_here` are entries of the cursor for partitions that this broker does not know yet, or that the member may not read
        at the moment; the next cursor keeps them. Raises InvalidArgument if the cursor names other partitions of known topics.
        """
        self.partitions = partitions
        self._unheard_of = dict(unknown_here or {})
        self._generation = cursor.generation
        self._rotation = cursor.rotation
        self._order = {partition: at for at, partition in enumerate(partitions)}
        self._fits_all = weight({**self._order, **self._unheard_of}) <= ENTRIES_MAX
        self._check_own(cursor.entries.keys() - self._order.keys() - self._unheard_of.keys())
        self._entries: dict[TopicPartition, CursorEntry] = {}
        # The number of entries that must stay, by topic.
        self._staying: Counter[TopicId] = Counter()
        for partition, entry in self._unheard_of.items():
            self._staying[partition.topic_id] += entry.must_stay
        for partition, entry in cursor.entries.items():
            if partition in self._order:
                self._put(partition, entry)

    def _check_own(self, others: Collection[TopicPartition]) -> None:
        topics = {partition.topic_id for partition in self.partitions}
        if any(partition.topic_id in topics for partition in others):
            raise InvalidArgument(
                "the cursor names partitions that are not assigned to this member in this generation",
                hint="Leave it out: then reading begins at the committed offsets.",
            )

    @property
    def without_entry(self) -> list[TopicPartition]:
        """Returns the partitions without an entry."""
        return [partition for partition in self.partitions if partition not in self._entries]

    @property
    def is_full(self) -> bool:
        """Returns whether the member must commit before it reads further partitions: no entry fits any more."""
        return not self._fits_all and ENTRIES_MAX - self._weight < TOPIC_WEIGHT + 1

    def has_entry(self, partition: TopicPartition) -> bool:
        return partition in self._entries

    @property
    def in_rotation(self) -> list[TopicPartition]:
        """Returns the partitions to probe, beginning at the rotation: all, or only those that must stay if the cursor is full."""
        begins = self._rotation % max(1, len(self.partitions))
        in_rotation = [*self.partitions[begins:], *self.partitions[:begins]]
        return [partition for partition in in_rotation if self._must_stay(partition)] if self.is_full else in_rotation

    def begin(self, partition: TopicPartition, offset: int, *, at_the_end: bool) -> None:
        """Sets the first position of a partition, or a new one if its position is no longer in the log.

        A position at the end of the log must stay in the cursor, since the end moves. If no entry fits, the partition begins later.
        """
        if not at_the_end or self._fits_all or self._has_room_for(partition):
            self._put(partition, CursorEntry(offset, must_stay=at_the_end))

    def targets(self, partitions: Sequence[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        """Returns the partitions to read, of these, with their offsets."""
        only_those_that_stay = self.is_full
        return [
            (partition, entry.offset)
            for partition in partitions
            if (entry := self._entries.get(partition)) is not None and (entry.must_stay or not only_those_that_stay)
        ]

    def may_move(self, partition: TopicPartition) -> bool:
        """Returns whether the cursor can hold the position after a read of this partition."""
        return self._fits_all or self._must_stay(partition) or self._has_room_for(partition)

    def advance(self, partition: TopicPartition, next_offset: int) -> None:
        """Moves the position after a read; the rotation continues at the next partition."""
        self._put(partition, CursorEntry(next_offset, must_stay=True))
        self._rotation = self._order[partition] + 1

    def drop(self, partition: TopicPartition) -> int:
        """Removes a position that is no longer in the log, and returns it."""
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
        """Returns the weight of the entries that must stay."""
        return sum(TOPIC_WEIGHT + count for count in self._staying.values() if count)

    def _has_room_for(self, partition: TopicPartition) -> bool:
        needed = 1 if self._staying[partition.topic_id] else TOPIC_WEIGHT + 1
        return self._weight + needed <= ENTRIES_MAX
