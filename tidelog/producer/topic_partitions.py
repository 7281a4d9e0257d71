"""Holds the producer's queues of one topic, selects the queue of a record, and limits its size. Pure.

    TopicRoute ──take_route──▶ queues by partition, partitioning, limits ◀──queue_for── record

Partitions that were added are used from the next record on: records without a key spread over them, those with a key go where its
hash says among all partitions now. So the records of one key may lie in two partitions, those before the change and those after it;
within each they are in order. What was taken in before goes where it was to go.

Invariant: a record gets a queue only of a partition that its topic had when it was asked about last.

With a key: murmur2 of its bytes, as Kafka's clients have it, so equal keys meet in one partition and keep their order. "salted"
adds 0, 1, 2, … in turn to that, so the records of one hot key spread over `salt_count` partitions, and their order is lost.
Without a key: one partition until its batch leaves, then the next (KIP-480's sticky partitioner, in turn instead of at random).
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.errors import UnknownPartition
from segments.records.batch import BATCH_OVERHEAD_BYTES
from segments.records.partitioner import partition_of
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.settings import ClientSettings
from tidelog.transport.routes import TopicRoute


class TopicPartitions:
    """The queues of one topic."""

    __slots__ = (
        "_accumulator",
        "_closed",
        "_partitioning",
        "_settings",
        "_start",
        "batch_bytes_max",
        "fill_bytes_max",
        "is_gone",
        "keyless_batch",
        "learn_again_s",
        "learnt_s",
        "name",
        "queues",
        "used_s",
    )

    def __init__(
        self,
        name: str,
        accumulator: RecordAccumulator,
        settings: ClientSettings,
        *,
        start: int,
        closed: Callable[[PartitionQueue], None],
    ) -> None:
        """`start`: a random number, where taking turns begins. `closed` is called when a queue has got a batch that may leave."""
        self.name = name
        # By partition.
        self.queues: list[PartitionQueue] = []
        # Where the last record without a key went.
        self.keyless_batch: ProducerBatch | None = None
        # The largest record batch that the topic takes.
        self.batch_bytes_max = 0
        # How far batches are filled, by the sizes of their records (transport/wire_sizes.py).
        self.fill_bytes_max = 0
        # When its route was taken over.
        self.learnt_s = 0.0
        # When it is too old.
        self.learn_again_s = 0.0
        # When a batch was opened for it last.
        self.used_s = 0.0
        # The cluster says that there is no such topic.
        self.is_gone = False
        self._accumulator = accumulator
        self._settings = settings
        self._start = start
        self._closed = closed
        self._partitioning = Partitioner(1, start=0)

    def take_route(self, route: TopicRoute, now_s: float) -> None:
        """Takes over what the cluster says of the topic now.

        A topic never loses partitions while it keeps its id. A route that has fewer comes from a broker that has not heard of those
        that were added: they keep their queues, and what waits there. But if a broker has also refused a batch because there is no
        such partition, the cluster was restored from a copy that has fewer.
        """
        is_same = bool(self.queues) and self.queues[0].topic_id == route.topic_id
        queues = []
        for partition, led in enumerate(route.partitions):
            queue = self._accumulator.queue(self.name, partition, way=led.way, topic_id=route.topic_id)
            if queue.topic_id != route.topic_id:
                self._accumulator.topic_recreated(queue, route.topic_id, now_s)
            self._accumulator.lead(queue, led.way, leader_epoch=led.leader_epoch)
            queues.append(queue)
        surplus = self.queues[len(queues) :]
        if is_same and not any(queue.is_unknown for queue in surplus):
            queues, surplus = queues + surplus, []
        self.queues = queues
        for queue in surplus:
            self._accumulator.drop((queue,), self.unknown_partition(queue.partition))
        if self._partitioning.partition_count != len(queues) or not self.batch_bytes_max:
            salt_count = self._settings.salt_count if self._settings.partitioner == "salted" else 1
            self._partitioning = Partitioner(len(queues), start=self._start, salt_count=salt_count)
        self.batch_bytes_max = route.batch_bytes_max
        if self._settings.compression != "none":
            self.fill_bytes_max = min(self._settings.batch_bytes_max, route.batch_bytes_max, route.decompressed_bytes_max)
        else:
            self.fill_bytes_max = min(self._settings.batch_bytes_max, route.batch_bytes_max)
        self.fill_bytes_max -= BATCH_OVERHEAD_BYTES
        self.learnt_s, self.learn_again_s, self.is_gone = (
            now_s,
            now_s + route.age_s_max(self._settings.topic_age_ms_max / 1000),
            False,
        )

    def queue_for(self, partition: int | None, key: bytes | None, size: int) -> PartitionQueue:
        """Returns the queue of a record: the partition that it names, else by its key, else in turn.

        Raises UnknownPartition.
        """
        if partition is not None:
            if not self.has(partition):
                raise self.unknown_partition(partition)
            return self.queues[partition]
        if key is not None:
            return self.queues[self._partitioning.of_key(key)]
        return self._keyless_queue(size)

    def has(self, partition: object) -> bool:
        return isinstance(partition, int) and not isinstance(partition, bool) and 0 <= partition < len(self.queues)

    def unknown_partition(self, partition: object) -> UnknownPartition:
        return UnknownPartition(
            f"{self.name} has the partitions 0 to {len(self.queues) - 1}; {partition} was asked for",
            topic=self.name,
            partition=partition if isinstance(partition, int) else str(partition),
            partition_count=len(self.queues),
        )

    def is_idle(self) -> bool:
        return all(queue.is_idle for queue in self.queues)

    def _keyless_queue(self, size: int) -> PartitionQueue:
        """Returns the present queue until its batch has left or is full; then the next."""
        queue = self.queues[self._partitioning.keyless_partition]
        if queue.open is self.keyless_batch and (queue.open is None or queue.open.bytes + size <= self.fill_bytes_max):
            return queue
        if queue.open is not None and queue.open is self.keyless_batch:
            queue.close()
            self._closed(queue)
        return self.queues[self._partitioning.next_keyless()]


class Partitioner:
    """Selects partitions of one topic. `start`: the first in turn, which differs per client so that not all begin with 0."""

    def __init__(self, partition_count: int, *, start: int, salt_count: int = 1) -> None:
        self.partition_count = partition_count
        self.keyless_partition = start % partition_count
        self._salt_count = min(salt_count, partition_count)
        self._salt = start % self._salt_count

    def of_key(self, key: bytes) -> int:
        partition = partition_of(key, self.partition_count)
        if self._salt_count == 1:
            return partition
        self._salt = (self._salt + 1) % self._salt_count
        return (partition + self._salt) % self.partition_count

    def next_keyless(self) -> int:
        """Moves on to the next partition, since the batch of the present one has left."""
        self.keyless_partition = (self.keyless_partition + 1) % self.partition_count
        return self.keyless_partition
