"""Many lagging readers over a large history: memory stays within its settings, each row group is read once for each that reads it
through, and the tail stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from segments.byte_budget import ByteBudget
from segments.history.index import RowGroupLocation
from segments.read.log_reader import LogReader
from segments.read.read_cache import ReadCache
from segments.read.row_group_pins import IN_USE_S, RowGroupPins
from segments.records.batch_kernel import RecordTuple
from tests.kit.segments.batches import ORDERS, batch_of
from tests.kit.segments.scripted_store import ScriptedStore
from tests.kit.segments.small_history import history
from tests.kit.segments.tiered_partition import TieredPartition, tuples_in
from tests.simulation.virtual_loop import run

VALUE = b"x" * 1000
GROUP_BYTES = 50_000
GROUPS_HELD = 4


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group is ten batches, so that a reader takes it in several fetches."""
    monkeypatch.setattr("segments.read.row_group_loader.GROUP_BATCH_BYTES", 5_200)


class SlowStore(ScriptedStore):
    """Each read takes a tenth of a second."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        await asyncio.sleep(0.1)
        return await super().get(key, start=start, end=end)


def large_history(*, cold_bytes_max: int = GROUPS_HELD * GROUP_BYTES * 11 // 10) -> TieredPartition:
    """Thirty row groups of fifty records, some 50 KB each, and two records in the hot pool."""
    partition = TieredPartition(
        [batch_of(*[VALUE] * 10) for _ in range(150)] + [batch_of(b"the tail"), batch_of(b"the end")],
        compacted=150,
        hot=2,
        file_batches=25,
        group_bytes=GROUP_BYTES + 3000,
        cold_bytes_max=cold_bytes_max,
        reads=ByteBudget(5 * GROUP_BYTES),
    )
    slow = SlowStore()
    for key in [*partition.store.keys("topics/"), *partition.store.keys("wal/")]:
        slow.plant(key, partition.store.content(key))
    partition.store = slow
    assert [group.record_count for file in partition.manifest.files for group in file.row_groups] == [50] * 30
    return partition


async def watched(pool: ReadCache, work: Awaitable[object]) -> int:
    """The most that the pool holds while this goes on, looked at each time that the bucket might have answered."""
    most = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        most = max(most, pool.bytes_used)
        await asyncio.sleep(0.01)
    await task
    return most


@pytest.mark.slow
def test_fifty_readers_over_a_history_stay_within_memory_and_never_touch_the_tail() -> None:
    partition = large_history()

    async def work(reader: LogReader) -> None:
        async def consumer(number: int) -> None:
            offset = number * 30  # each somewhere else
            read: list[RecordTuple] = []
            while offset < partition.end and len(read) < 100:
                fetched = await partition.fetch(reader, offset, bytes_max=5_000)
                read += tuples_in(fetched.batches, from_offset=offset)
                offset = fetched.next_offset
                await asyncio.sleep(0.02)  # it works on what it got
            assert read == partition.records[number * 30 : number * 30 + len(read)]

        async with asyncio.TaskGroup() as consumers:
            for number in range(50):
                consumers.create_task(consumer(number))

    most = partition.with_reader(lambda reader: watched(partition.pool, work(reader)))
    assert GROUP_BYTES < most <= partition.cold_bytes_max
    assert partition.reads.bytes_used_peak <= partition.reads.bytes_max
    assert partition.hot.start_offset(ORDERS) == partition.hot_start
    partition.store.calls.clear()
    assert tuples_in(partition.read(partition.hot_start).batches) == partition.records[-2:]
    assert partition.store.calls == []


def test_readers_do_not_push_out_each_others_row_groups_however_small_their_fetches() -> None:
    """Each of thirty readers takes a row group of its own, in ten fetches or more: 30 reads, though four fit at a time."""
    partition = large_history()

    async def work(reader: LogReader) -> None:
        async def consumer(number: int) -> None:
            offset = number * 50
            while offset < (number + 1) * 50:
                offset = (await partition.fetch(reader, offset, bytes_max=1)).next_offset
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as consumers:
            for number in range(30):
                consumers.create_task(consumer(number))

    partition.with_reader(work)
    footers = len(partition.manifest.files)
    assert partition.store.count("get") <= 30 + footers


def test_a_reader_that_does_not_come_back_does_not_delay_others_for_long() -> None:
    partition = large_history()

    async def work(reader: LogReader) -> float:
        for number in range(GROUPS_HELD):
            await partition.fetch(reader, number * 50, bytes_max=1)
        began_s = asyncio.get_running_loop().time()
        await partition.fetch(reader, 20 * 50, bytes_max=1)
        return asyncio.get_running_loop().time() - began_s

    assert IN_USE_S - 0.5 < partition.with_reader(work) < IN_USE_S + 0.5


def test_a_row_group_larger_than_the_pool_is_read_all_the_same() -> None:
    partition = large_history(cold_bytes_max=1000)
    read = tuples_in(partition.read(120, bytes_max=1).batches, from_offset=120)
    assert read == partition.records[120 : 120 + len(read)] != []


# ── groups in use ───────────────────────────────────────────────────────────────────────────────────────────────────────


def locations() -> list[RowGroupLocation]:
    return [location for offset in (2, 5, 12) if (location := history().find(offset)) is not None]


def with_groups(work: Callable[[RowGroupPins], Awaitable[None]]) -> None:
    async def main() -> None:
        first, second, third = locations()
        assert first.size_bytes >= third.size_bytes
        await work(RowGroupPins(first.size_bytes + second.size_bytes))

    run(main())


def test_a_reader_that_waits_for_room_gets_it_when_another_row_group_has_been_read() -> None:
    async def work(groups: RowGroupPins) -> None:
        first, second, third = locations()
        for location in (first, second):
            await groups.begin(location, patience_s=5)
            assert location.identity in groups
        waiting = asyncio.ensure_future(groups.begin(third, patience_s=5))
        await asyncio.sleep(1)
        assert not waiting.done()
        groups.end(first.identity)
        await waiting
        assert (first.identity in groups, third.identity in groups) == (False, True)
        assert groups.bytes_used == second.size_bytes + third.size_bytes

    with_groups(work)


def test_a_row_group_without_room_is_read_unpinned_after_a_wait_and_a_too_large_one_at_once() -> None:
    async def work(groups: RowGroupPins) -> None:
        first, second, third = locations()
        await groups.begin(first, patience_s=5)
        await groups.begin(second, patience_s=5)
        await groups.begin(third, patience_s=5)
        assert asyncio.get_running_loop().time() == 5
        assert third.identity not in groups
        larger = RowGroupPins(third.size_bytes - 1)
        for _ in range(2):
            await larger.begin(third, patience_s=5)
            larger.go_on(third)
        assert (third.identity in larger, larger.bytes_used, larger.has_room(third)) == (False, 0, False)
        assert asyncio.get_running_loop().time() == 5

    with_groups(work)


def test_slow_readers_of_more_than_the_pool_holds_get_on_all_the_same() -> None:
    """Each comes back after longer than its row group stays: it reads it again, and no reader is refused."""
    partition = large_history()

    async def work(reader: LogReader) -> None:
        async def consumer(number: int) -> None:
            offset = number * 50
            for _ in range(3):
                fetched = await partition.fetch(reader, offset, bytes_max=1)
                assert fetched.next_offset > offset
                offset = fetched.next_offset
                await asyncio.sleep(IN_USE_S * 2)

        async with asyncio.TaskGroup() as consumers:
            for number in range(30):
                consumers.create_task(consumer(number))

    most = partition.with_reader(lambda reader: watched(partition.pool, work(reader)))
    assert most <= partition.cold_bytes_max


def test_a_row_group_stays_in_use_as_long_as_its_reader_comes_back() -> None:
    async def work(groups: RowGroupPins) -> None:
        first, *_ = locations()
        groups.go_on(first)
        for _ in range(5):
            await asyncio.sleep(IN_USE_S - 0.1)
            assert first.identity in groups
            groups.go_on(first)
        await asyncio.sleep(IN_USE_S + 0.1)
        assert (first.identity in groups, groups.bytes_used) == (False, 0)
        groups.end(first.identity)  # nothing more to end

    with_groups(work)
