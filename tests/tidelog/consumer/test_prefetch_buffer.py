"""What waits for its reader is bounded in bytes, and comes out in the order of its arrival."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

import tidelog
from metadata.errors import Corrupt
from segments.records.columns import encode_records
from tests.kit.tidelog.consuming import until, waits_for_its_caller, with_records
from tests.kit.tidelog.small_broker import SmallBroker
from tidelog.consumer.prefetch_buffer import Fetched, FetchedBatches, PrefetchBuffer


def _batches(count: int, *, base_offset: int = 0, value: bytes = b"x") -> bytes:
    """One record in each."""
    return b"".join(encode_records([(None, value, (), 0)], base_offset=base_offset + n) for n in range(count))


def _answer(partition: int, batches: bytes) -> FetchedBatches:
    return FetchedBatches(("orders", partition), batches, start_offset=0, end_offset=None)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within_seconds() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(within_seconds())


def test_batches_come_out_one_by_one_in_the_order_of_their_arrival() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(1_000)
        first, second = _batches(2), _batches(1, base_offset=7)
        ahead.put(FetchedBatches(("orders", 3), first, start_offset=1, end_offset=9))
        ahead.put(_answer(0, second))
        taken = [await ahead.take() for _ in range(3)]
        half = len(first) // 2
        assert taken == [
            Fetched(("orders", 3), memoryview(first)[:half], 1, 9),
            Fetched(("orders", 3), memoryview(first)[half:], 1, 9),
            Fetched(("orders", 0), memoryview(second), 0, None),
        ]
        ahead.end(None)
        assert await ahead.take() is None
        assert await ahead.take() is None

    run(test)


def test_an_error_comes_after_what_arrived_before_it_and_again_whenever_it_is_asked_for() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(1_000)
        ahead.put(_answer(0, _batches(1)))
        ahead.end(Corrupt("damaged"))
        ahead.end(None)
        assert await ahead.take() is not None
        for _ in range(2):
            with pytest.raises(Corrupt, match="damaged"):
                await ahead.take()

    run(test)


def test_bytes_count_until_the_last_batch_of_an_answer_was_taken_since_all_are_views_of_it() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(1_000)
        batches = _batches(3)
        ahead.put(_answer(0, batches))
        for _ in range(2):
            await ahead.take()
            assert ahead.bytes_counted == len(batches)
        await ahead.take()
        assert ahead.bytes_counted == 0

    run(test)


def test_room_is_kept_for_fetches_under_way_and_waited_for_where_there_is_none() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(300)
        entered: list[str] = []

        async def fetch(name: str, until: asyncio.Event) -> None:
            async with ahead.room(150):
                entered.append(name)
                await until.wait()

        done = [asyncio.Event() for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for number, event in enumerate(done):
                tasks.create_task(fetch("abc"[number], event))
            await _settled()
            assert (entered, ahead.bytes_counted) == (["a", "b"], 300)
            done[0].set()
            await _settled()
            assert (entered, ahead.bytes_counted) == (["a", "b", "c"], 300)
            done[1].set()
            done[2].set()
        assert ahead.bytes_counted == 0

    run(test)


def test_an_answer_that_is_larger_than_the_bound_has_room_when_nothing_else_is_there() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(10)
        async with ahead.room(100):
            ahead.put(_answer(0, _batches(1)))
        waiting = asyncio.create_task(ahead.room(100).__aenter__())
        await _settled()
        assert not waiting.done()
        await ahead.take()
        await waiting

    run(test)


def test_a_partition_that_is_dropped_gives_its_bytes_back() -> None:
    async def test() -> None:
        ahead = PrefetchBuffer(1_000)
        for partition in (0, 1, 0):
            ahead.put(_answer(partition, _batches(2)))
        await ahead.take()
        ahead.drop(("orders", 0))
        fetched = await ahead.take()
        assert fetched is not None
        assert fetched.partition == ("orders", 1)
        assert ahead.bytes_counted == len(_batches(2))

    run(test)


def test_small_batches_that_wait_cost_no_more_memory_than_their_bytes() -> None:
    async def test() -> None:
        batches = _batches(20_000)
        ahead = PrefetchBuffer(10 << 20)
        tracemalloc.start()
        try:
            ahead.put(_answer(0, batches))
            assert tracemalloc.get_traced_memory()[0] < 10_000
        finally:
            tracemalloc.stop()

    run(test)


@pytest.mark.slow
def test_a_consumer_that_takes_nothing_holds_what_the_setting_says_and_keeps_no_answer_beside_it() -> None:
    async def test(broker: SmallBroker, log: tidelog.Client) -> None:
        value = b"x" * 10_000
        batch = encode_records([(None, value, (), 0)] * 10)
        for _ in range(60):
            broker.partitions["orders", 0].append(batch)
        tracemalloc.start()
        try:
            consumer = log.consume("orders", partitions=[0], from_=10)
            records = len(await consumer.chunk())
            await until(lambda: waits_for_its_caller(consumer))
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 1_100_000
        while records < 600:
            records += len(await consumer.chunk())
        await consumer.aclose()

    with_records(test, read_ahead_bytes_max=1_000_000, fetch_bytes_max=400_000)


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
