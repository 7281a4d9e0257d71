"""Which queue a record gets, before and after the cluster says something else of its topic."""

from __future__ import annotations

import pytest

from metadata.errors import OutcomeUnknown, UnknownPartition
from segments.records.batch import BATCH_OVERHEAD_BYTES
from segments.records.partitioner import partition_of
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.producer.topic_partitions import TopicPartitions
from tidelog.settings import ClientSettings, CompressionName
from tidelog.transport.routes import PartitionRoute, RoutePath, TopicRoute

A, B = "a:9090", "b:9090"


def route(count: int, topic_id: str = "1", leader: str = A, epoch: int = 0, **limits: int) -> TopicRoute:
    found = {"batch_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 26} | limits
    partitions = (PartitionRoute(leader, epoch),) * count
    return TopicRoute("orders", topic_id, partitions, found["batch_bytes_max"], found["decompressed_bytes_max"], learnt_s=0)


class Shelf:
    """A book of 3 partitions, its accumulator, and the queues that it closed."""

    def __init__(self, compression: CompressionName = "none") -> None:
        settings = ClientSettings(batch_bytes_max=1_000, compression=compression, topic_age_ms_max=30_000)
        self.accumulator = RecordAccumulator(settings)
        self.closed: list[PartitionQueue] = []
        self.book = TopicPartitions("orders", self.accumulator, settings, start=0, closed=self.closed.append)
        self.book.take_route(route(3), 0.0)

    def put(self, queue: PartitionQueue, size: int = 100) -> ProducerBatch:
        batch = queue.open or self.accumulator.roll(queue, 0.0)
        batch.records.append((None, bytes(size), (), 0))
        batch.bytes += size
        self.accumulator.buffered_bytes += size
        return batch


def test_a_record_goes_where_it_asks_to_or_by_its_key() -> None:
    book = Shelf().book
    assert book.queue_for(2, b"key", 10).partition == 2
    assert book.queue_for(None, b"key", 10).partition == partition_of(b"key", 3)


@pytest.mark.parametrize("partition", [-1, 3, True, 1.0, "1"])
def test_a_partition_that_is_not_there_is_refused(partition: object) -> None:
    book = Shelf().book
    assert not book.has(partition)
    with pytest.raises(UnknownPartition, match=f"orders has the partitions 0 to 2; {partition} was asked for"):
        book.queue_for(partition, None, 10)  # type: ignore[arg-type]


def test_records_without_a_key_stay_in_a_batch_until_it_is_full_which_may_leave_then() -> None:
    shelf = Shelf()
    book = shelf.book
    queue = book.queue_for(None, None, 400)
    book.keyless_batch = shelf.put(queue, 400)
    assert book.queue_for(None, None, 400) is queue
    shelf.put(queue, 400)
    assert book.queue_for(None, None, 400) is not queue
    assert shelf.closed == [queue]


def test_batches_are_filled_to_the_least_of_all_limits_and_their_header_counts() -> None:
    shelf = Shelf("zstd")
    assert shelf.book.fill_bytes_max == 1_000 - BATCH_OVERHEAD_BYTES
    shelf.book.take_route(route(3, batch_bytes_max=900, decompressed_bytes_max=800), 0.0)
    assert (shelf.book.batch_bytes_max, shelf.book.fill_bytes_max) == (900, 800 - BATCH_OVERHEAD_BYTES)
    uncompressed = Shelf().book
    uncompressed.take_route(route(3, batch_bytes_max=900, decompressed_bytes_max=800), 0.0)
    assert uncompressed.fill_bytes_max == 900 - BATCH_OVERHEAD_BYTES


def test_added_partitions_get_queues_and_the_others_keep_theirs() -> None:
    book = Shelf().book
    before = list(book.queues)
    book.take_route(route(5), 1.0)
    assert book.queues[:3] == before
    assert {book.queue_for(None, b"%d" % n, 10).partition for n in range(100)} == set(range(5))
    assert (book.learnt_s, book.learn_again_s) == (1.0, 31.0)


def test_queues_follow_a_newer_leader_and_not_an_older_one() -> None:
    book = Shelf().book
    book.take_route(route(3, leader=B, epoch=4), 0.0)
    assert {queue.next_way.address for queue in book.queues} == {B}
    for stale in (route(3, leader=A, epoch=3), route(3, leader=A, epoch=-1)):
        book.take_route(stale, 0.0)
        assert {queue.next_way.address for queue in book.queues} == {B}
    book.take_route(route(3, "2", leader=A, epoch=0), 0.0)
    assert {queue.next_way.address for queue in book.queues} == {A}, "another topic counts its epochs from the beginning"


def test_surplus_partitions_of_a_topic_recreated_with_fewer_fail() -> None:
    shelf = Shelf()
    shelf.accumulator.identify(7, 0)
    waiting, on_wire = shelf.put(shelf.book.queues[1]), shelf.put(shelf.book.queues[2])
    assert shelf.accumulator.take(RoutePath(A), 0.0, bytes_max=1) == [waiting]
    shelf.accumulator.acknowledged(waiting, 0, 0.0)
    assert shelf.accumulator.take(RoutePath(A), 0.0, bytes_max=1) == [on_wire]
    later = shelf.put(shelf.book.queues[2])
    shelf.book.take_route(route(1, "2"), 0.0)
    assert isinstance(on_wire.error, OutcomeUnknown)
    assert isinstance(later.error, UnknownPartition)
    assert shelf.accumulator.buffered_bytes == 0
    assert shelf.accumulator.ways == []
    assert [queue.producer for queue in shelf.book.queues] == [None], "the producer is new there"


def test_a_route_of_a_broker_that_has_not_heard_of_new_partitions_drops_none_of_their_records() -> None:
    shelf = Shelf()
    waiting = shelf.put(shelf.book.queues[2])
    shelf.book.take_route(route(1, leader=B, epoch=1), 0.0)
    assert waiting.error is None
    assert len(shelf.book.queues) == 3
    assert shelf.book.has(2)
    assert [queue.next_way.address for queue in shelf.book.queues] == [B, A, A]
    key = next(b"%d" % number for number in range(100) if partition_of(b"%d" % number, 3) == 2)
    assert shelf.book.queue_for(None, key, 10).partition == 2


def test_partitions_that_a_restore_has_taken_from_a_topic_get_no_more_records_once_a_broker_has_refused_one() -> None:
    shelf = Shelf()
    shelf.accumulator.identify(7, 0)
    refused, waiting = shelf.put(shelf.book.queues[1]), shelf.put(shelf.book.queues[2])
    assert shelf.accumulator.take(RoutePath(A), 0.0, bytes_max=1) == [refused]
    shelf.accumulator.refused(refused, UnknownPartition("there is no such partition"), 0.0)
    assert isinstance(refused.error, UnknownPartition)
    shelf.book.take_route(route(3), 0.0)
    assert not waiting.settled, "by the route it is there"
    shelf.book.take_route(route(1), 0.0)
    assert isinstance(waiting.error, UnknownPartition)
    assert {shelf.book.queue_for(None, b"%d" % n, 10).partition for n in range(100)} == {0}
    assert not shelf.book.has(1)
    shelf.book.take_route(route(2), 0.0)
    assert [queue.is_unknown for queue in shelf.book.queues] == [False, False], "it was added again"


def test_a_partition_that_comes_back_does_not_begin_again_under_a_producer_id_that_it_had() -> None:
    shelf = Shelf()
    shelf.accumulator.identify(7, 0)
    shelf.book.take_route(route(1, "2"), 0.0)
    shelf.book.take_route(route(3, "3"), 0.0)
    assert [queue.producer for queue in shelf.book.queues] == [None, None, None]
    shelf.accumulator.identify(8, 0)
    assert [queue.producer for queue in shelf.book.queues] == [(8, 0)] * 3
