"""Which batches leave, and when: planned without a clock and without a network."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.errors import OutcomeUnknown, Throttled, TooLarge, Unavailable
from segments.records.batch import BATCH_OVERHEAD_BYTES
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.batch import ProducerBatch
from tidelog.producer.outcomes import Outcomes
from tidelog.producer.partition_queue import PartitionQueue
from tidelog.settings import ClientSettings
from tidelog.transport.routes import NEXT_LEADER, TAKEOVER, RoutePath

SETTINGS = ClientSettings(batch_bytes_max=1_000, linger_ms=10, delivery_timeout_ms=10_000)
A, B = RoutePath("a:9090"), RoutePath("b:9090")


def put(accumulator: RecordAccumulator, queue: PartitionQueue, size: int = 100, now_s: float = 0.0) -> ProducerBatch:
    """One record, as the producer puts it."""
    batch = queue.open
    if batch is None or batch.bytes + size > SETTINGS.batch_bytes_max:
        batch = accumulator.roll(queue, now_s)
    batch.records.append((None, bytes(size), (), 0))
    batch.bytes += size
    accumulator.buffered_bytes += size
    return batch


def queues(accumulator: RecordAccumulator, count: int, leader: RoutePath = A) -> list[PartitionQueue]:
    made = [accumulator.queue("orders", partition, way=leader, topic_id="1") for partition in range(count)]
    for queue in made:
        queue.identify(1, 0)
    return made


def test_a_request_takes_one_batch_of_each_partition() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    for queue in queues(accumulator, 3):
        for _ in range(20):
            put(accumulator, queue)
    taken = accumulator.take(A, 0.0, bytes_max=1 << 20)
    assert [batch.queue.partition for batch in taken] == [0, 1, 2]
    assert [len(batch.records) for batch in taken] == [10, 10, 10]


def test_partitions_take_turns_when_a_request_is_too_small_for_all() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    for queue in queues(accumulator, 4):
        for _ in range(40):
            put(accumulator, queue)
    turns = [[batch.queue.partition for batch in accumulator.take(A, 0.0, bytes_max=3_500)] for _ in range(4)]
    assert turns == [[0, 1, 2], [3, 0, 1], [2, 3, 0], [1, 2, 3]]


def test_a_batch_above_the_size_of_a_request_leaves_alone() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    first, second = queues(accumulator, 2)
    put(accumulator, first, 5_000)
    put(accumulator, second)
    assert [batch.bytes for batch in accumulator.take(A, 0.0, bytes_max=3_000)] == [5_000]
    assert [batch.bytes for batch in accumulator.take(A, 0.0, bytes_max=3_000)] == [100]


def test_a_request_holds_no_more_batches_than_a_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.producer.accumulator.REQUEST_BATCHES_MAX", 2)
    accumulator = RecordAccumulator(SETTINGS)
    for queue in queues(accumulator, 3):
        put(accumulator, queue)
    assert [len(accumulator.take(A, 0.0, bytes_max=1 << 20)) for _ in range(3)] == [2, 1, 0]


def test_each_leader_gets_its_own_partitions() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    mine, other = queues(accumulator, 1)[0], accumulator.queue("orders", 9, way=B, topic_id="1")
    other.identify(1, 0)
    put(accumulator, mine)
    put(accumulator, other)
    assert sorted(accumulator.ways) == [A, B]
    assert [batch.queue for batch in accumulator.take(B, 0.0, bytes_max=1 << 20)] == [other]


def test_a_partition_moves_to_its_new_leader_once_nothing_of_it_is_on_the_wire() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    put(accumulator, queue)
    (batch,) = accumulator.take(A, 0.0, bytes_max=1 << 20)
    accumulator.lead(queue, B, leader_epoch=1)
    assert queue.way == A
    accumulator.refused(batch, Throttled("full", retry_after_s=0.5), 0.0)
    assert queue.way == B
    assert accumulator.take(A, 1.0, bytes_max=1 << 20) == []
    assert accumulator.take(B, 1.0, bytes_max=1 << 20) == [batch]


def test_a_leader_that_is_older_than_the_one_that_is_known_is_not_followed() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    accumulator.lead(queue, B, leader_epoch=5)
    accumulator.lead(queue, A, leader_epoch=4)
    accumulator.lead(queue, A, leader_epoch=-1)
    assert queue.way == B
    accumulator.lead(queue, A, leader_epoch=5)
    assert queue.way == A, "the same leader, at another address"


def test_a_partition_that_is_to_move_sends_nothing_more_where_it_was() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    put(accumulator, queue)
    (first,) = accumulator.take(A, 0.0, bytes_max=1 << 20)
    accumulator.lead(queue, B, leader_epoch=1)
    second = put(accumulator, queue)
    assert second is not first
    assert accumulator.take(A, 1.0, bytes_max=1 << 20) == []
    assert accumulator.wakes_at_s(A) is None
    accumulator.acknowledged(first, 0, 1.0)
    assert accumulator.take(B, 1.0, bytes_max=1 << 20) == [second]


def test_a_queue_that_follows_another_leader_is_awaited_apart_until_the_first_acknowledgement() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    accumulator.lead(queue, A, leader_epoch=3)
    assert queue.way == A, "the first one that is known"
    accumulator.lead(queue, B, leader_epoch=4)
    accumulator.lead(queue, B, leader_epoch=4)
    apart = RoutePath(B.address, TAKEOVER)
    assert queue.way == apart, "however often it is repeated"
    first = put(accumulator, queue)
    assert accumulator.take(apart, 0.0, bytes_max=1 << 20) == [first]
    accumulator.refused(first, Unavailable("not yet"), 0.0)
    assert queue.way == apart
    assert accumulator.take(apart, 1.0, bytes_max=1 << 20) == [first]
    accumulator.acknowledged(first, 0, 1.0)
    assert queue.way == B
    assert accumulator.take_unused() == {A, apart}
    accumulator.lead(queue, B, leader_epoch=4)
    assert queue.way == B


@pytest.mark.parametrize("before", [RoutePath(A.address, B.address), RoutePath(A.address, NEXT_LEADER)])
def test_a_queue_that_had_to_wait_for_a_leader_begins_apart_at_the_one_that_it_gets(before: RoutePath) -> None:
    accumulator = RecordAccumulator(SETTINGS)
    queue = accumulator.queue("orders", 0, way=before, topic_id="1")
    accumulator.lead(queue, A, leader_epoch=0)
    assert queue.way == RoutePath(A.address, TAKEOVER)


def test_a_request_counts_whole() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    for queue in queues(accumulator, 8):
        put(accumulator, queue, 100)
    (one,) = accumulator.take(A, 0.0, bytes_max=1)
    assert one.request_bytes >= 100 + BATCH_OVERHEAD_BYTES + len("orders")
    assert len(accumulator.take(A, 0.0, bytes_max=3 * one.request_bytes)) == 3
    assert len(accumulator.take(A, 0.0, bytes_max=4 * one.request_bytes - 1)) == 3


def test_the_accumulator_returns_the_time_of_the_next_check() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    assert accumulator.wakes_at_s(A) is None
    put(accumulator, queue)
    assert accumulator.wakes_at_s(A) == 0.0
    accumulator.take(A, 0.0, bytes_max=1 << 20)
    assert accumulator.wakes_at_s(A) is None
    put(accumulator, queue, now_s=1.0)
    assert accumulator.wakes_at_s(A) == 1.01


def test_queues_that_wait_for_an_answer_are_not_visited_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = RecordAccumulator(SETTINGS)
    *waiting, other = queues(accumulator, 1_001)
    for queue in waiting:
        put(accumulator, queue)
    assert len(accumulator.take(A, 0.0, bytes_max=1 << 20)) == 1_000
    looked_at: list[PartitionQueue] = []
    next_batch = PartitionQueue.next_batch

    def noted(queue: PartitionQueue, now_s: float) -> ProducerBatch | None:
        looked_at.append(queue)
        return next_batch(queue, now_s)

    monkeypatch.setattr(PartitionQueue, "next_batch", noted)
    put(accumulator, other, now_s=1.0)
    assert len(accumulator.take(A, 1.0, bytes_max=1 << 20)) == 1
    assert accumulator.take(A, 1.0, bytes_max=1 << 20) == []
    assert looked_at == [other]


def test_a_batch_that_others_have_closed_leaves_at_once() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    put(accumulator, queue)
    accumulator.take(A, 0.0, bytes_max=1 << 20)
    second = put(accumulator, queue)
    queue.close()
    accumulator.closed(queue)
    assert accumulator.take(A, 0.0, bytes_max=1 << 20) == [second]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 1_500)), max_size=80))
def test_the_accumulator_finds_the_same_batches_as_a_scan_of_all_queues(steps: list[tuple[int, int, int]]) -> None:
    accumulator = RecordAccumulator(SETTINGS)
    made = [accumulator.queue("orders", partition, way=A, topic_id="1") for partition in range(4)]
    wire: list[ProducerBatch] = []
    now_s = 0.0
    for step, partition, size in steps:
        queue = made[partition]
        match step:
            case 0 | 1:
                put(accumulator, queue, size, now_s)
            case 2 | 3:
                for way in (A, B):
                    wire += accumulator.take(way, now_s, bytes_max=2_500)
            case 4:
                now_s += size / 10_000
            case 5 if wire:
                accumulator.acknowledged(wire.pop(0), 0, now_s)
            case 6 if wire:
                accumulator.refused(wire.pop(0), (Throttled("full", retry_after_s=0.01), OutcomeUnknown("lost"))[size % 2], now_s)
            case 7:
                accumulator.lead(queue, (A, B)[size % 2], leader_epoch=queue.leader_epoch + size % 3)
            case 8:
                accumulator.identify(size, 0)
            case 9 if queue.open is not None:
                queue.close()
                accumulator.closed(queue)
        for way in (A, B, RoutePath(A.address, TAKEOVER), RoutePath(B.address, TAKEOVER)):
            here = [queue for queue in made if queue.way == way and not queue.is_idle]
            assert set(accumulator.busy(way)) == set(here)
            assert set(accumulator.unidentified(way)) == {queue for queue in here if queue.producer is None}
            times = [queue.wakes_at_s() for queue in here if queue.next_way == way]
            assert accumulator.wakes_at_s(way) == min((at_s for at_s in times if at_s is not None), default=None)
    unused = accumulator.take_unused()
    assert unused.isdisjoint({way for queue in made for way in (queue.way, queue.next_way)})


def test_a_flush_lets_everything_leave_at_once() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    (queue,) = queues(accumulator, 1)
    put(accumulator, queue)
    accumulator.take(A, 0.0, bytes_max=1 << 20)
    put(accumulator, queue)
    assert accumulator.take(A, 0.0, bytes_max=1 << 20) == []
    accumulator.close_open_batches()
    assert len(accumulator.take(A, 0.0, bytes_max=1 << 20)) == 1
    assert len(accumulator.unsettled()) == 2


def test_partitions_without_a_producer_id_are_named_and_wait() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    queue = accumulator.queue("orders", 0, way=A, topic_id="1")
    put(accumulator, queue)
    assert accumulator.unidentified(A) == [queue]
    assert accumulator.take(A, 0.0, bytes_max=1 << 20) == []
    accumulator.identify(1, 0)
    assert accumulator.unidentified(A) == []
    assert len(accumulator.take(A, 0.0, bytes_max=1 << 20)) == 1
    assert accumulator.queue("orders", 1, way=A, topic_id="1").producer == (1, 0), "one id serves all"


def test_a_queue_that_is_recreated_after_it_was_dropped_gets_another_producer_id() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    first, other = (accumulator.queue("orders", partition, way=A, topic_id="1") for partition in range(2))
    accumulator.identify(1, 0)
    batch = put(accumulator, first)
    accumulator.drop((first,), Unavailable("forgotten"))
    assert isinstance(batch.error, Unavailable)
    again = accumulator.queue("orders", 0, way=A, topic_id="1")
    assert again is not first
    assert accumulator.take(A, 0.0, bytes_max=1 << 20) == []
    put(accumulator, again)
    assert accumulator.unidentified(A) == [again]
    accumulator.identify(2, 0)
    assert (again.producer, other.producer) == ((2, 0), (1, 0))


def test_abandoned_queues_fail_and_the_others_go_on() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    mine, other = queues(accumulator, 2)
    failed, taken = put(accumulator, mine), put(accumulator, other)
    accumulator.abandon((mine,), TooLarge("not there"))
    assert isinstance(failed.error, TooLarge)
    assert accumulator.take(A, 0.0, bytes_max=1 << 20) == [taken]
    assert accumulator.buffered_bytes == 100


def test_a_batch_that_is_left_at_the_close_fails_and_frees_the_buffer() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    batches = [put(accumulator, queue) for queue in queues(accumulator, 3)]
    accumulator.abandon_all(Unavailable("closed"))
    assert all(isinstance(batch.error, Unavailable) for batch in batches)
    assert accumulator.take_failures() == batches
    assert accumulator.take_failures() == []
    assert accumulator.buffered_bytes == 0
    assert accumulator.ways == []


def test_every_record_is_counted_once_by_what_became_of_it() -> None:
    accumulator = RecordAccumulator(SETTINGS)
    made = queues(accumulator, 5)
    written, refused, in_doubt, late, kept = (put(accumulator, queue) for queue in made)
    put(accumulator, made[0])
    accumulator.take(A, 0.0, bytes_max=1 << 20)
    kept = put(accumulator, made[4])
    assert accumulator.unacknowledged_records(A) == 7
    accumulator.acknowledged(written, 0, 0.0)
    accumulator.refused(refused, TooLarge("too large"), 0.0)
    accumulator.refused(in_doubt, OutcomeUnknown("lost"), 0.0)
    assert accumulator.unacknowledged_records(A) == 4
    accumulator.abandon_all(Unavailable("closed"))
    accumulator.acknowledged(late, 0, 0.0)
    assert isinstance(kept.error, Unavailable)
    assert accumulator.outcomes == Outcomes(acknowledged=2, refused=2, unknown=3)
    assert (
        str(accumulator.outcomes)
        == "2 records acknowledged, 2 refused (nothing of them was written), 3 unknown (may be in the log)"
    )
    assert str(Outcomes(1, 1, 0)).startswith("1 record acknowledged, 1 refused (nothing of it was written)")


@pytest.mark.slow
@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "ack", "refuse", "wait"]), st.integers(0, 3), st.integers(1, 1_500)), max_size=80
    )
)
def test_every_record_leaves_once_in_order_and_the_buffer_counts_what_is_held(steps: list[tuple[str, int, int]]) -> None:
    accumulator = RecordAccumulator(SETTINGS)
    all_queues = queues(accumulator, 4)
    wire: list[ProducerBatch] = []
    put_sizes: list[list[int]] = [[], [], [], []]
    acknowledged: list[list[int]] = [[], [], [], []]
    now_s = 0.0

    def acknowledge(batch: ProducerBatch) -> None:
        acknowledged[batch.queue.partition] += [len(record[1] or b"") for record in batch.records]
        accumulator.acknowledged(batch, 0, now_s)

    def take() -> None:
        for batch in accumulator.take(A, now_s, bytes_max=2_500):
            assert batch.bytes <= SETTINGS.batch_bytes_max or len(batch.records) == 1
            wire.append(batch)

    for step, partition, size in steps:
        match step:
            case "put":
                put(accumulator, all_queues[partition], size, now_s)
                put_sizes[partition].append(size)
            case "take":
                take()
            case "wait":
                now_s += 0.01
            case "ack" if wire:
                acknowledge(wire.pop(0))
            case "refuse" if wire:
                queue = wire[0].queue
                for batch in [batch for batch in wire if batch.queue is queue]:  # none of a partition is taken past a gap
                    wire.remove(batch)
                    accumulator.refused(batch, Throttled("full", retry_after_s=0.01), now_s)
        held = sum(batch.bytes for batch in accumulator.unsettled())
        assert accumulator.buffered_bytes == held
    for _ in range(400):
        now_s += 0.02
        take()
        while wire:
            acknowledge(wire.pop(0))
    assert acknowledged == put_sizes
    assert accumulator.buffered_bytes == 0
    assert accumulator.ways == []
