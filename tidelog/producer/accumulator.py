"""Collects records into batches per partition, and says which batches leave now. Pure: the caller brings the time.

    records ──add──▶ lane (topic, partition) ──▶ ┐
    records ──add──▶ lane                    ──▶ ├ take(way): one batch of each lane that has one ready, in turn
    records ──add──▶ lane                    ──▶ ┘

A batch is ready when it is full, when it has waited `linger_ms`, when a flush closed it, or at once when nothing of its lane is
unanswered: a lone record is not kept waiting, and records that come while one batch is away travel together in the next. Lanes that
only wait are not looked through for that (ready_queue.py).

Invariants: `buffered_bytes` is the sum of all batches from their first record until they have left their lane for good; a lane that
is not idle stands in the line of its way, and is placed there again after each change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from metadata.errors import TidelogError
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.outcomes import Outcomes
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.producer.ready_queue import ReadyQueue
from tidelog.settings import ClientSettings
from tidelog.transport.routes import NO_LEADER_EPOCH, TAKEOVER, RoutePath

# A broker refuses a request of more appends.
REQUEST_BATCHES_MAX = 10_000
# Failed batches remembered until a flush reports them; beyond it the newest are dropped.
FAILURES_KEPT_MAX = 1_000


class RecordAccumulator:
    """The producer's buffer: batches by partition, and the lines of partitions that wait for each broker."""

    def __init__(self, settings: ClientSettings) -> None:
        self.buffered_bytes = 0
        # Batches that failed since a flush last took them, the oldest first.
        self.failures: list[ProducerBatch] = []
        # Counts of all records since the producer began.
        self.outcomes = Outcomes()
        self._settings = settings
        self._lanes: dict[tuple[str, int], PartitionQueue] = {}
        # Producer id and epoch for new lanes: no lane of these partitions had it before.
        self._producer: tuple[int, int] | None = None
        # Lines with lanes, by the way to the leader.
        self._lines: dict[RoutePath, ReadyQueue] = {}
        # Number of lanes that are to go each way, including idle ones.
        self._headed: Counter[RoutePath] = Counter()
        self._gained: set[RoutePath] = set()
        self._left: set[RoutePath] = set()

    def lane(self, topic: str, partition: int, *, way: RoutePath, topic_id: str) -> PartitionQueue:
        """Returns the lane of this partition, made at first use; an existing lane keeps its way."""
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = PartitionQueue(topic, partition, way=way, topic_id=topic_id, settings=self._settings)
            self._lanes[topic, partition] = lane
            self._headed[way] += 1
            if self._producer is not None and lane.producer is None:
                lane.identify(*self._producer)
        return lane

    def lead(self, lane: PartitionQueue, way: RoutePath, *, leader_epoch: int) -> None:
        """Sets the way to the partition's leader: the lane moves as soon as nothing of it is on the wire.

        What a broker says that lags behind, of an older leader or of none, is not followed. A leader that follows another may
        still be taking over: until it has acknowledged something, its answers are awaited apart from those for what it leads.
        """
        if leader_epoch < lane.leader_epoch or (leader_epoch == lane.leader_epoch and way == lane.next_way):
            return
        if not way.awaits and (lane.next_way.awaits or NO_LEADER_EPOCH < lane.leader_epoch < leader_epoch):
            way = RoutePath(way.address, TAKEOVER)
        lane.leader_epoch = leader_epoch
        self._head(lane, way)
        self._place(lane)

    def made_anew(self, lane: PartitionQueue, topic_id: str, now_s: float) -> None:
        """Handles a topic that was deleted and recreated."""
        lane.made_anew(topic_id, now_s)
        self._collect((lane,))

    def drop(self, lanes: Iterable[PartitionQueue], error: TidelogError) -> None:
        """Fails what is left of lanes whose partitions are gone or unused, and forgets the lanes."""
        for lane in lanes:
            lane.abandon(error)
            self._collect((lane,))
            self._left.add(lane.way)
            self._heads_no_more(lane.next_way)
            del self._lanes[lane.topic, lane.partition]
        self._producer = None  # a lane that is made for one of them again must not begin again under the same id

    def _head(self, lane: PartitionQueue, way: RoutePath) -> None:
        """Heads a lane for this way once none of its batches is on the wire."""
        if self._lanes.get((lane.topic, lane.partition)) is lane:  # else it was dropped
            self._headed[way] += 1
            self._heads_no_more(lane.next_way)
        lane.next_way = way

    def _heads_no_more(self, way: RoutePath) -> None:
        self._headed[way] -= 1
        if not self._headed[way]:
            del self._headed[way]

    def _place(self, lane: PartitionQueue) -> None:
        """Places a lane in the line of its way; an idle lane is in no line."""
        moves = not lane.on_wire and lane.way != lane.next_way
        if (moves or lane.is_idle) and self._leave_line(lane) and not lane.is_idle:
            self._gained.add(lane.next_way)
        if moves:
            self._left.add(lane.way)
            lane.way = lane.next_way
        if not lane.is_idle:
            self._line(lane.way).place(lane)

    def _line(self, way: RoutePath) -> ReadyQueue:
        if (line := self._lines.get(way)) is None:
            line = self._lines[way] = ReadyQueue(way)
        return line

    def _leave_line(self, lane: PartitionQueue) -> bool:
        """Removes a lane from its leader's line. Returns whether it was there."""
        line = self._lines.get(lane.way)
        if line is None or lane not in line.lanes:
            return False
        line.remove(lane)
        if not line.lanes:
            del self._lines[lane.way]
        return True

    def take_gained(self) -> set[RoutePath]:
        """Ways that something moved to since this was last asked: somebody has to send there now."""
        gained, self._gained = self._gained, set()
        return gained

    def take_unused(self) -> set[RoutePath]:
        """Ways that lanes moved away from since this was last asked, and that no other lane goes or is to go."""
        left, self._left = self._left, set()
        return left - self._lines.keys() - self._headed.keys()

    # ── in ──

    def roll(self, lane: PartitionQueue, now_s: float) -> ProducerBatch:
        """Opens the lane's next batch; the one that was open leaves."""
        batch = lane.roll(now_s)
        self._place(lane)
        return batch

    def closed(self, lane: PartitionQueue) -> None:
        """Places a lane whose open batch was closed: the batch may leave."""
        self._place(lane)

    def close_open_batches(self) -> None:
        """Closes all open batches for a flush: they may leave now."""
        for lane in self._all_busy():
            lane.close()
            self._place(lane)

    # ── out ──

    def take(self, way: RoutePath, now_s: float, *, bytes_max: int) -> list[ProducerBatch]:
        """Takes the batches that leave this way now, at most one of each lane, together up to `bytes_max` or a single one.

        The lanes that were served go to the end of the line. Each batch counts as sent.
        """
        if (line := self._lines.get(way)) is None:
            return []
        taken: list[ProducerBatch] = []
        taken_bytes = 0
        for lane in line.in_turn(now_s):
            if taken_bytes >= bytes_max or len(taken) == REQUEST_BATCHES_MAX:
                break
            batch = lane.next_batch(now_s)
            if batch is not None:
                if taken and taken_bytes + batch.request_bytes > bytes_max:
                    break  # it was numbered, and keeps its place: the next request takes it first
                lane.sent(batch)
                taken.append(batch)
                taken_bytes += batch.request_bytes
            line.served(lane)
        return taken

    def wakes_at_s(self, way: RoutePath) -> float | None:
        """Returns when `take` may have a batch without a new record or answer; None for never."""
        line = self._lines.get(way)
        return None if line is None else line.wakes_at_s()

    def unidentified(self, way: RoutePath) -> list[PartitionQueue]:
        """Lanes that need a producer id before they can send."""
        line = self._lines.get(way)
        return [] if line is None else list(line.unidentified)

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Gives a fresh producer id to all lanes that have none, and to those that are made from now on."""
        for lane in {*self._lanes.values(), *self._all_busy()}:
            if lane.producer is None:
                lane.identify(producer_id, producer_epoch)
                self._place(lane)
        self._producer = producer_id, producer_epoch

    def unsettled(self) -> list[ProducerBatch]:
        """Lists every batch without an outcome."""
        return list(_unsettled(self._all_busy()))

    def unacknowledged_records(self, way: RoutePath) -> int:
        """Counts the records on this way without an outcome."""
        return sum(batch.record_count for batch in _unsettled(self._in_line(way)))

    def in_flight(self, way: RoutePath) -> list[str]:
        """Topics with something on the wire."""
        return sorted({lane.topic for lane in self._in_line(way) if lane.on_wire})

    def is_deserted(self, way: RoutePath) -> bool:
        """Returns whether a lane awaits answers from here only in order to move to another broker."""
        return any(lane.on_wire and lane.next_way.address != way.address for lane in self._in_line(way))

    def topics_of(self, way: RoutePath) -> set[str]:
        """Topics with something to send this way."""
        return {lane.topic for lane in self._in_line(way)}

    def busy(self, way: RoutePath) -> list[PartitionQueue]:
        """Lanes with something to send this way, or to await."""
        return list(self._in_line(way))

    def _in_line(self, way: RoutePath) -> Iterable[PartitionQueue]:
        line = self._lines.get(way)
        return () if line is None else line.lanes

    @property
    def ways(self) -> list[RoutePath]:
        """Returns the ways with batches to send, or answers to await."""
        return list(self._lines)

    # ── what happened ──

    def acknowledged(self, batch: ProducerBatch, base_offset: int, now_s: float) -> None:
        was_settled = batch.settled
        lane = cast(PartitionQueue, batch.lane)
        if batch.on_wire and lane.next_way == lane.way and lane.way.awaits == TAKEOVER:
            self._head(lane, RoutePath(lane.way.address))  # it has taken over
        lane.acknowledged(batch, base_offset, now_s)
        if batch.settled and not was_settled:
            self.outcomes.acknowledged += batch.record_count
        self._collect((lane,))

    def refused(self, batch: ProducerBatch, error: TidelogError, now_s: float) -> None:
        lane = cast(PartitionQueue, batch.lane)
        lane.refused(batch, error, now_s)
        self._collect((lane,))

    def expire(self, way: RoutePath, now_s: float) -> bool:
        """Fails what is past its deadline; answers whether the broker owes an answer that is overdue."""
        lanes = list(self._in_line(way))
        for lane in lanes:
            lane.expire(now_s)
        self._collect(lanes)
        return any(lane.is_overdue(now_s) for lane in lanes)

    def unreachable(self, way: RoutePath, error: TidelogError) -> None:
        """Notes a failed connection or a missing answer: nothing went out, and a retry follows."""
        for lane in self._in_line(way):
            lane.last_trouble = error

    def abandon(self, lanes: Iterable[PartitionQueue], error: TidelogError) -> None:
        """Fails everything left in these lanes after an error that no retry mends."""
        for lane in list(lanes):
            lane.abandon(error)
            self._collect((lane,))

    def abandon_all(self, error: TidelogError) -> None:
        """Fails all batches, since the client closes."""
        self.abandon(self._all_busy(), error)

    def take_failures(self) -> list[ProducerBatch]:
        failures, self.failures = self.failures, []
        return failures

    def _collect(self, lanes: Iterable[PartitionQueue]) -> None:
        for lane in lanes:
            self.buffered_bytes -= lane.released_bytes
            lane.released_bytes = 0
            if lane.failures:
                for batch in lane.failures:
                    self._count_failure(batch)
                self.failures = (self.failures + lane.failures)[:FAILURES_KEPT_MAX]
                lane.failures = []
            self._place(lane)

    def _count_failure(self, batch: ProducerBatch) -> None:
        if batch.error is not None and batch.error.nothing_was_written:
            self.outcomes.refused += batch.record_count
        else:
            self.outcomes.unknown += batch.record_count

    def _all_busy(self) -> list[PartitionQueue]:
        return [lane for line in self._lines.values() for lane in line.lanes]


def _unsettled(lanes: Iterable[PartitionQueue]) -> Iterator[ProducerBatch]:
    for lane in lanes:
        for batch in (*lane.unanswered, *lane.closed, lane.open):
            if batch is not None and not batch.settled:
                yield batch
