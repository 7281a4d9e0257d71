"""Fetching from the log: long polls, several partitions at once, what left memory, what is damaged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.errors import Corrupt, NoLeader, OutOfRange, TidelogError, Unavailable
from metadata.model import TopicPartition
from segments.deadline import Deadline
from segments.log.session_log import FetchTarget, SessionLog
from segments.read.log_reader import FetchResult
from segments.read.tail_cache import BATCH_MEMORY_BYTES
from segments.recovery.recovered_partition import empty_partition
from tests.kit.segments.batches import EPOCH, ORDERS, PAYMENTS, batch_of, key_of, partition_of, records_in
from tests.kit.segments.scripted_store import SILENCE, fails, slow
from tests.kit.segments.serving import EVERYTHING, SETTINGS, append, bucket, fetch, now_s, produce, refusal_of, values, with_log

# One each 0.1 s, and what it waits for: a history is read a run of 3 s at a time, beside others in their turns.
FETCHES_MAX = 500


async def fetched_at(log: SessionLog, offset: int, **how: Any) -> tuple[float, list[bytes | None]]:
    fetched = await fetch(log, offset, **how)
    return now_s(), [value for _, value in records_in(fetched.batches, from_offset=offset)]


def test_a_long_poll_is_answered_when_the_record_is_committed() -> None:
    async def work(log: SessionLog) -> None:
        polling = asyncio.create_task(fetched_at(log, 0, wait_ms_max=60_000))
        await asyncio.sleep(3)
        await produce(log, batch_of(b"late"))
        assert await polling == (3.5, [b"late"])

    with_log(bucket(put_s=0.5), work)


def test_a_long_poll_ends_empty_at_its_time() -> None:
    async def work(log: SessionLog) -> None:
        assert await fetched_at(log, 0, wait_ms_max=2500) == (2.5, [])

    with_log(bucket(), work)


def test_a_long_poll_waits_for_bytes_min_but_not_beyond_its_time() -> None:
    async def work(log: SessionLog) -> None:
        size = len(batch_of(b"v"))
        enough = asyncio.create_task(fetched_at(log, 0, bytes_min=3 * size, wait_ms_max=60_000))
        too_many = asyncio.create_task(fetched_at(log, 0, bytes_min=99 * size, wait_ms_max=10_000))
        for _ in range(4):
            await asyncio.sleep(1)
            await produce(log)
        assert await enough == (3, [b"v"] * 3)
        assert await too_many == (10, [b"v"] * 4)

    with_log(bucket(), work)


def test_more_records_than_the_answer_may_hold_are_not_waited_with() -> None:
    """The reader asked for more than it allows: with what it allows it is answered at once."""

    async def work(log: SessionLog) -> None:
        for _ in range(3):
            await produce(log)
        size = len(batch_of(b"v"))
        began_s = now_s()
        assert await fetched_at(log, 0, bytes_max=2 * size, bytes_min=99 * size, wait_ms_max=60_000) == (began_s, [b"v", b"v"])

    with_log(bucket(), work)


def test_a_poll_over_several_partitions_is_woken_by_any_of_them_and_shares_its_bytes() -> None:
    async def work(log: SessionLog) -> None:
        targets = [FetchTarget(ORDERS, 0, EVERYTHING), FetchTarget(PAYMENTS, 0, EVERYTHING)]
        polling = asyncio.create_task(log.reads.fetch(targets, bytes_max=EVERYTHING, wait_ms_max=60_000))
        await asyncio.sleep(1)
        await produce(log, batch_of(b"p"), partition=PAYMENTS)
        orders, payments = await polling
        assert isinstance(orders, FetchResult)
        assert isinstance(payments, FetchResult)
        assert (orders.batches, records_in(payments.batches)) == ([], [(0, b"p")])
        await produce(log, batch_of(b"o"))
        orders, payments = await log.reads.fetch(targets, bytes_max=1)
        assert isinstance(orders, FetchResult)
        assert isinstance(payments, FetchResult)
        assert (records_in(orders.batches), payments.batches, payments.more) == ([(0, b"o")], [], True)

    with_log(bucket(), work)


def test_the_error_of_one_partition_is_answered_at_its_index_without_waiting() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log)
        targets = [FetchTarget(partition_of(9), 0, 100), FetchTarget(ORDERS, 0, 100), FetchTarget(PAYMENTS, 7, 100)]
        answers = await log.reads.fetch(targets, bytes_max=1 << 20, bytes_min=1 << 20, wait_ms_max=60_000)
        assert [type(answer) for answer in answers] == [NoLeader, FetchResult, OutOfRange]
        assert now_s() == 0

    with_log(bucket(), work)


def test_a_reader_that_hangs_up_leaves_nothing_behind() -> None:
    async def work(log: SessionLog) -> None:
        polling = asyncio.create_task(fetch(log, 0, wait_ms_max=60_000))
        await asyncio.sleep(1)
        assert log.reads.readers_waiting == 1
        polling.cancel()
        await asyncio.wait((polling,))
        assert log.reads.readers_waiting == 0

    with_log(bucket(), work)


def test_records_that_left_the_tail_cache_are_read_from_the_bucket() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        for number in range(10):
            await produce(log, batch_of(b"%d" % number))
        assert await values(log) == [b"%d" % number for number in range(10)]
        assert store.count("get") == 8
        assert (await log.reads.explain(ORDERS, 3)).in_tail_cache is False
        assert (await log.reads.explain(ORDERS, 9)).in_tail_cache is True
        assert await log.reads.offset_for_timestamp(ORDERS, 0) is not None

    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=2 * (len(batch_of(b"0")) + BATCH_MEMORY_BYTES)))


def test_a_damaged_batch_is_corrupt_by_itself_and_names_where_to_read_on() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        for number in range(3):
            appends = [await append(log, batch_of(b"%d%d" % (number, at))) for at in range(3)]
            await appends[-1].committed(Deadline.after(10))
            await produce(log, batch_of(b"%d" % number), partition=PAYMENTS)
        damaged = await log.reads.explain(ORDERS, 4)
        body = bytearray(store.content(damaged.object_key))
        body[damaged.range_end - 1] ^= 1
        store.plant(damaged.object_key, bytes(body))
        log.reads._read_cache._held.clear()
        assert await values(log, 0) == [b"00", b"01", b"02", b"10"]
        for _ in range(2):
            error = await refusal_of(fetch(log, 4))
            assert isinstance(error, Corrupt)
            location = {"key": damaged.object_key, "start": damaged.range_start, "end": damaged.range_end}
            assert error.details == location | {"next_offset": 5}
        assert await values(log, 5) == [b"12", b"20", b"21", b"22"]
        assert await values(log, 0, partition=PAYMENTS) == [b"0", b"1", b"2"]

    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=1))


# ── what is in memory first ─────────────────────────────────────────────────────────────────────────────────────────────

# Room for the newest batch: what was produced before it is history.
ONE_BATCH = replace(SETTINGS, tail_cache_bytes_max=len(batch_of(b"o0")) + BATCH_MEMORY_BYTES)


class Consumer:
    """Reads several partitions by one fetch after the other, as a client does: who brought records goes last the next time."""

    def __init__(self, log: SessionLog, offsets: dict[TopicPartition, int]) -> None:
        self._log = log
        self._next = offsets
        self.read: dict[TopicPartition, list[bytes | None]] = {partition: [] for partition in offsets}
        self.errors: list[TidelogError] = []

    async def fetch(self, *, bytes_max: int = EVERYTHING, bytes_min: int = 1, wait_ms_max: float = 0) -> dict[TopicPartition, int]:
        """How many records came of each partition that brought some, or an error (-1)."""
        targets = [FetchTarget(partition, offset, bytes_max) for partition, offset in self._next.items()]
        answers = await self._log.reads.fetch(targets, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        came: dict[TopicPartition, int] = {}
        for target, answer in zip(targets, answers, strict=True):
            if isinstance(answer, TidelogError):
                self.errors.append(answer)
                came[target.partition] = -1
            elif answer.size_bytes:
                records = records_in(answer.batches, from_offset=target.offset)
                self.read[target.partition] += [value for _, value in records]
                del self._next[target.partition]
                self._next[target.partition] = answer.next_offset
                came[target.partition] = len(records)
        return came


async def history_and_tail(log: SessionLog, records: int = 1) -> None:
    """Segments 0, 1, … hold the history of ORDERS; the newest batch, the only hot one, is of PAYMENTS."""
    for number in range(records):
        await produce(log, batch_of(b"o%d" % number))
    await produce(log, batch_of(b"p0"), partition=PAYMENTS)


def test_a_slow_read_of_history_does_not_hold_up_the_tail_of_others() -> None:
    store = bucket()
    store.script("get", key_of(0), slow(3))

    async def work(log: SessionLog) -> None:
        await history_and_tail(log)
        began_s = now_s()
        consumer = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await consumer.fetch() == {PAYMENTS: 1}
        assert now_s() == began_s
        polling = asyncio.create_task(consumer.fetch(wait_ms_max=60_000))
        await asyncio.sleep(1)
        await produce(log, batch_of(b"p1"), partition=PAYMENTS)
        assert await polling == {PAYMENTS: 1}
        assert now_s() == began_s + 1
        assert await consumer.fetch(wait_ms_max=60_000) == {ORDERS: 1}
        assert now_s() == began_s + 3
        assert consumer.read == {ORDERS: [b"o0"], PAYMENTS: [b"p0", b"p1"]}

    with_log(store, work, ONE_BATCH)
    assert store.count("get", key_of(0)) == 1


@pytest.mark.parametrize("read_cache_bytes_max", [1 << 20, 1])
def test_a_run_that_was_left_out_comes_with_the_first_fetch_after_its_read_even_without_room_in_the_cache(
    read_cache_bytes_max: int,
) -> None:
    """However fast the tail goes on: it satisfies every fetch at once, and so would always leave the history out."""
    store = bucket()
    for seq in range(3):
        store.script("get", key_of(seq), slow(0.5), slow(0.5))

    async def work(log: SessionLog) -> None:
        await history_and_tail(log, records=3)
        consumer = Consumer(log, {PAYMENTS: 0, ORDERS: 0})
        for number in range(1, 20):
            came = await consumer.fetch(wait_ms_max=60_000)
            assert PAYMENTS in came
            if ORDERS in came:
                break
            await asyncio.sleep(0.2)
            await produce(log, batch_of(b"p%d" % number), partition=PAYMENTS)
        assert consumer.read[ORDERS] == [b"o0", b"o1", b"o2"]
        assert number == 4
        assert consumer.read[PAYMENTS] == [b"p%d" % number for number in range(number)]

    with_log(store, work, replace(ONE_BATCH, read_cache_bytes_max=read_cache_bytes_max))


def test_the_error_of_a_read_that_was_left_out_comes_with_the_next_fetch() -> None:
    store = bucket()
    store.script("get", key_of(0), fails(Unavailable("500 InternalError"), after_s=1))

    async def work(log: SessionLog) -> None:
        await history_and_tail(log)
        consumer = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await consumer.fetch() == {PAYMENTS: 1}
        await asyncio.sleep(2)
        assert await consumer.fetch(wait_ms_max=60_000) == {ORDERS: -1}
        assert [error.message for error in consumer.errors] == ["500 InternalError"]
        assert await consumer.fetch(wait_ms_max=60_000) == {ORDERS: 1}

    with_log(store, work, ONE_BATCH)


def test_a_bucket_that_hangs_holds_up_the_tail_at_no_fetch() -> None:
    """Not when the reads are given up either: their outcome is known then."""
    store = bucket()
    store.script("get", key_of(0), *[SILENCE] * 10)

    async def work(log: SessionLog) -> None:
        await history_and_tail(log)
        consumer = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await consumer.fetch() == {PAYMENTS: 1}
        for _ in range(100):
            await asyncio.sleep(1)
            await produce(log, batch_of(b"p1"), partition=PAYMENTS)
            began_s = now_s()
            came = await consumer.fetch(wait_ms_max=60_000)
            assert now_s() == began_s
            assert PAYMENTS in came
        assert {str(error) for error in consumer.errors} == {f"{key_of(0)} could not be read within 30 s"}
        assert len(consumer.errors) == 3

    with_log(store, work, ONE_BATCH)


def test_history_is_waited_for_where_there_is_nothing_else_to_answer_with() -> None:
    """Whatever the time that the reader gives: that is for new records, and these are there already."""
    store = bucket()
    store.script("get", key_of(0), slow(3))
    store.script("get", key_of(1), slow(5))

    async def work(log: SessionLog) -> None:
        await produce(log, batch_of(b"o0"))
        await produce(log, batch_of(b"q0"), partition=PAYMENTS)
        await produce(log, batch_of(b"o1"))
        began_s = now_s()
        consumer = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await consumer.fetch(bytes_min=0) == {ORDERS: 2}
        assert now_s() == began_s + 3
        assert await consumer.fetch() == {PAYMENTS: 1}
        assert now_s() == began_s + 5

    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=1))


def test_history_is_waited_for_until_there_are_the_bytes_that_the_reader_asks_for_but_not_beyond_its_time() -> None:
    store = bucket()
    store.script("get", key_of(0), slow(3))

    async def work(log: SessionLog) -> None:
        await history_and_tail(log)
        size, began_s = len(batch_of(b"p0")), now_s()
        in_time = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await in_time.fetch(bytes_min=2 * size, wait_ms_max=1000) == {PAYMENTS: 1}
        assert now_s() == began_s + 1
        patient = Consumer(log, {ORDERS: 0, PAYMENTS: 0})
        assert await patient.fetch(bytes_min=2 * size, wait_ms_max=60_000) == {ORDERS: 1, PAYMENTS: 1}
        assert now_s() == began_s + 3

    with_log(store, work, ONE_BATCH)


def test_a_reader_of_one_partition_gets_its_history_as_a_whole() -> None:
    """Not the first record alone, because its object was the first to arrive."""
    store = bucket()
    for seq in range(10):
        store.script("get", key_of(seq), slow(seq / 10))

    async def work(log: SessionLog) -> None:
        for number in range(10):
            await produce(log, batch_of(b"%d" % number))
        assert await values(log) == [b"%d" % number for number in range(10)]

    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=1))


def test_of_many_partitions_with_a_history_each_is_read_in_its_turn() -> None:
    """One fetch reads about as much as it may answer with; the next ones read the others."""
    store = bucket()
    partitions = [partition_of(number, topic=3) for number in range(8)]

    async def work(log: SessionLog) -> None:
        for partition in partitions:
            log.lead(empty_partition(partition, SETTINGS), EPOCH)
        for number in range(4):
            for partition in partitions:
                await produce(log, batch_of(b"%d" % number * 100), partition=partition)
        consumer = Consumer(log, dict.fromkeys(partitions, 0))
        for _ in range(8 * 4):
            assert await consumer.fetch(bytes_max=1)
        assert consumer.read == {partition: [b"%d" % number * 100 for number in range(4)] for partition in partitions}

    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=1, read_cache_bytes_max=1))
    assert all(store.count("get", key_of(seq)) == 1 for seq in range(8 * 4))


@pytest.mark.slow
@settings(max_examples=40)
@given(
    histories=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    read_s=st.lists(st.sampled_from((0, 0, 0.1, 0.7, 3)), min_size=1, max_size=7),
    failures=st.sets(st.integers(0, 30), max_size=5),
    read_cache_bytes_max=st.sampled_from((1, 300, 1 << 20)),
    bytes_max=st.sampled_from((1, 200, EVERYTHING)),
)
def test_whatever_the_bucket_does_the_tail_is_never_held_up_and_every_history_is_read_to_its_end(
    histories: list[int], read_s: list[float], failures: set[int], read_cache_bytes_max: int, bytes_max: int
) -> None:
    store = bucket()
    segments = sum(histories)
    for seq in range(segments):
        acts = [slow(read_s[(seq + again) % len(read_s)]) for again in range(20)]
        store.script("get", key_of(seq), *([fails(Unavailable("500"), after_s=0.5)] if seq in failures else []), *acts)
    partitions = [partition_of(number, topic=3) for number in range(len(histories))]
    one_is_hot = replace(SETTINGS, tail_cache_bytes_max=len(batch_of(b"tail")) + BATCH_MEMORY_BYTES)

    async def work(log: SessionLog) -> None:
        for partition, records in zip(partitions, histories, strict=True):
            log.lead(empty_partition(partition, SETTINGS), EPOCH)
            for number in range(records):
                await produce(log, batch_of(b"%d" % number), partition=partition)
        consumer = Consumer(log, {**dict.fromkeys(partitions, 0), PAYMENTS: 0})
        unread = dict(zip(partitions, histories, strict=True))
        for _ in range(FETCHES_MAX):
            await produce(log, batch_of(b"tail"), partition=PAYMENTS)
            began_s = now_s()
            await consumer.fetch(bytes_max=bytes_max, wait_ms_max=60_000)
            assert now_s() - began_s <= 2 * max(0.5, *read_s) + 1e-6, "one read that was owed, and the wait for its turn"
            unread = {partition: records for partition, records in unread.items() if len(consumer.read[partition]) < records}
            if not unread:
                break
            await asyncio.sleep(0.1)
        assert unread == {}
        for partition, records in zip(partitions, histories, strict=True):
            assert consumer.read[partition] == [b"%d" % number for number in range(records)]
        assert {error.message for error in consumer.errors} <= {"500"}

    with_log(store, work, replace(one_is_hot, read_cache_bytes_max=read_cache_bytes_max))
