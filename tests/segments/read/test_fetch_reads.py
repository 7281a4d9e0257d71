"""What one fetch reads from the bucket: bounded, kept until its end, and what it leaves out comes to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from metadata.errors import Throttled, Unavailable
from metadata.model import SessionId
from segments.byte_budget import ByteBudget
from segments.read.cached_run import CachedRun
from segments.read.fetch_plan import RUNS_MAX
from segments.read.fetch_reads import FetchReads
from segments.read.read_cache import LEFT_OUT_MAX, READS_IN_FLIGHT_MAX, READS_WAITING_MAX, ReadCache
from segments.wal.run_index import RunLocation
from tests.kit.segments.cold_bucket import BODY, KEY, LOCATION, OTHER, THIRD, bucket, cold_pool, with_pool
from tests.kit.segments.scripted_store import REFUSED, ScriptedStore, slow
from tests.simulation.virtual_loop import run


def test_a_fetch_is_woken_when_what_it_waits_for_arrives() -> None:
    store = bucket()
    store.script("get", KEY, slow(2))

    async def work(pool: ReadCache) -> None:
        woken = asyncio.Event()
        with FetchReads(pool, bytes_max=1, woken=woken) as reads:
            reads.begin(LOCATION)
            assert (reads.block_at(LOCATION), reads.is_reading(LOCATION), reads.in_flight, reads.owes) == (None, True, True, False)
            await woken.wait()
            assert asyncio.get_running_loop().time() == 2
            arrived = reads.block_at(LOCATION)
            assert isinstance(arrived, CachedRun)
            assert arrived.base_offsets == [100, 102, 103]
            assert (reads.is_reading(LOCATION), reads.in_flight) == (False, False)

    with_pool(store, work)


def test_a_fetch_keeps_what_it_has_read_though_the_pool_does_not() -> None:
    async def main() -> None:
        async with cold_pool(bucket(), bytes_max=1) as pool:
            woken = asyncio.Event()
            with FetchReads(pool, bytes_max=1, woken=woken) as reads:
                reads.begin(LOCATION)
                await woken.wait()
                assert pool.held(LOCATION) is None
                assert reads.block_at(LOCATION) is not None

    run(main())


@pytest.mark.parametrize(
    ("bytes_max", "read"),
    [
        (1, [LOCATION]),
        (LOCATION.end - LOCATION.start, [LOCATION]),
        (LOCATION.end - LOCATION.start + 1, [LOCATION, OTHER]),
        (1 << 20, [LOCATION, OTHER, THIRD]),
    ],
)
def test_a_fetch_reads_about_the_bytes_that_it_may_answer_with_and_one_run_at_least(
    bytes_max: int, read: list[RunLocation]
) -> None:
    store = bucket()

    async def work(pool: ReadCache) -> None:
        with FetchReads(pool, bytes_max=bytes_max, woken=asyncio.Event()) as reads:
            for location in (LOCATION, OTHER, THIRD, LOCATION):
                if not reads.is_full:
                    reads.begin(location)
            assert [location for location in (LOCATION, OTHER, THIRD) if reads.is_reading(location)] == read

    with_pool(store, work)
    assert store.count("get") == 1  # neighbours in one segment


def test_a_fetch_begins_a_bounded_number_of_reads_of_which_some_are_in_flight() -> None:
    locations = [LOCATION._replace(session=SessionId(session)) for session in range(1000)]
    store = ScriptedStore()
    for location in locations:
        store.plant(location.key, BODY)
        store.script("get", location.key, slow(1))

    async def work(pool: ReadCache) -> None:
        with FetchReads(pool, bytes_max=1 << 30, woken=asyncio.Event()) as reads:
            for location in locations:
                if not reads.is_full:
                    reads.begin(location)
            assert sum(map(reads.is_reading, locations)) == RUNS_MAX
            await asyncio.sleep(0.5)
            assert store.count("get") == READS_IN_FLIGHT_MAX

    with_pool(store, work)


def test_reads_that_wait_are_bounded_and_from_a_quarter_on_no_fetch_begins_more_than_one() -> None:
    """However often a client hangs up, or is answered without what it asked for."""
    locations = [LOCATION._replace(session=SessionId(session)) for session in range(2 * READS_WAITING_MAX)]
    store = ScriptedStore()
    for location in locations:
        store.plant(location.key, BODY)
        store.script("get", location.key, slow(0.01))

    async def work(pool: ReadCache) -> None:
        begun: list[int] = []
        for first in range(READS_WAITING_MAX):
            with FetchReads(pool, bytes_max=1 << 30, woken=asyncio.Event()) as reads:
                for location in locations[first * 2 : first * 2 + 2]:
                    if not reads.is_full:
                        reads.begin(location)
                begun.append(sum(map(reads.is_reading, locations[first * 2 : first * 2 + 2])))
        assert begun == [2] * 125 + [1] * 750 + [0] * 125
        with pytest.raises(Throttled, match="1000 reads from the bucket are under way"):
            await pool.run_at(locations[-1])
        await asyncio.sleep(5)
        assert (await pool.run_at(locations[-1])).base_offsets == [100, 102, 103]

    with_pool(store, work)


def left_out(pool: ReadCache, location: RunLocation = LOCATION) -> None:
    """One fetch that begins to read the run and is answered without it."""
    with FetchReads(pool, bytes_max=1, woken=asyncio.Event()) as reads:
        reads.begin(location)
        assert reads.block_at(location) is None


def test_a_run_that_was_left_out_goes_on_being_read_and_is_there_for_the_next_fetch() -> None:
    store = bucket()
    store.script("get", KEY, slow(5))

    async def work(pool: ReadCache) -> None:
        left_out(pool)
        await asyncio.sleep(2)
        left_out(pool)  # it is still being read: the same read
        await asyncio.sleep(4)
        with FetchReads(pool, bytes_max=1, woken=asyncio.Event()) as reads:
            reads.begin(LOCATION)
            assert reads.block_at(LOCATION) is not None
        assert not pool.was_left_out(LOCATION)

    with_pool(store, work)
    assert store.count("get") == 1


def test_a_run_that_was_left_out_and_evicted_again_is_owed_to_the_next_fetch() -> None:
    """Else a reader for whose history there is no room in the pool would always be left out."""

    async def main() -> None:
        async with cold_pool(bucket(), bytes_max=1) as pool:
            left_out(pool)
            await asyncio.sleep(1)
            assert pool.was_left_out(LOCATION)
            woken = asyncio.Event()
            with FetchReads(pool, bytes_max=1, woken=woken) as reads:
                reads.begin(LOCATION)
                owed = [reads.owes]
                await woken.wait()
                owed.append(reads.owes)
                assert owed == [True, False]
                assert reads.block_at(LOCATION) is not None
            assert not pool.was_left_out(LOCATION)

    run(main())


def test_the_error_of_a_left_out_read_is_raised_once_by_the_next_fetch() -> None:
    store = bucket()
    store.script("get", KEY, REFUSED)

    async def work(pool: ReadCache) -> None:
        left_out(pool)
        await asyncio.sleep(1)
        with FetchReads(pool, bytes_max=1, woken=asyncio.Event()) as reads:
            with pytest.raises(Unavailable, match="503 SlowDown"):
                reads.block_at(LOCATION)
            assert reads.block_at(LOCATION) is None
        assert store.count("get") == 1
        assert (await pool.run_at(LOCATION)).base_offsets == [100, 102, 103]

    with_pool(store, work)


def test_an_old_error_of_a_left_out_read_is_dropped_and_the_run_is_read_again() -> None:
    store = bucket()
    store.script("get", KEY, REFUSED)

    async def work(pool: ReadCache) -> None:
        left_out(pool)
        await asyncio.sleep(60)
        woken = asyncio.Event()
        with FetchReads(pool, bytes_max=1, woken=woken) as reads:
            assert reads.block_at(LOCATION) is None
            reads.begin(LOCATION)
            assert reads.owes
            await woken.wait()
            assert reads.block_at(LOCATION) is not None

    with_pool(store, work)


def test_a_left_out_run_that_another_reader_has_read_is_no_longer_owed() -> None:
    async def work(pool: ReadCache) -> None:
        left_out(pool)
        await asyncio.sleep(1)
        await pool.run_at(LOCATION)
        assert not pool.was_left_out(LOCATION)

    with_pool(bucket(), work)


def test_readers_that_never_come_back_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.read.read_cache.LEFT_OUT_MAX", 2)
    assert LEFT_OUT_MAX > 1000

    async def main() -> None:
        async with cold_pool(bucket(), bytes_max=1) as pool:
            for location in (LOCATION, OTHER, THIRD):
                left_out(pool, location)
                await asyncio.sleep(1)
            assert [pool.was_left_out(location) for location in (LOCATION, OTHER, THIRD)] == [False, True, True]

    run(main())


def test_a_fetch_that_needs_the_bucket_fails_when_the_session_has_ended() -> None:
    async def main() -> None:
        def spawn(work: Coroutine[None, None, object]) -> asyncio.Task[object]:
            work.close()
            raise Unavailable("the session has ended")

        pool = ReadCache(bucket(), bytes_max=1000, reads=ByteBudget(1000), read_timeout_s=10, spawn=spawn)
        with FetchReads(pool, bytes_max=1, woken=asyncio.Event()) as reads:
            reads.begin(LOCATION)
            assert not reads.in_flight
            with pytest.raises(Unavailable, match="the session has ended"):
                reads.block_at(LOCATION)

    run(main())
