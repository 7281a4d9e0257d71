"""What one Consume stream reads: where it is in each partition, what of that its client may still commit. Pure.

    take ─▶ to be placed ─▶ placed ─▶ delivered, again and again ─▶ (stop: nothing more is read) ─▶ drop
                ▲              └▶ gone from the log, or its topic was made again: placed anew
                └── where nobody can tell at the moment

A partition is an object of one life: what was delivered of it before it was dropped does not count when it is taken again.

Invariants: records of a partition are delivered in order, each once in a life; a commit of all up to a delivery names nothing that
was delivered later, and only partitions that are held. Memory is bounded however little a client commits: old deliveries are
remembered in pairs, then, and a commit up to the first of a pair is one of what came before it.
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

# Uncommitted ones that are remembered one by one.
DELIVERIES_MAX: Final = 2_048
UNKNOWN: Final = -1


class StartKind(Enum):
    """Says where a partition begins."""

    # Where nothing is committed, as the policy of the stream says.
    COMMITTED = auto()
    EARLIEST = auto()
    LATEST = auto()
    TIMESTAMP = auto()


class Start(NamedTuple):
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
    # Of the next record to be delivered; UNKNOWN until it is placed.
    offset: int = UNKNOWN
    # As it was seen last.
    high_watermark: int = UNKNOWN
    # Why it is not read any more.
    error: TidelogError | None = None
    is_paused: bool = False
    # It is being given up: what was delivered may still be committed.
    is_stopped: bool = False
    # Offset and high watermark that the client was told last.
    told: tuple[int, int] = (UNKNOWN, UNKNOWN)

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
    def is_placed(self) -> bool:
        return self.offset != UNKNOWN

    @property
    def is_seen(self) -> bool:
        return self.is_placed and self.high_watermark != UNKNOWN

    def place_anew(self, policy: StartPolicy) -> None:
        """Forgets the offset: the partition begins as the policy says, which is none that ends with an error."""
        self.offset, self.start = UNKNOWN, start_of(policy)


class Position(NamedTuple):
    """How far a partition was delivered."""

    consumed: ConsumedPartition
    next_offset: int
    leader_epoch: int


class ConsumedPartitions:
    def __init__(self) -> None:
        self._held: dict[TopicPartitionName, ConsumedPartition] = {}
        """In the order of their turns."""
        self._deliveries: deque[tuple[int, Sequence[Position]]] = deque()
        """Those that may still be committed, in order, each with its id."""
        self._due: dict[ConsumedPartition, Position] = {}
        """That a commit has named, and that is not committed yet."""
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
        """Nothing more of these is read."""
        for name in names:
            if (consumed := self._held.get(name)) is not None:
                consumed.is_stopped = True

    def drop(self, names: Collection[TopicPartitionName]) -> None:
        """Nothing of these can be committed any more."""
        for name in names:
            if (consumed := self._held.pop(name, None)) is not None:
                self._due.pop(consumed, None)

    def holds(self, consumed: ConsumedPartition) -> bool:
        return self._held.get(consumed.name) is consumed

    def pause(self, name: TopicPartitionName, *, paused: bool) -> None:
        """What is not held is passed over: it may have gone a moment ago. What is resumed is read again, whatever was wrong."""
        if (consumed := self._held.get(name)) is not None:
            consumed.is_paused = paused
            consumed.error = consumed.error if paused else None

    def to_place(self) -> list[ConsumedPartition]:
        return [each for each in self._held.values() if each.is_read and not each.is_placed]

    def readable(self) -> list[ConsumedPartition]:
        """In turn: those that were read longest ago come first."""
        return [each for each in self._held.values() if each.is_read and each.is_placed]

    # ── deliveries, and what of them is committed ───────────────────────────────────────────────────────────────────────

    def delivered(self, positions: Sequence[Position], *, remembered: bool) -> int:
        """Its id. `remembered`: the client may commit it."""
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
        """All that was delivered up to there and is not committed yet. InvalidArgument for one that was not made."""
        if delivery_id > self.last_delivery_id:
            raise InvalidArgument(
                f"delivery {delivery_id} is to be committed; {self.last_delivery_id} is the last that was made",
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

    # ── what is told where nothing comes ────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> list[ConsumedPartition]:
        """Those of which something is different from what was told last; it is told by that."""
        moved = [each for each in self._held.values() if each.is_seen and each.told != (each.offset, each.high_watermark)]
        for each in moved:
            each.told = each.offset, each.high_watermark
        return moved


def _in_pairs(deliveries: Iterable[tuple[int, Sequence[Position]]]) -> Iterable[tuple[int, Sequence[Position]]]:
    """Two at a time, under the later id."""
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
