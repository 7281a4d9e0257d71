"""The newest committed batches: served as runs without a gap, bounded in bytes, the oldest commit out first."""

from __future__ import annotations

import gc
import weakref

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metadata.model import TopicPartition
from segments.read.tail_cache import BATCH_MEMORY_BYTES, TailCache
from segments.records.batch import parse_header, split_batches
from segments.wal.segment_file import StampedBatch
from tests.kit.segments.batches import ORDERS, PAYMENTS, batch_of, partition_of, stamped, stamped_run

BATCH = batch_of(b"x" * 100)
COST = len(BATCH) + BATCH_MEMORY_BYTES


def pool_for(batch_count: int) -> TailCache:
    return TailCache(batch_count * COST)


def base_offsets(pool: TailCache, partition: TopicPartition, offset: int, *, bytes_max: int = 1 << 30) -> list[int] | None:
    read = pool.read(partition, offset, bytes_max=bytes_max)
    if read is None:
        return None
    headers = [parse_header(batch) for batch in split_batches(b"".join(read.buffers))]
    assert (read.base_offset, read.next_offset) == (headers[0].base_offset, headers[-1].last_offset + 1)
    assert read.size_bytes == sum(map(len, read.buffers))
    return [header.base_offset for header in headers]


def test_committed_records_are_read_from_the_batch_that_holds_the_offset_on() -> None:
    pool = pool_for(10)
    pool.add(ORDERS, stamped_run(50, batch_of(b"a", b"b"), batch_of(b"c"), batch_of(b"d", b"e", b"f")))
    assert pool.start_offset(ORDERS) == 50
    assert base_offsets(pool, ORDERS, 50) == base_offsets(pool, ORDERS, 51) == [50, 52, 53]
    assert base_offsets(pool, ORDERS, 52) == [52, 53]
    assert base_offsets(pool, ORDERS, 55) == [53]


def test_offsets_that_are_not_held_are_not_answered() -> None:
    pool = pool_for(10)
    pool.add(ORDERS, stamped_run(50, BATCH))
    assert base_offsets(pool, ORDERS, 49) is None
    assert base_offsets(pool, ORDERS, 51) is None
    assert base_offsets(pool, PAYMENTS, 50) is None
    assert pool.start_offset(PAYMENTS) is None


def test_a_read_is_bounded_in_bytes_but_gives_at_least_one_batch() -> None:
    pool = pool_for(10)
    pool.add(ORDERS, stamped_run(0, BATCH, BATCH, BATCH))
    assert base_offsets(pool, ORDERS, 0, bytes_max=0) == [0]
    assert base_offsets(pool, ORDERS, 0, bytes_max=2 * len(BATCH) - 1) == [0]
    assert base_offsets(pool, ORDERS, 0, bytes_max=2 * len(BATCH)) == [0, 1]


def test_the_oldest_commit_makes_room_wherever_it_belongs() -> None:
    pool = pool_for(3)
    pool.add(ORDERS, stamped_run(0, BATCH))
    pool.add(PAYMENTS, stamped_run(7, BATCH, BATCH))
    pool.add(ORDERS, stamped_run(1, BATCH))
    assert (base_offsets(pool, ORDERS, 0), base_offsets(pool, ORDERS, 1)) == (None, [1])
    pool.add(ORDERS, stamped_run(2, BATCH, BATCH))
    assert (pool.start_offset(PAYMENTS), pool.start_offset(ORDERS)) == (None, 1)


def test_a_batch_larger_than_the_pool_leaves_at_once() -> None:
    pool = TailCache(COST - 1)
    pool.add(ORDERS, stamped_run(0, BATCH))
    assert (pool.start_offset(ORDERS), pool.bytes_used) == (None, 0)


def test_a_read_ends_before_a_batch_that_does_not_fit_though_a_later_one_would() -> None:
    large, small = batch_of(b"x" * 500), batch_of(b"x")
    pool = TailCache(1 << 20)
    pool.add(ORDERS, stamped_run(0, small, large, small, small))
    assert base_offsets(pool, ORDERS, 0, bytes_max=3 * len(small)) == [0]
    assert base_offsets(pool, ORDERS, 2, bytes_max=3 * len(small)) == [2, 3]


def test_a_batch_that_does_not_fit_takes_all_before_it_along_and_leaves_no_gap() -> None:
    large, small = batch_of(b"x" * 500), batch_of(b"x")
    pool = TailCache(len(large) + len(small) + 2 * BATCH_MEMORY_BYTES)
    pool.add(ORDERS, stamped_run(0, small, small))
    pool.add(ORDERS, stamped_run(2, small, large, small))
    assert pool.start_offset(ORDERS) == 3
    assert [base_offsets(pool, ORDERS, offset) for offset in range(5)] == [None, None, None, [3, 4], [4]]


