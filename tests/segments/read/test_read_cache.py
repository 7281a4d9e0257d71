"""Runs read back from the bucket: one GET however many wait, checked to the last bit, bounded, and no wait is endless."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from metadata.errors import Corrupt, Denied, Throttled, Unavailable
from segments.byte_budget import ByteBudget
from segments.read.cached_run import CachedRun
from segments.read.read_cache import DAMAGE_BELIEVED_S, ReadCache
from segments.read.run_loader import INLINE_BATCHES_MAX, INLINE_BYTES_MAX
from segments.wal.run_index import RunLocation
from tests.kit.segments.batches import ORDERS, batch_of, records_in, segment_of, stamped_run
from tests.kit.segments.cold_bucket import (
    BATCHES,
    BODY,
    KEY,
    LOCATION,
    OTHER,
    SEQ,
    SESSION,
    THIRD,
    bucket,
    cold_pool,
    damaged,
    location_of,
    with_pool,
)
from tests.kit.segments.scripted_store import REFUSED, SILENCE, ScriptedStore, fails, slow
from tests.simulation.virtual_loop import run


def read_run(store: ScriptedStore, location: RunLocation = LOCATION, *, reads: ByteBudget | None = None) -> CachedRun:
    async def main() -> CachedRun:
        async with cold_pool(store, reads=reads) as pool:
            try:
                return await pool.run_at(location)
            except Exception as error:  # noqa: BLE001  # not through the task group, which would wrap it
                failed.append(error)
                return CachedRun(location, memoryview(b""), [], [0], {})

    failed: list[Exception] = []
    found = run(main())
    if failed:
        raise failed[0]
    return found


# ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_read_with_its_offsets() -> None:
    found = read_run(bucket())
    assert found.base_offsets == [100, 102, 103]
    assert records_in([found.body]) == [(100, b"one"), (101, b"two"), (102, b"three"), (103, b"four"), (104, b"five")]


def test_a_run_larger_than_all_reads_in_flight_may_be_is_read_when_it_is_alone() -> None:
    """It was written under another setting of segment_bytes_max, and must not become unreadable."""
    reads = ByteBudget(10)
    assert read_run(bucket(), reads=reads).base_offsets == [100, 102, 103]
    assert (reads.bytes_used, reads.bytes_used_peak) == (0, 10)


# ── single flight, and what is kept ─────────────────────────────────────────────────────────────────────────────────────


def test_however_many_readers_wait_there_is_one_get() -> None:
    store = bucket()
    store.script("get", KEY, slow(1))

    async def work(pool: ReadCache) -> None:
        found = await asyncio.gather(*[pool.run_at(LOCATION) for _ in range(10)])
        assert all(one is found[0] for one in found)
        assert await pool.run_at(LOCATION) is found[0]

    with_pool(store, work)
    assert store.count("get") == 1


def test_a_reader_that_hangs_up_does_not_stop_the_others() -> None:
    store = bucket()
    store.script("get", KEY, slow(2))

    async def work(pool: ReadCache) -> None:
        first, second = (asyncio.create_task(pool.run_at(LOCATION)) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        assert (await second).base_offsets == [100, 102, 103]
        assert first.cancelled()

    with_pool(store, work)
    assert store.count("get") == 1


def test_the_run_that_was_not_used_for_longest_makes_room() -> None:
    store = bucket()

    one, other, third = (read_run(bucket(), location).memory_bytes for location in (LOCATION, OTHER, THIRD))

    async def main() -> None:
        async with cold_pool(store, bytes_max=one + other + third - 1) as pool:
            for location in (LOCATION, OTHER, LOCATION, THIRD):
                await pool.run_at(location)
            assert (store.count("get"), pool.bytes_used) == (3, one + third)
            for location in (LOCATION, THIRD):
                await pool.run_at(location)
            assert store.count("get") == 3
            await pool.run_at(OTHER)
            assert (store.count("get"), pool.bytes_used) == (4, other + third)

    run(main())


def test_a_run_larger_than_the_pool_is_answered_but_not_kept() -> None:
    store = bucket()

    async def main() -> None:
        async with cold_pool(store, bytes_max=10) as pool:
            assert (await pool.run_at(LOCATION)).base_offsets == [100, 102, 103]
            assert pool.bytes_used == 0

    run(main())


def test_reads_in_flight_are_bounded_and_the_next_one_waits_its_turn() -> None:
    store = bucket()
    store.script("get", KEY, slow(1), slow(1))
    reads = ByteBudget(LOCATION.end - LOCATION.start)

    async def main() -> float:
        async with cold_pool(store, reads=reads) as pool:
            await asyncio.gather(pool.run_at(LOCATION), pool.run_at(OTHER))
            return asyncio.get_running_loop().time()

    assert run(main()) == 2
    assert reads.bytes_used_peak <= reads.bytes_max


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_batch_does_not_spoil_the_others_of_its_run(bit: int) -> None:
    """In the length of the second batch of three: the footer says where the third one is."""
    body = bytearray(BODY)
    body[LOCATION.start + len(BATCHES[0]) + 11] ^= 1 << bit
    found = read_run(bucket(bytes(body)))
    assert records_in([found.read(100, bytes_max=1 << 20).body]) == [(100, b"one"), (101, b"two")]
    with pytest.raises(Corrupt, match="offset 102 can't be read") as damage:
        found.read(102, bytes_max=1 << 20)
    start = LOCATION.start + len(BATCHES[0])
    assert damage.value.details == {"key": KEY, "start": start, "end": start + len(BATCHES[1]), "next_offset": 103}
    assert records_in([found.read(103, bytes_max=1 << 20).body]) == [(103, b"four"), (104, b"five")]


def test_where_the_footer_is_damaged_too_what_lies_before_the_damage_is_read(caplog: pytest.LogCaptureFixture) -> None:
    found = read_run(bucket(damaged(LOCATION.start + len(BATCHES[0]) + 30, len(BODY) - 20)))
    assert records_in([found.read(100, bytes_max=1 << 20).body]) == [(100, b"one"), (101, b"two")]
    with pytest.raises(Corrupt, match="offsets 102 to 104 can't be read") as damage:
        found.read(103, bytes_max=1 << 20)
    assert damage.value.details["next_offset"] == 105
    reported, _ = caplog.messages
    assert "the footer does not match its CRC-32C; batches behind the damage" in reported


def test_a_footer_that_can_t_be_read_now_is_no_damage() -> None:
    store = bucket(damaged(LOCATION.start + 30))
    store.script("tail", KEY, REFUSED)

    async def work(pool: ReadCache) -> None:
        with pytest.raises(Unavailable, match="503 SlowDown"):
            await pool.run_at(LOCATION)
        assert records_in([(await pool.run_at(LOCATION)).read(102, bytes_max=1 << 20).body])[0] == (102, b"three")

    with_pool(store, work)


def test_damage_is_believed_for_a_while_and_then_looked_at_again() -> None:
    """The object may have been restored meanwhile, or the network be to blame."""
    store = bucket(damaged(LOCATION.start + 30))

    async def work(pool: ReadCache) -> None:
        assert list((await pool.run_at(LOCATION)).damaged) == [0]
        store.plant(KEY, BODY)
        await asyncio.sleep(DAMAGE_BELIEVED_S - 1)
        assert list((await pool.run_at(LOCATION)).damaged) == [0]
        assert store.count("get") == 1
        await asyncio.sleep(1)
        sound = await pool.run_at(LOCATION)
        assert sound.damaged == {}
        assert pool.bytes_used == sound.memory_bytes
        await asyncio.sleep(2 * DAMAGE_BELIEVED_S)
        await pool.run_at(LOCATION)
        assert store.count("get") == 2

    with_pool(store, work)


@pytest.mark.parametrize(
    ("batches", "in_thread"),
    [
        ([batch_of(b"x" * 1000)] * INLINE_BATCHES_MAX, False),
        ([batch_of(b"x")] * (INLINE_BATCHES_MAX + 1), True),
        ([batch_of(b"x" * (INLINE_BYTES_MAX // 2))] * 2, True),
    ],
)
def test_a_run_of_many_bytes_or_batches_is_checked_in_a_thread(
    batches: list[bytes], in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[RunLocation]] = []
    to_thread = asyncio.to_thread

    async def counted(*call: Any) -> Any:
        checked.append(call[2])
        return await to_thread(*call)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    segment = segment_of(SESSION, SEQ, [(ORDERS, stamped_run(0, *batches))])
    location = location_of(segment.footer.runs[0])
    assert len(read_run(bucket(b"".join(segment.body)), location).base_offsets) == len(batches)
    assert checked == ([[location]] if in_thread else [])


# ── several runs of one segment ─────────────────────────────────────────────────────────────────────────────────────────


async def all_read(pool: ReadCache, *locations: RunLocation) -> list[CachedRun]:
    return list(await asyncio.gather(*map(pool.run_at, locations)))


def test_runs_of_one_segment_that_are_asked_for_together_are_read_with_one_get() -> None:
    store = bucket()

    async def work(pool: ReadCache) -> None:
        runs = await all_read(pool, THIRD, LOCATION, OTHER)
        assert [run.location for run in runs] == [THIRD, LOCATION, OTHER]
        assert [bytes(run.body) for run in runs] == [BODY[each.start : each.end] for each in (THIRD, LOCATION, OTHER)]
        assert all(run.body.nbytes == memoryview(run.body.obj).nbytes for run in runs), "a run keeps the bytes of others in memory"

    with_pool(store, work)
    assert store.count("get") == 1


def test_damage_in_one_run_leaves_those_that_were_read_with_it() -> None:
    store = bucket(damaged(OTHER.end - 1))

    async def work(pool: ReadCache) -> None:
        runs = await all_read(pool, LOCATION, OTHER, THIRD)
        assert [bool(run.damaged) for run in runs] == [False, True, False]

    with_pool(store, work)


def test_runs_are_read_one_by_one_where_their_segment_ends_too_early() -> None:
    store = bucket(BODY[: OTHER.start + 1])

    async def work(pool: ReadCache) -> None:
        whole, torn, beyond = await asyncio.gather(*map(pool.run_at, (LOCATION, OTHER, THIRD)), return_exceptions=True)
        assert isinstance(whole, CachedRun)
        assert not whole.damaged
        assert isinstance(torn, CachedRun)
        assert torn.damaged
        assert isinstance(beyond, Corrupt)

    with_pool(store, work)


def test_where_a_segment_is_gone_each_partition_hears_of_it() -> None:
    gone: list[RunLocation] = []

    async def work(pool: ReadCache) -> None:
        async def on_gone(location: RunLocation) -> None:
            gone.append(location)

        reads = [pool.read(location, on_gone=partial(on_gone, location)) for location in (LOCATION, OTHER)]
        assert [type(each) for each in await asyncio.gather(*reads)] == [Corrupt, Corrupt]

    with_pool(ScriptedStore(), work)
    assert gone == [LOCATION, OTHER]


def test_a_failed_get_is_the_error_of_all_its_runs_and_is_not_repeated() -> None:
    store = bucket()
    store.script("get", KEY, fails(Unavailable("no network")))

    async def work(pool: ReadCache) -> None:
        found = await asyncio.gather(*map(pool.run_at, (LOCATION, OTHER)), return_exceptions=True)
        assert [type(each) for each in found] == [Unavailable, Unavailable]
        assert found[0] is not found[1]

    with_pool(store, work)
    assert store.count("get") == 1


@pytest.mark.parametrize("begun", [False, True])
def test_runs_that_are_read_together_end_with_their_session(begun: bool) -> None:
    store = bucket()
    store.script("get", KEY, slow(5))

    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []

        def spawn(read: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            tasks.append(asyncio.create_task(read))
            return tasks[-1]

        pool = ReadCache(store, bytes_max=1 << 20, reads=ByteBudget(1 << 20), read_timeout_s=10, spawn=spawn)
        waiting = [asyncio.create_task(pool.run_at(location)) for location in (LOCATION, OTHER)]
        await asyncio.sleep(0)
        assert len(tasks) == 1
        if begun:
            await asyncio.sleep(1)
        tasks[0].cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [Unavailable, Unavailable]
        assert not pool._gathered

    run(main())


@pytest.mark.parametrize("kept", [0, LOCATION.start - 1, LOCATION.start, LOCATION.start + 1, LOCATION.end - 1])
def test_an_object_that_ends_too_early_is_corrupt_from_there_on(kept: int) -> None:
    with pytest.raises(Corrupt) as damage:
        read_run(bucket(BODY[:kept])).read(104, bytes_max=1)
    assert (damage.value.details["key"], damage.value.details["next_offset"]) == (KEY, 105)


def test_an_object_that_is_gone_is_corrupt_as_a_whole() -> None:
    with pytest.raises(Corrupt, match=r"offsets 100 to 104 can't be read: .*: nothing is there: .* has no object") as damage:
        read_run(ScriptedStore())
    assert damage.value.details == {"key": KEY, "start": LOCATION.start, "end": LOCATION.end, "next_offset": 105}


def test_a_damaged_run_does_not_spoil_its_neighbours() -> None:
    assert records_in([read_run(bucket(damaged(LOCATION.end - 1)), OTHER).body]) == [(0, b"other")]


def test_a_refusal_of_the_bucket_is_unavailable_to_the_reader() -> None:
    store = bucket()
    store.script("get", KEY, fails(Denied("403 AccessDenied", hint="Allow s3:GetObject.")))
    with pytest.raises(Unavailable, match="403 AccessDenied") as refusal:
        read_run(store)
    assert refusal.value.hint == "Allow s3:GetObject."


def test_an_error_is_raised_to_all_waiters_and_not_cached() -> None:
    store = bucket()
    store.script("get", KEY, REFUSED)

    async def work(pool: ReadCache) -> None:
        answers = await asyncio.gather(*[pool.run_at(LOCATION) for _ in range(3)], return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert len({id(answer) for answer in answers}) == 3, "each has an instance of its own to raise and to note on"
        assert (await pool.run_at(LOCATION)).base_offsets == [100, 102, 103]

    with_pool(store, work)


def test_a_bucket_that_never_answers_is_given_up_on_and_its_bytes_are_given_back() -> None:
    store = bucket()
    store.script("get", KEY, SILENCE)
    reads = ByteBudget(LOCATION.end - LOCATION.start)
    with pytest.raises(Unavailable, match="could not be read within 10 s"):
        read_run(store, reads=reads)
    assert reads.bytes_used == 0


def test_a_reader_for_whom_there_is_no_turn_in_time_is_throttled() -> None:
    reads = ByteBudget(1000)
    reads.take(1000)
    with pytest.raises(Throttled):
        read_run(bucket(), reads=reads)


@pytest.mark.parametrize("waited_s", [0, 1])
def test_the_end_of_the_session_fails_its_readers_even_before_their_read_begins(waited_s: float) -> None:
    store = bucket()
    store.script("get", KEY, SILENCE)

    async def main() -> None:
        tasks: list[asyncio.Task[object]] = []

        def spawn(work: Coroutine[None, None, object]) -> asyncio.Task[object]:
            tasks.append(asyncio.create_task(work))
            if not waited_s:
                tasks[0].cancel()  # before its first step
            return tasks[0]

        pool = ReadCache(store, bytes_max=1000, reads=ByteBudget(1000), read_timeout_s=10, spawn=spawn)
        reader = asyncio.create_task(pool.run_at(LOCATION))
        await asyncio.sleep(waited_s)
        tasks[0].cancel()
        with pytest.raises(Unavailable, match="the session ended"):
            await reader
        assert not pool._loading

    run(main())


def test_a_session_that_has_ended_reads_nothing_more() -> None:
    async def main() -> None:
        def spawn(work: Coroutine[None, None, object]) -> asyncio.Task[object]:
            work.close()
            raise Unavailable("the session has ended")

        pool = ReadCache(bucket(), bytes_max=1000, reads=ByteBudget(1000), read_timeout_s=10, spawn=spawn)
        for _ in range(2):
            with pytest.raises(Unavailable, match="the session has ended"):
                await pool.run_at(LOCATION)

    run(main())
