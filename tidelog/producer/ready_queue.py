"""Keeps the queues that go one way to their leader, apart by what they wait for. Pure: the caller brings the time.

    place(queue) ─▶ it waits for a time ──in that time──▶ ready, in the order of turns ──served──▶ behind all others
                └▶ it waits for an answer, or for a producer id: not looked at until it is placed again

So what a request costs goes by what it takes along, and not by how many partitions wait for an answer. Invariant: a queue is placed
after whatever may have changed it; one that is in no queue has nothing to send, whatever the time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from tidelog.producer.partition_queue import PartitionQueue
from tidelog.transport.routes import RoutePath


class ReadyQueue:
    """The queues that go to one broker, in the order of their turns."""

    def __init__(self, way: RoutePath) -> None:
        # Queues that are not idle, the oldest first.
        self.queues: dict[PartitionQueue, None] = {}
        # Queues that need a producer id before they can send.
        self.unidentified: dict[PartitionQueue, None] = {}
        self._way = way
        self._ready: dict[PartitionQueue, None] = {}
        # Wake-up times of waiting queues. Heap entries of other queues or times are stale.
        self._wakes_at_s: dict[PartitionQueue, float] = {}
        self._times: list[tuple[float, int, PartitionQueue]] = []
        self._pushed = itertools.count()

    def push(self, queue: PartitionQueue) -> None:
        """Places a queue after a change of what it can send. A ready queue keeps its turn."""
        self.queues.setdefault(queue)
        if queue.producer is None:
            self.unidentified.setdefault(queue)
        else:
            self.unidentified.pop(queue, None)
        at_s = queue.wakes_at_s() if queue.next_way == self._way else None
        if at_s is None:
            self._ready.pop(queue, None)
            self._wakes_at_s.pop(queue, None)
        elif queue not in self._ready and self._wakes_at_s.get(queue) != at_s:
            self._wakes_at_s[queue] = at_s
            heapq.heappush(self._times, (at_s, next(self._pushed), queue))

    def remove(self, queue: PartitionQueue) -> None:
        del self.queues[queue]
        for waiting in (self.unidentified, self._ready, self._wakes_at_s):
            waiting.pop(queue, None)

    def in_turn(self, now_s: float) -> Iterator[PartitionQueue]:
        """Yields the queues that may have a batch now. The caller calls `served` for each that it has tried."""
        while self._times and self._times[0][0] <= now_s:
            at_s, _, queue = heapq.heappop(self._times)
            if self._wakes_at_s.get(queue) == at_s:
                del self._wakes_at_s[queue]
                self._ready[queue] = None
        return iter(list(self._ready))

    def served(self, queue: PartitionQueue) -> None:
        """Ends the turn of a queue."""
        del self._ready[queue]
        self.push(queue)

    def wakes_at_s(self) -> float | None:
        """Returns when a queue may have a batch without a new record or answer; None for never."""
        while self._times and self._wakes_at_s.get(self._times[0][2]) != self._times[0][0]:
            heapq.heappop(self._times)
        times = [at_s for queue in self._ready if (at_s := queue.wakes_at_s()) is not None]
        return min([*times, self._times[0][0]] if self._times else times, default=None)
