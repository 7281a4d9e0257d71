"""Fetching from the log: long polls, several partitions at once, what left memory, what is damaged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from metadata.errors import Corrupt, NoLeader, OutOfRange
from segments.hot_pool import BATCH_MEMORY_BYTES
from segments.log import FetchTarget, Log
from segments.log_reader import Fetched
from tests.segments.batches import ORDERS, PAYMENTS, batch_of, partition_of, records_in
from tests.segments.serving import EVERYTHING, SETTINGS, bucket, fetch, now_s, produce, refusal_of, values, with_log


async def fetched_at(log: Log, offset: int, **how: Any) -> tuple[float, list[bytes | None]]:
    fetched = await fetch(log, offset, **how)
    return now_s(), [value for _, value in records_in(fetched.batches, from_offset=offset)]


def test_a_long_poll_is_answered_when_the_record_is_committed() -> None:
    async def work(log: Log) -> None:
        polling = asyncio.create_task(fetched_at(log, 0, wait_ms_max=60_000))
        await asyncio.sleep(3)
        await produce(log, batch_of(b"late"))
        assert await polling == (3.5, [b"late"])

    with_log(bucket(put_s=0.5), work)


def test_a_long_poll_ends_empty_at_its_time() -> None:
    async def work(log: Log) -> None:
        assert await fetched_at(log, 0, wait_ms_max=2500) == (2.5, [])

    with_log(bucket(), work)


def test_a_long_poll_waits_for_bytes_min_but_not_beyond_its_time() -> None:
    async def work(log: Log) -> None:
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

    async def work(log: Log) -> None:
        for _ in range(3):
            await produce(log)
        size = len(batch_of(b"v"))
        began_s = now_s()
        assert await fetched_at(log, 0, bytes_max=2 * size, bytes_min=99 * size, wait_ms_max=60_000) == (began_s, [b"v", b"v"])

    with_log(bucket(), work)


def test_a_poll_over_several_partitions_is_woken_by_any_of_them_and_shares_its_bytes() -> None:
    async def work(log: Log) -> None:
        targets = [FetchTarget(ORDERS, 0, EVERYTHING), FetchTarget(PAYMENTS, 0, EVERYTHING)]
        polling = asyncio.create_task(log.fetch(targets, bytes_max=EVERYTHING, wait_ms_max=60_000))
        await asyncio.sleep(1)
        await produce(log, batch_of(b"p"), partition=PAYMENTS)
        orders, payments = await polling
        assert isinstance(orders, Fetched)
        assert isinstance(payments, Fetched)
        assert (orders.batches, records_in(payments.batches)) == ([], [(0, b"p")])
        await produce(log, batch_of(b"o"))
        orders, payments = await log.fetch(targets, bytes_max=1)
        assert isinstance(orders, Fetched)
        assert isinstance(payments, Fetched)
        assert (records_in(orders.batches), payments.batches, payments.more) == ([(0, b"o")], [], True)

    with_log(bucket(), work)


def test_the_error_of_one_partition_stands_in_its_place_and_is_not_waited_with() -> None:
    async def work(log: Log) -> None:
        await produce(log)
        targets = [FetchTarget(partition_of(9), 0, 100), FetchTarget(ORDERS, 0, 100), FetchTarget(PAYMENTS, 7, 100)]
        answers = await log.fetch(targets, bytes_max=1 << 20, bytes_min=1 << 20, wait_ms_max=60_000)
        assert [type(answer) for answer in answers] == [NoLeader, Fetched, OutOfRange]
        assert now_s() == 0

    with_log(bucket(), work)


def test_a_reader_that_hangs_up_leaves_nothing_behind() -> None:
    async def work(log: Log) -> None:
        polling = asyncio.create_task(fetch(log, 0, wait_ms_max=60_000))
        await asyncio.sleep(1)
        assert len(log._readers[ORDERS]) == 1
        polling.cancel()
        await asyncio.wait((polling,))
        assert log._readers == {}

    with_log(bucket(), work)


def test_what_left_the_hot_pool_is_read_from_the_bucket() -> None:
    store = bucket()

    async def work(log: Log) -> None:
        for number in range(10):
            await produce(log, batch_of(b"%d" % number))
        assert await values(log) == [b"%d" % number for number in range(10)]
        assert store.count("get") == 8
        assert (await log.explain(ORDERS, 3)).in_hot_pool is False
        assert (await log.explain(ORDERS, 9)).in_hot_pool is True
        assert await log.offset_for_timestamp(ORDERS, 0) is not None

    with_log(store, work, replace(SETTINGS, hot_pool_bytes_max=2 * (len(batch_of(b"0")) + BATCH_MEMORY_BYTES)))


def test_a_damaged_object_is_corrupt_for_its_range_only() -> None:
    store = bucket()

    async def work(log: Log) -> None:
        for number in range(3):
            await produce(log, batch_of(b"%d" % number))
            await produce(log, batch_of(b"%d" % number), partition=PAYMENTS)
        damaged = await log.explain(ORDERS, 1)
        body = bytearray(store.content(damaged.object_key))
        body[damaged.range_end - 1] ^= 1
        store.plant(damaged.object_key, bytes(body))
        log._reader._cold._runs.clear()
        assert await values(log, 0) == [b"0"]
        error = await refusal_of(fetch(log, 1))
        assert isinstance(error, Corrupt)
        assert error.details == {"key": damaged.object_key, "start": damaged.range_start, "end": damaged.range_end}
        assert await values(log, 2) == [b"2"]
        assert await values(log, 0, partition=PAYMENTS) == [b"0", b"1", b"2"]

    with_log(store, work, replace(SETTINGS, hot_pool_bytes_max=1))
