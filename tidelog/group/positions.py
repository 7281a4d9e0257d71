"""Tracks a group member's position in each partition: what is processed, and what of that is committed. Pure.

    handed out ── the caller asks for the next record ──▶ processed ── a commit was answered ──▶ committed

A record that is in the caller's hands is handed out and not processed: who fails with it gets it again.

Invariant: what is due to be committed is processed, of a partition that is read now, and names the topic's id that it was read of.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata.errors import StaleMember
from metadata.groups.assignors import TopicPartitionName
from tidelog.consumer.fetch_state import shown
from tidelog.records import Record

NO_EPOCH: Final = -1


class Offset(NamedTuple):
    """A committed offset: that of the next record to read."""

    offset: int
    # Leader epoch of the last record read; NO_EPOCH if unknown.
    leader_epoch: int = NO_EPOCH
    # Id of the topic that was read; "" stands for the present one.
    topic_id: str = ""


class HandedOut:
    """The chunk that the caller holds, record by record or as a whole, and has not asked past."""

    __slots__ = ("is_whole", "leader_epoch", "next_offset", "partition", "processed", "records")

    def __init__(self, partition: TopicPartitionName, records: list[Record], leader_epoch: int) -> None:
        self.partition = partition
        # Emptied where nothing more of it may be handed out: an iteration over it then ends.
        self.records = records
        self.leader_epoch = leader_epoch
        # Behind what was handed out.
        self.next_offset = records[0].offset
        # Behind what of it is processed.
        self.processed = self.next_offset
        # It was handed out as a whole; else the last record that was handed out is all that the caller still has.
        self.is_whole = False

    def take_all(self) -> list[Record]:
        """Hands out all that is left. The list is its taker's from then on."""
        taken, self.records = self.records, []
        self.next_offset, self.is_whole = taken[-1].offset + 1, True
        return taken

    def rest(self) -> list[Record]:
        """Returns the records not handed out yet."""
        records = self.records
        if not records or records[0].offset >= self.next_offset:
            return records
        if records[-1].offset < self.next_offset:
            return []
        return [record for record in records if record.offset >= self.next_offset]


@dataclass(slots=True)
class _Position:
    topic_id: str
    start: int
    processed: int
    leader_epoch: int
    committed: int | None
    # What the caller has had committed itself: what is processed before it takes nothing of that back.
    asked: int = 0


class GroupPositions:
    """The positions of a group member: what is handed out, processed and committed in each partition."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartitionName, _Position] = {}
        self.hand: HandedOut | None = None

    def __contains__(self, partition: TopicPartitionName) -> bool:
        return partition in self._positions

    def begin(self, partition: TopicPartitionName, topic_id: str, offset: int, *, committed: int | None) -> None:
        """Begins a partition. An uncommitted start is due, else a member that begins at the end would skip records while it is
        away."""
        self._positions[partition] = _Position(topic_id, offset, offset, NO_EPOCH, committed)

    def reset_position(self, partition: TopicPartitionName, offset: int) -> None:
        """Moves a partition whose offset is not in the log any more. The new start is due, as in `begin`; records that the
        caller still holds do not move it back."""
        if (held := self._positions.get(partition)) is not None:
            self._positions[partition] = _Position(held.topic_id, offset, offset, NO_EPOCH, None, asked=offset)

    def drop(self, partitions: Collection[TopicPartitionName]) -> None:
        """Forgets partitions that are not read any more; records of them that the caller holds do not count."""
        for partition in partitions:
            self._positions.pop(partition, None)
        if self.hand is not None and self.hand.partition in partitions:
            self.hand.records.clear()
            self.hand = None

    def seek(self, partition: TopicPartitionName, offset: int) -> None:
        """Moves a partition. Records of it that the caller holds do not count as processed."""
        held = self._positions[partition]
        held.processed, held.leader_epoch, held.asked = offset, NO_EPOCH, 0
        if self.hand is not None and self.hand.partition == partition:
            self.hand.records.clear()
            self.hand = None

    def hand_is_processed(self) -> None:
        """Counts the caller's chunk as processed: it asks for more, or is done."""
        if self.hand is not None:
            self._processed(self.hand, self.hand.next_offset)
            if not self.hand.rest():
                self.hand = None

    def let_go(self) -> None:
        """Drops the chunk that the caller holds; its last record does not count as processed."""
        if self.hand is not None:
            self._processed_but_for_last(self.hand)
            self.hand.records.clear()
            self.hand = None

    def _processed_but_for_last(self, hand: HandedOut) -> None:
        if not hand.is_whole:
            self._processed(hand, hand.next_offset - 1)

    def _processed(self, hand: HandedOut, next_offset: int) -> None:
        held = self._positions.get(hand.partition)
        if held is not None and next_offset > hand.processed:
            hand.processed = held.processed = next_offset
            held.leader_epoch = hand.leader_epoch

    def next_offset(self, partition: TopicPartitionName) -> int:
        """Returns the offset of the next record to be handed out."""
        held = self._positions[partition]
        return held.processed if self.hand is None or self.hand.partition != partition else self.hand.next_offset

    def all(self) -> dict[TopicPartitionName, int]:
        return {partition: self.next_offset(partition) for partition in sorted(self._positions)}

    def has_uncommitted(self, partition: TopicPartitionName) -> bool:
        """Returns whether records were handed out that are not committed."""
        held = self._positions.get(partition)
        return held is not None and self.next_offset(partition) != (held.start if held.committed is None else held.committed)

    def due(self, partitions: Collection[TopicPartitionName] | None = None) -> dict[TopicPartitionName, Offset]:
        """Returns offsets that are processed and not committed; only of `partitions`, if given."""
        if self.hand is not None:
            self._processed_but_for_last(self.hand)
        return {
            partition: Offset(held.processed, held.leader_epoch, held.topic_id)
            for partition, held in self._positions.items()
            if held.asked <= held.processed != held.committed and (partitions is None or partition in partitions)
        }

    def named(self, partition: TopicPartitionName, offset: int) -> Offset:
        """Returns an offset that the caller wants to commit. Raises StaleMember."""
        held = self._positions.get(partition)
        if held is None:
            raise StaleMember(
                f"{shown(partition)} is not read by this member now", hint="Its new owner goes on at the last committed offset."
            )
        hand = self.hand if self.hand is not None and self.hand.partition == partition else None
        return Offset(offset, NO_EPOCH if hand is None else hand.leader_epoch, held.topic_id)

    def committed(self, partition: TopicPartitionName, offset: Offset, *, asked: bool = False) -> None:
        """`asked`: by the caller, who may be ahead of what is processed."""
        held = self._positions.get(partition)
        if held is not None and held.topic_id == offset.topic_id:
            held.committed = offset.offset
            held.asked = offset.offset if asked else held.asked
