"""Runs read back from the bucket: one GET however many wait, checked to the last bit, bounded, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, Denied, Throttled, Unavailable
from metadata.model import Offset, SegmentSeq, SessionId
from segments.byte_budget import ByteBudget
from segments.cold_pool import ColdPool, ColdRun
from segments.run_index import RunPlace
from segments.segment_file import Run
from tests.segments.batches import ORDERS, PAYMENTS, batch_of, partition_of, records_in, segment_of, stamped_run
from tests.segments.scripted_store import REFUSED, SILENCE, ScriptedStore, fails, slow
from tests.simulation.virtual_loop import run

SESSION, SEQ = SessionId(7), SegmentSeq(0)
BATCHES = [batch_of(b"one", b"two"), batch_of(b"three"), batch_of(b"four", b"five")]


def place_of(found: Run) -> RunPlace:
    return RunPlace(
        found.base_offset, found.last_offset, SESSION, SEQ, found.start, found.end, found.leader_epoch, found.max_timestamp
    )


SEGMENT = segment_of(
    SESSION,
    SEQ,
    [
        (ORDERS, stamped_run(100, *BATCHES)),
        (PAYMENTS, stamped_run(0, batch_of(b"other"))),
        (partition_of(9), stamped_run(0, batch_of(b"third"))),
    ],
)
BODY = b"".join(SEGMENT.body)
PLACE, OTHER, THIRD = map(place_of, SEGMENT.footer.runs)
KEY = PLACE.key


def bucket(body: bytes = BODY) -> ScriptedStore:
    store = ScriptedStore()
    store.plant(KEY, body)
    return store


@asynccontextmanager
async def cold_pool(store: ScriptedStore, *, bytes_max: int = 1 << 20, reads: ByteBudget | None = None) -> AsyncIterator[ColdPool]:
    """A pool whose reads belong to a task group, as they do to the log's."""
    async with asyncio.TaskGroup() as tasks:
        yield ColdPool(store, bytes_max=bytes_max, reads=reads or ByteBudget(1 << 20), read_timeout_s=10, spawn=tasks.create_task)


def with_pool(store: ScriptedStore, work: Callable[[ColdPool], Coroutine[None, None, object]]) -> None:
    async def main() -> None:
        async with cold_pool(store) as pool:
            await work(pool)

    run(main())


def read_run(store: ScriptedStore, place: RunPlace = PLACE, *, reads: ByteBudget | None = None) -> ColdRun:
    async def main() -> ColdRun:
        async with cold_pool(store, reads=reads) as pool:
            try:
                return await pool.run_at(place)
            except Exception as error:  # noqa: BLE001  # not through the task group, which would wrap it
                failed.append(error)
                return ColdRun(memoryview(b""), [], [0])

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


@given(st.integers(100, 104), st.integers(0, len(BODY)))
def test_a_read_gives_whole_batches_from_the_one_with_the_offset_on_within_the_bytes_but_one_at_least(
    offset: int, bytes_max: int
) -> None:
    found = read_run(bucket())
    body = found.read(offset, bytes_max=bytes_max)
    following = found.next_offset(after_bytes=body, place=PLACE, offset=offset)
    records = records_in([body])
    assert records == [record for record in records_in([found.body]) if records[0][0] <= record[0] < following]
    assert records[0][0] <= offset < following
    assert len(body) <= bytes_max or following == next(base for base in [102, 103, 105] if base > offset)


def test_a_run_larger_than_all_reads_in_flight_may_be_is_read_when_it_is_alone() -> None:
    """It was written under another setting of segment_bytes_max, and must not become unreadable."""
    reads = ByteBudget(10)
    assert read_run(bucket(), reads=reads).base_offsets == [100, 102, 103]
    assert (reads.bytes_used, reads.bytes_used_peak) == (0, 10)


# ── single flight, and what is kept ─────────────────────────────────────────────────────────────────────────────────────


def test_however_many_readers_wait_there_is_one_get() -> None:
    store = bucket()
    store.script("get", KEY, slow(1))

    async def work(pool: ColdPool) -> None:
        found = await asyncio.gather(*[pool.run_at(PLACE) for _ in range(10)])
        assert all(one is found[0] for one in found)
        assert await pool.run_at(PLACE) is found[0]

    with_pool(store, work)
    assert store.count("get") == 1


