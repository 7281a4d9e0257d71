"""Collects records into batches per partition, and says which batches leave now. Pure: the caller brings the time.

    records ──add──▶ queue (topic, partition) ──▶ ┐
    records ──add──▶ queue                    ──▶ ├ take(way): one batch of each queue that has one ready, in turn
    records ──add──▶ queue                    ──▶ ┘

A batch is ready when it is full, when it has waited `linger_ms`, when a flush closed it, or at once when nothing of its queue is
unanswered: a lone record is not kept waiting, and records that come while one batch is away travel together in the next. Queues
that only wait are not looked through for that (ready_queue.py).

Invariants: `buffered_bytes` is the sum of all batches from their first record until they have left their queue for good; a queue
that is not idle stands in the line of its way, and is placed there again after each change.
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
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        # Producer id and epoch for new queues: no queue of these partitions had it before.
        self._producer: tuple[int, int] | None = None
        # Lines with queues, by the way to the leader.
        self._lines: dict[RoutePath, ReadyQueue] = {}
        # Number of queues that are to go each way, including idle ones.
        self._headed: Counter[RoutePath] = Counter()
        self._gained: set[RoutePath] = set()
        self._left: set[RoutePath] = set()

    def queue(self, topic: str, partition: int, *, way: RoutePath, topic_id: str) -> PartitionQueue:
        """Returns the queue of this partition, made at first use; an existing queue keeps its way."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = PartitionQueue(topic, partition, way=way, topic_id=topic_id, settings=self._settings)
            self._queues[topic, partition] = queue
            self._headed[way] += 1
            if self._producer is not None and queue.producer is None:
                queue.identify(*self._producer)
        return queue

    def lead(self, queue: PartitionQueue, way: RoutePath, *, leader_epoch: int) -> None:
        """Sets the way to the partition's leader: the queue moves as soon as nothing of it is on the wire.

        What a broker says that lags behind, of an older leader or of none, is not followed. A leader that follows another may
        still be taking over: until it has acknowledged something, its answers are awaited apart from those for what it leads.
        """
        if leader_epoch < queue.leader_epoch or (leader_epoch == queue.leader_epoch and way == queue.next_way):
            return
        if not way.awaits and (queue.next_way.awaits or NO_LEADER_EPOCH < queue.leader_epoch < leader_epoch):
            way = RoutePath(way.address, TAKEOVER)
        queue.leader_epoch = leader_epoch
        self._head(queue, way)
        self._enqueue(queue)

    def topic_recreated(self, queue: PartitionQueue, topic_id: str, now_s: float) -> None:
        """Handles a topic that was deleted and recreated."""
        queue.topic_recreated(topic_id, now_s)
        self._collect((queue,))

    def drop(self, queues: Iterable[PartitionQueue], error: TidelogError) -> None:
        """Fails what is left of queues whose partitions are gone or unused, and forgets the queues."""
        for queue in queues:
            queue.abandon(error)
            self._collect((queue,))
            self._left.add(queue.way)
            self._heads_no_more(queue.next_way)
            del self._queues[queue.topic, queue.partition]
        self._producer = None  # a queue that is made for one of them again must not begin again under the same id

    def _head(self, queue: PartitionQueue, way: RoutePath) -> None:
        """Heads a queue for this way once none of its batches is on the wire."""
        if self._queues.get((queue.topic, queue.partition)) is queue:  # else it was dropped
            self._headed[way] += 1
            self._heads_no_more(queue.next_way)
        queue.next_way = way

    def _heads_no_more(self, way: RoutePath) -> None:
        self._headed[way] -= 1
        if not self._headed[way]:
            del self._headed[way]

    def _enqueue(self, queue: PartitionQueue) -> None:
        """Places a queue in the line of its way; an idle queue is in no line."""
        moves = not queue.on_wire and queue.way != queue.next_way
        if (moves or queue.is_idle) and self._leave_line(queue) and not queue.is_idle:
            self._gained.add(queue.next_way)
        if moves:
            self._left.add(queue.way)
            queue.way = queue.next_way
        if not queue.is_idle:
            self._line(queue.way).push(queue)

    def _line(self, way: RoutePath) -> ReadyQueue:
        if (line := self._lines.get(way)) is None:
            line = self._lines[way] = ReadyQueue(way)
        return line

    def _leave_line(self, queue: PartitionQueue) -> bool:
        """Removes a queue from its leader's line. Returns whether it was there."""
        line = self._lines.get(queue.way)
        if line is None or queue not in line.queues:
            return False
        line.remove(queue)
        if not line.queues:
            del self._lines[queue.way]
        return True

    def take_gained(self) -> set[RoutePath]:
        """Returns the ways that something moved to since this was last asked: a sender has to send there now."""
        gained, self._gained = self._gained, set()
        return gained

    def take_unused(self) -> set[RoutePath]:
        """Returns the ways that queues moved away from since this was last asked, and that no other queue goes or is to go."""
        left, self._left = self._left, set()
        return left - self._lines.keys() - self._headed.keys()

    # ── in ──

    def roll(self, queue: PartitionQueue, now_s: float) -> ProducerBatch:
        """Opens the queue's next batch; the one that was open leaves."""
        batch = queue.roll(now_s)
        self._enqueue(queue)
        return batch

    def closed(self, queue: PartitionQueue) -> None:
        """Places a queue whose open batch was closed: the batch may leave."""
        self._enqueue(queue)

    def close_open_batches(self) -> None:
        """Closes all open batches for a flush: they may leave now."""
        for queue in self._all_busy():
            queue.close()
            self._enqueue(queue)

    # ── out ──

    def take(self, way: RoutePath, now_s: float, *, bytes_max: int) -> list[ProducerBatch]:
        """Takes the batches that leave this way now, at most one of each queue, together up to `bytes_max` or a single one.

        The queues that were served go to the end of the line. Each batch counts as sent.
        """
        if (line := self._lines.get(way)) is None:
            return []
        taken: list[ProducerBatch] = []
        taken_bytes = 0
        for queue in line.in_turn(now_s):
            if taken_bytes >= bytes_max or len(taken) == REQUEST_BATCHES_MAX:
                break
            batch = queue.next_batch(now_s)
            if batch is not None:
                if taken and taken_bytes + batch.request_bytes > bytes_max:
                    break  # it was numbered, and keeps its place: the next request takes it first
                queue.sent(batch)
                taken.append(batch)
                taken_bytes += batch.request_bytes
            line.served(queue)
        return taken

    def wakes_at_s(self, way: RoutePath) -> float | None:
        """Returns when `take` may have a batch without a new record or answer; None for never."""
        line = self._lines.get(way)
        return None if line is None else line.wakes_at_s()

    def unidentified(self, way: RoutePath) -> list[PartitionQueue]:
        """Queues that need a producer id before they can send."""
        line = self._lines.get(way)
        return [] if line is None else list(line.unidentified)

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Gives a fresh producer id to all queues that have none, and to those that are made from now on."""
        for queue in {*self._queues.values(), *self._all_busy()}:
            if queue.producer is None:
                queue.identify(producer_id, producer_epoch)
                self._enqueue(queue)
        self._producer = producer_id, producer_epoch

    def unsettled(self) -> list[ProducerBatch]:
        """Lists every batch without an outcome."""
        return list(_unsettled(self._all_busy()))

    def unacknowledged_records(self, way: RoutePath) -> int:
        """Counts the records on this way without an outcome."""
        return sum(batch.record_count for batch in _unsettled(self._in_line(way)))

    def in_flight(self, way: RoutePath) -> list[str]:
        """Returns the topics with something on the wire."""
        return sorted({queue.topic for queue in self._in_line(way) if queue.on_wire})

    def is_deserted(self, way: RoutePath) -> bool:
        """Returns whether a queue awaits answers from here only in order to move to another broker."""
        return any(queue.on_wire and queue.next_way.address != way.address for queue in self._in_line(way))

    def topics_of(self, way: RoutePath) -> set[str]:
        """Returns the topics with something to send this way."""
        return {queue.topic for queue in self._in_line(way)}

    def busy(self, way: RoutePath) -> list[PartitionQueue]:
        """Queues with something to send this way, or to await."""
        return list(self._in_line(way))

    def _in_line(self, way: RoutePath) -> Iterable[PartitionQueue]:
        line = self._lines.get(way)
        return () if line is None else line.queues

    @property
    def ways(self) -> list[RoutePath]:
        """Returns the ways with batches to send, or answers to await."""
        return list(self._lines)

    # ── what happened ──

    def acknowledged(self, batch: ProducerBatch, base_offset: int, now_s: float) -> None:
        was_settled = batch.settled
        queue = cast(PartitionQueue, batch.queue)
        if batch.on_wire and queue.next_way == queue.way and queue.way.awaits == TAKEOVER:
            self._head(queue, RoutePath(queue.way.address))  # it has taken over
        queue.acknowledged(batch, base_offset, now_s)
        if batch.settled and not was_settled:
            self.outcomes.acknowledged += batch.record_count
        self._collect((queue,))

    def refused(self, batch: ProducerBatch, error: TidelogError, now_s: float) -> None:
        queue = cast(PartitionQueue, batch.queue)
        queue.refused(batch, error, now_s)
        self._collect((queue,))

    def expire(self, way: RoutePath, now_s: float) -> bool:
        """Fails what is past its deadline; answers whether the broker owes an answer that is overdue."""
        queues = list(self._in_line(way))
        for queue in queues:
            queue.expire(now_s)
        self._collect(queues)
        return any(queue.is_overdue(now_s) for queue in queues)

    def unreachable(self, way: RoutePath, error: TidelogError) -> None:
        """Notes a failed connection or a missing answer: nothing went out, and a retry follows."""
        for queue in self._in_line(way):
            queue.last_trouble = error

    def abandon(self, queues: Iterable[PartitionQueue], error: TidelogError) -> None:
        """Fails everything left in these queues after an error that no retry mends."""
        for queue in list(queues):
            queue.abandon(error)
            self._collect((queue,))

    def abandon_all(self, error: TidelogError) -> None:
        """Fails all batches, since the client closes."""
        self.abandon(self._all_busy(), error)

    def take_failures(self) -> list[ProducerBatch]:
        failures, self.failures = self.failures, []
        return failures

    def _collect(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            self.buffered_bytes -= queue.released_bytes
            queue.released_bytes = 0
            if queue.failures:
                for batch in queue.failures:
                    self._count_failure(batch)
                self.failures = (self.failures + queue.failures)[:FAILURES_KEPT_MAX]
                queue.failures = []
            self._enqueue(queue)

    def _count_failure(self, batch: ProducerBatch) -> None:
        if batch.error is not None and batch.error.nothing_was_written:
            self.outcomes.refused += batch.record_count
        else:
            self.outcomes.unknown += batch.record_count

    def _all_busy(self) -> list[PartitionQueue]:
        return [queue for line in self._lines.values() for queue in line.queues]


def _unsettled(queues: Iterable[PartitionQueue]) -> Iterator[ProducerBatch]:
    for queue in queues:
        for batch in (*queue.unanswered, *queue.closed, queue.open):
            if batch is not None and not batch.settled:
                yield batch