def test_a_batch_larger_than_the_pool_is_never_passed_over_for_those_round_it() -> None:
    larger, small = batch_of(b"x" * 2000), batch_of(b"x")
    pool = TailCache(3 * (len(small) + BATCH_MEMORY_BYTES))
    assert len(larger) > pool.bytes_max
    pool.add(ORDERS, stamped_run(0, small, larger, small))
    assert (pool.start_offset(ORDERS), base_offsets(pool, ORDERS, 0), base_offsets(pool, ORDERS, 2)) == (2, None, [2])
    pool.add(ORDERS, stamped_run(3, larger))
    assert (pool.start_offset(ORDERS), pool.bytes_used) == (None, 0)


def test_a_dropped_partition_is_forgotten_and_may_come_back_elsewhere() -> None:
    pool = pool_for(3)
    pool.add(ORDERS, stamped_run(0, BATCH, BATCH))
    pool.drop(ORDERS)
    pool.drop(ORDERS)
    assert (pool.start_offset(ORDERS), pool.bytes_used) == (None, 0)
    pool.add(ORDERS, stamped_run(90, BATCH, BATCH))
    pool.add(ORDERS, stamped_run(92, BATCH))
    assert base_offsets(pool, ORDERS, 90) == [90, 91, 92]


def test_a_dropped_partition_leaves_nothing_in_memory() -> None:
    """Though the pool never fills up: topics may come and go without end."""
    pool = pool_for(100)
    held = []
    for topic in range(50):
        partition = partition_of(0, topic=topic)
        batch = batch_of(b"x" * 100)
        run = stamped_run(0, batch)
        held.append(weakref.ref(run[0].rest))
        pool.add(partition, run)
        del run
        pool.drop(partition)
    gc.collect()
    assert [view for view in held if view() is not None] == []
    assert len(pool._order) == 0


@settings(stateful_step_count=40)
class PoolAgainstModel(RuleBasedStateMachine):
    """The model: every committed batch in order, of which the newest that fit are held."""

    PARTITIONS = (ORDERS, PAYMENTS)

    def __init__(self) -> None:
        super().__init__()
        self.pool = TailCache(8 * COST)
        self.commits: list[tuple[TopicPartition, StampedBatch]] = []
        self.ends = dict.fromkeys(self.PARTITIONS, 0)

    def held(self, partition: TopicPartition) -> list[StampedBatch]:
        return [batch for owner, batch in self.commits if owner == partition]

    @rule(
        partition=st.sampled_from(PARTITIONS),
        sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1500)), min_size=1, max_size=4),
    )
    def commit(self, partition: TopicPartition, sizes: list[tuple[int, int]]) -> None:
        run = stamped_run(self.ends[partition], *[batch_of(*[b"v" * size] * records) for records, size in sizes])
        self.ends[partition] = run[-1].last_offset + 1
        self.pool.add(partition, run)
        self.commits += [(partition, batch) for batch in run]
        while sum(batch.size_bytes + BATCH_MEMORY_BYTES for _, batch in self.commits) > self.pool.bytes_max:
            self.commits.pop(0)

    @rule(partition=st.sampled_from(PARTITIONS))
    def drop(self, partition: TopicPartition) -> None:
        self.pool.drop(partition)
        self.commits = [(owner, batch) for owner, batch in self.commits if owner != partition]

    @precondition(lambda self: any(self.ends.values()))
    @rule(partition=st.sampled_from(PARTITIONS), back=st.integers(-2, 30), bytes_max=st.integers(0, 5000))
    def read(self, partition: TopicPartition, back: int, bytes_max: int) -> None:
        offset = self.ends[partition] - back
        following = [batch for batch in self.held(partition) if batch.last_offset >= offset]
        read = self.pool.read(partition, offset, bytes_max=bytes_max)
        if not following or following[0].base_offset > offset:
            assert read is None
            return
        assert read is not None
        count = len(read.buffers) // 2
        assert read.buffers == [buffer for batch in following[:count] for buffer in (batch.stamp, batch.rest)]
        size_bytes = sum(batch.size_bytes for batch in following[:count])
        assert read.size_bytes == size_bytes
        assert (read.base_offset, read.next_offset) == (following[0].base_offset, following[count - 1].last_offset + 1)
        assert count == 1 or size_bytes <= bytes_max
        if count < len(following):
            assert size_bytes + following[count].size_bytes > bytes_max

    @invariant()
    def accounts_for_every_byte(self) -> None:
        assert (
            self.pool.bytes_used == sum(batch.size_bytes + BATCH_MEMORY_BYTES for _, batch in self.commits) <= self.pool.bytes_max
        )
        for partition in self.PARTITIONS:
            held = self.held(partition)
            assert self.pool.start_offset(partition) == (held[0].base_offset if held else None)


TestPoolAgainstModel = PoolAgainstModel.TestCase


def test_a_window_that_moves_on_for_long_reads_the_same() -> None:
    pool = pool_for(5)
    for offset in range(1000):
        pool.add(ORDERS, [stamped(BATCH, offset)])
        assert base_offsets(pool, ORDERS, max(0, offset - 4)) == list(range(max(0, offset - 4), offset + 1))
