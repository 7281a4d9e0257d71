"""Keeps the partitions of one Consume stream: where each is read, and what the client may still commit. Pure.

  take ─▶ to be placed ─▶ placed ─▶ delivered, again and again ─▶ (stop: reading ends) ─▶ drop
             ▲              └▶ its offset is gone, or its topic was recreated: placed again
             └── while no broker can say where it begins

A ConsumedPartition lives from take to drop. Deliveries before a drop do not count after the partition is taken again.

Invariants: records of a partition are delivered in order, each once between take and drop. A commit up to a delivery names only
held
partitions and nothing delivered later. Memory is bounded however little a client commits: old deliveries are then kept in pairs,
and a
commit up to the first of a pair commits only what came before the pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument, TidelogError
from metadata.group_member.start_offsets import StartPolicy
from metadata.groups.assignors import TopicPartitionName
from metadata.model import Partition, TopicId, TopicPartition

# Uncommitted deliveries that are kept one by one.
DELIVERIES_MAX: Final = 2_048
UNKNOWN: Final = -1


class StartKind(Enum):
    """Says where a partition begins."""

    # The committed offset; without one, as the stream's policy says.
    COMMITTED = auto()
    EARLIEST = auto()
    LATEST = auto()
    TIMESTAMP = auto()


class Start(NamedTuple):
    """Names where a partition begins, by kind, and by time for a start at a timestamp."""

    whence: StartKind
    timestamp_ms: int = 0


def start_of(policy: StartPolicy) -> Start:
    """Returns the start within the bounds of the log that the policy names. ERROR names none."""
    return Start(StartKind.LATEST if policy is StartPolicy.LATEST else StartKind.EARLIEST)


@dataclass(eq=False, slots=True)
class ConsumedPartition:
    """One partition while it is held."""

    topic: str
    topic_id: TopicId
    number: int
    start: Start
    # Offset of the next record to deliver; UNKNOWN until the partition is placed.
    offset: int = UNKNOWN
    # High watermark of the last answer.
    high_watermark: int = UNKNOWN
    # Why the partition is not read any more.
    error: TidelogError | None = None
    is_paused: bool = False
    # The partition is being released: its deliveries may still be committed.
    is_stopped: bool = False
    # Offset and high watermark that the client received last.
    reported: tuple[int, int] = (UNKNOWN, UNKNOWN)

    @property
    def name(self) -> TopicPartitionName:
        return self.topic, self.number

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, Partition(self.number))

    @property
    def is_read(self) -> bool:
        return not (self.is_paused or self.is_stopped or self.error)

    @property
    def has_offset(self) -> bool:
        return self.offset != UNKNOWN

    @property
    def is_seen(self) -> bool:
        return self.has_offset and self.high_watermark != UNKNOWN

    def restart(self, policy: StartPolicy) -> None:
        """Forgets the offset: the partition begins as the policy says, which is none that ends with an error."""
        self.offset, self.start = UNKNOWN, start_of(policy)


class Position(NamedTuple):
    """How far a partition was delivered."""

    consumed: ConsumedPartition
    next_offset: int
    leader_epoch: int


class ConsumedPartitions:
    """Holds the partitions of one stream in their reading order, with the deliveries that the client may still commit."""

    def __init__(self) -> None:
        # In the order in which they are read.
        self._held: dict[TopicPartitionName, ConsumedPartition] = {}
        # Deliveries that may still be committed, in order, each with its id.
        self._deliveries: deque[tuple[int, Sequence[Position]]] = deque()
        # Positions named by a commit that is not done yet.
        self._due: dict[ConsumedPartition, Position] = {}
        self.last_delivery_id = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ConsumedPartition]:
        return iter(self._held.values())

    def get(self, name: TopicPartitionName) -> ConsumedPartition | None:
        return self._held.get(name)

    # ── which ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, partitions: Iterable[ConsumedPartition]) -> None:
        self._held.update((each.name, each) for each in partitions)

    def stop(self, names: Collection[TopicPartitionName]) -> None:
        """Stops reading these partitions."""
        for name in names:
            if (consumed := self._held.get(name)) is not None:
                consumed.is_stopped = True

    def drop(self, names: Collection[TopicPartitionName]) -> None:
        """Drops these partitions; their deliveries cannot be committed any more."""
        for name in names:
            if (consumed := self._held.pop(name, None)) is not None:
                self._due.pop(consumed, None)

    def holds(self, consumed: ConsumedPartition) -> bool:
        return self._held.get(consumed.name) is consumed

    def pause(self, name: TopicPartitionName, *, paused: bool) -> None:
        """Pauses or resumes a partition; ignores one that is no longer held. A resume clears its error."""
        if (consumed := self._held.get(name)) is not None:
            consumed.is_paused = paused
            consumed.error = consumed.error if paused else None

    def without_offset(self) -> list[ConsumedPartition]:
        return [each for each in self._held.values() if each.is_read and not each.has_offset]

    def readable(self) -> list[ConsumedPartition]:
        """Returns the partitions to read, those read longest ago first."""
        return [each for each in self._held.values() if each.is_read and each.has_offset]

    # ── deliveries, and what of them is committed ───────────────────────────────────────────────────────────────────────

    def delivered(self, positions: Sequence[Position], *, remembered: bool) -> int:
        """Records a delivery and returns its id. `remembered`: the client may commit it."""
        self.last_delivery_id += 1
        for consumed, next_offset, _ in positions:
            consumed.offset = next_offset
            if self.holds(consumed):
                self._held[consumed.name] = self._held.pop(consumed.name)
        if remembered and positions:
            self._deliveries.append((self.last_delivery_id, positions))
            if len(self._deliveries) > DELIVERIES_MAX:
                self._deliveries = deque(_in_pairs(self._deliveries))
        return self.last_delivery_id

    def due(self, delivery_id: int) -> list[Position]:
        """Returns the uncommitted positions up to a delivery. Raises InvalidArgument for a delivery that was not made."""
        if delivery_id > self.last_delivery_id:
            raise InvalidArgument(
                f"delivery {delivery_id} is unknown; the last of this stream is {self.last_delivery_id}",
                hint="Name the delivery_id of data that came on this stream.",
                field="commit.up_to_delivery_id",
            )
        while self._deliveries and self._deliveries[0][0] <= delivery_id:
            _, positions = self._deliveries.popleft()
            self._due.update((each.consumed, each) for each in positions if self.holds(each.consumed))
        return list(self._due.values())

    def committed(self, positions: Iterable[Position]) -> None:
        for position in positions:
            if self._due.get(position.consumed) is position:
                del self._due[position.consumed]

    # ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> list[ConsumedPartition]:
        """Returns the partitions that moved since the client last received them, and marks them as received."""
        moved = [each for each in self._held.values() if each.is_seen and each.reported != (each.offset, each.high_watermark)]
        for each in moved:
            each.reported = each.offset, each.high_watermark
        return moved


def _in_pairs(deliveries: Iterable[tuple[int, Sequence[Position]]]) -> Iterable[tuple[int, Sequence[Position]]]:
    """Merges deliveries two at a time, under the later id."""
    earlier: Sequence[Position] | None = None
    delivery_id = 0
    for delivery_id, positions in deliveries:
        if earlier is None:
            earlier = positions
            continue
        last: Mapping[ConsumedPartition, Position] = {each.consumed: each for each in (*earlier, *positions)}
        yield delivery_id, tuple(last.values())
        earlier = None
    if earlier is not None:
        yield delivery_id, earlier