def test_a_reader_that_hangs_up_does_not_stop_the_others() -> None:
    store = bucket()
    store.script("get", KEY, slow(2))

    async def work(pool: ColdPool) -> None:
        first, second = (asyncio.create_task(pool.run_at(PLACE)) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        assert (await second).base_offsets == [100, 102, 103]
        assert first.cancelled()

    with_pool(store, work)
    assert store.count("get") == 1


def test_the_run_that_was_not_used_for_longest_makes_room() -> None:
    store = bucket()

    one, other, third = (read_run(bucket(), place).memory_bytes for place in (PLACE, OTHER, THIRD))

    async def main() -> None:
        async with cold_pool(store, bytes_max=one + other + third - 1) as pool:
            for place in (PLACE, OTHER, PLACE, THIRD):
                await pool.run_at(place)
            assert (store.count("get"), pool.bytes_used) == (3, one + third)
            for place in (PLACE, THIRD):
                await pool.run_at(place)
            assert store.count("get") == 3
            await pool.run_at(OTHER)
            assert (store.count("get"), pool.bytes_used) == (4, other + third)

    run(main())


def test_a_run_larger_than_the_pool_is_answered_but_not_kept() -> None:
    store = bucket()

    async def main() -> None:
        async with cold_pool(store, bytes_max=10) as pool:
            assert (await pool.run_at(PLACE)).base_offsets == [100, 102, 103]
            assert pool.bytes_used == 0

    run(main())


def test_reads_in_flight_are_bounded_and_the_next_one_waits_its_turn() -> None:
    store = bucket()
    store.script("get", KEY, slow(1), slow(1))
    reads = ByteBudget(PLACE.end - PLACE.start)

    async def main() -> float:
        async with cold_pool(store, reads=reads) as pool:
            await asyncio.gather(pool.run_at(PLACE), pool.run_at(OTHER))
            return asyncio.get_running_loop().time()

    assert run(main()) == 2
    assert reads.bytes_used_peak <= reads.bytes_max


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(PLACE.start * 8, PLACE.end * 8 - 1))
def test_a_flipped_bit_anywhere_in_the_run_is_corrupt_and_names_object_and_range(bit: int) -> None:
    """Also in the first 16 bytes of a batch, which its CRC-32C does not cover."""
    body = bytearray(BODY)
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt) as damage:
        read_run(bucket(bytes(body)))
    details = damage.value.details
    assert details["key"] == KEY
    assert isinstance(details["start"], int)
    assert isinstance(details["end"], int)
    assert PLACE.start <= details["start"] <= details["end"] <= PLACE.end


@pytest.mark.parametrize("kept", [0, PLACE.start - 1, PLACE.start, PLACE.start + 1, PLACE.end - 1])
def test_an_object_that_ends_too_early_is_corrupt(kept: int) -> None:
    with pytest.raises(Corrupt) as damage:
        read_run(bucket(BODY[:kept]))
    assert damage.value.details["key"] == KEY


def test_an_object_that_is_gone_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"offsets 100 to 104 lie at .* but there is nothing"):
        read_run(ScriptedStore())


def test_a_run_that_ends_at_another_offset_than_the_footer_said_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="the run ends before offset 105"):
        read_run(bucket(), PLACE._replace(last_offset=Offset(110)))


def test_a_damaged_run_does_not_spoil_its_neighbours() -> None:
    body = bytearray(BODY)
    body[PLACE.end - 1] ^= 1
    assert records_in([read_run(bucket(bytes(body)), OTHER).body]) == [(0, b"other")]


def test_what_the_bucket_refuses_is_the_brokers_trouble_and_not_the_readers() -> None:
    store = bucket()
    store.script("get", KEY, fails(Denied("403 AccessDenied", hint="Allow s3:GetObject.")))
    with pytest.raises(Unavailable, match="403 AccessDenied") as refusal:
        read_run(store)
    assert refusal.value.hint == "Allow s3:GetObject."


def test_an_error_is_told_to_all_who_wait_and_not_kept() -> None:
    store = bucket()
    store.script("get", KEY, REFUSED)

    async def work(pool: ColdPool) -> None:
        answers = await asyncio.gather(*[pool.run_at(PLACE) for _ in range(3)], return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert (await pool.run_at(PLACE)).base_offsets == [100, 102, 103]

    with_pool(store, work)


def test_a_bucket_that_never_answers_is_given_up_on_and_its_bytes_are_given_back() -> None:
    store = bucket()
    store.script("get", KEY, SILENCE)
    reads = ByteBudget(PLACE.end - PLACE.start)
    with pytest.raises(Unavailable, match="could not be read within 10 s"):
        read_run(store, reads=reads)
    assert reads.bytes_used == 0


def test_a_reader_for_whom_there_is_no_turn_in_time_is_throttled() -> None:
    reads = ByteBudget(1000)
    reads.take(1000)
    with pytest.raises(Throttled):
        read_run(bucket(), reads=reads)


@pytest.mark.parametrize("waited_s", [0, 1])
def test_when_the_session_ends_its_readers_are_told_even_if_their_read_had_not_begun(waited_s: float) -> None:
    store = bucket()
    store.script("get", KEY, SILENCE)

    async def main() -> None:
        tasks: list[asyncio.Task[object]] = []

        def spawn(work: Coroutine[None, None, object]) -> asyncio.Task[object]:
            tasks.append(asyncio.create_task(work))
            if not waited_s:
                tasks[0].cancel()  # before its first step
            return tasks[0]

        pool = ColdPool(store, bytes_max=1000, reads=ByteBudget(1000), read_timeout_s=10, spawn=spawn)  # type: ignore[arg-type]
        reader = asyncio.create_task(pool.run_at(PLACE))
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

        pool = ColdPool(bucket(), bytes_max=1000, reads=ByteBudget(1000), read_timeout_s=10, spawn=spawn)  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(Unavailable, match="the session has ended"):
                await pool.run_at(PLACE)

    run(main())
