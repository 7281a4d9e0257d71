"""Room for answers: no reader blocks the others, waiting readers are served in turn, and nothing leaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.records.response_budget import OPENINGS_MAX, ROOM_WAIT_S, ResponseBudget
from gateway.settings import GatewaySettings
from metadata.errors import Throttled
from metadata.model import LeaderEpoch, Offset
from segments.read.log_reader import FetchResult
from segments.records.columns import encode_records
from segments.records.compression import Codec
from tests.simulation.virtual_loop import run


def room_of(bytes_max: int, *, waits: InterruptibleWaits | None = None) -> ResponseBudget:
    return ResponseBudget(GatewaySettings(answer_bytes_max=bytes_max, message_bytes_max=1), waits or InterruptibleWaits())


async def hold(
    room: ResponseBudget, bytes_wanted: int, *, for_s: float, timeout_s: float = 100, bytes_least: int = 1
) -> tuple[float, int]:
    """(when it got room, how much)"""
    with room.reserve() as reservation:
        await reservation.ask(bytes_wanted, timeout_s=timeout_s, bytes_least=bytes_least)
        got = asyncio.get_running_loop().time(), reservation.bytes_held
        await asyncio.sleep(for_s)
    return got


async def gather_all(*answers: Awaitable[object]) -> list[object]:
    return await asyncio.gather(*answers, return_exceptions=True)


# ── how much, and when ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_gets_what_it_wants_up_to_an_eighth_of_what_is_free() -> None:
    room = room_of(64)
    assert run(gather_all(*(hold(room, wanted, for_s=1) for wanted in (5, 8, 8, 8)))) == [(0, 5), (0, 7), (0, 6), (0, 5)]
    assert room.bytes_used == 0


def test_the_fuller_it_gets_the_smaller_answers_become_down_to_the_least_and_then_readers_wait_in_turn() -> None:
    room = room_of(64)
    got = run(gather_all(*(hold(room, 64, for_s=5, bytes_least=6) for _ in range(12))))
    assert got == [(0, 8), (0, 7), *[(0, 6)] * 8, (5, 6), (5, 6)]
    assert room.bytes_used_peak <= 64


def test_a_batch_larger_than_all_the_room_is_not_refused() -> None:
    assert run(gather_all(hold(room_of(64), 1000, for_s=1, bytes_least=1000))) == [(0, 64)]


def test_a_reader_that_finds_no_room_in_time_is_throttled_and_left_no_trace() -> None:
    room = room_of(2)
    _, refused, late = run(
        gather_all(
            hold(room, 2, for_s=9, bytes_least=2), hold(room, 2, for_s=0, timeout_s=3), hold(room, 2, for_s=0, bytes_least=2)
        )
    )
    assert isinstance(refused, Throttled)
    assert "answers that readers have not taken take 2 of 2 bytes; no room came within 3 s" in refused.message
    assert "readers take their answers too slowly" in refused.hint
    assert late == (9, 2)
    assert room.bytes_used == 0


def test_a_long_poll_whose_time_is_over_may_still_wait_for_room_for_a_moment() -> None:
    room = room_of(2)
    first = hold(room, 2, for_s=ROOM_WAIT_S / 2, bytes_least=2)
    _, late = run(gather_all(first, hold(room, 2, for_s=0, timeout_s=-1, bytes_least=2)))
    assert late == (ROOM_WAIT_S / 2, 2)


def test_a_reader_that_gives_up_while_it_waits_lets_the_next_one_in() -> None:
    async def scenario() -> None:
        room = room_of(2)
        first, second, third = (asyncio.ensure_future(hold(room, 2, for_s=1, bytes_least=2)) for _ in range(3))
        await asyncio.sleep(0.5)
        second.cancel()
        assert await third == (1, 2)
        await first
        assert room.bytes_used == 0

    run(scenario())


def test_a_stop_ends_the_waiting_and_leaves_what_is_free() -> None:
    async def scenario() -> None:
        waits = InterruptibleWaits()
        room = room_of(4, waits=waits)
        holding = [asyncio.ensure_future(hold(room, 2, for_s=5, bytes_least=2)) for _ in range(2)]
        waiting = asyncio.ensure_future(hold(room, 2, for_s=0))
        await asyncio.sleep(1)
        waits.stop()
        with pytest.raises(Throttled):
            await waiting
        assert asyncio.get_running_loop().time() == 1
        await asyncio.gather(*holding)
        assert await hold(room, 2, for_s=0, bytes_least=2) == (5, 2)

    run(scenario())


def test_an_answer_keeps_what_it_takes_be_it_less_or_more_than_its_room() -> None:
    async def scenario() -> None:
        room = room_of(64)
        with room.reserve() as reservation:
            assert reservation.bytes_held == 0
            await reservation.ask(5, timeout_s=1)
            reservation.keep(3)
            assert (reservation.bytes_held, room.bytes_used) == (3, 3)
            reservation.keep(100)
            assert (reservation.bytes_held, room.bytes_used) == (100, 100)
            with pytest.raises(Throttled):
                await hold(room, 1, for_s=0, timeout_s=0)
        assert room.bytes_used == 0

    run(scenario())


@settings(deadline=None)
@given(
    st.integers(4, 1000),
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=30),
)
def test_the_bound_holds_and_nothing_leaks_while_readers_arrive_and_give_up(
    bytes_max: int, readers: list[tuple[int, int, int, bool]]
) -> None:
    room = room_of(bytes_max)

    async def reader(bytes_wanted: int, after_s: int, for_s: int, gives_up: bool) -> None:
        await asyncio.sleep(after_s)
        try:
            async with asyncio.timeout(for_s / 2 if gives_up else None):
                await hold(room, bytes_wanted, for_s=for_s, timeout_s=2, bytes_least=1 + bytes_wanted // 3)
        except (TimeoutError, Throttled):
            pass
        assert room.bytes_used <= bytes_max

    async def scenario() -> None:
        await asyncio.gather(*(reader(*each) for each in readers))

    run(scenario())
    assert room.bytes_used == 0
    assert room.bytes_used_peak <= bytes_max


# ── opening ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fetched(*batches: bytes) -> FetchResult:
    return FetchResult(list(batches), sum(map(len, batches)), Offset(10), Offset(10), Offset(0), LeaderEpoch(0))


def test_a_short_answer_is_opened_at_once_and_a_long_one_in_a_thread() -> None:
    small = encode_records([(None, b"x", (), 0)] * 10)
    large = encode_records([(None, b"x" * 70_000, (), 0)])
    compressed = encode_records([(None, b"x" * 1000, (), 0)], codec=Codec.ZSTD)
    many = encode_records([(None, None, (), 0)] * 2000)

    async def scenario() -> list[bool]:
        room = room_of(64)
        here = threading.get_ident()
        return [
            await room.opened([answer], threading.get_ident) == here for answer in map(fetched, (small, large, compressed, many))
        ]

    assert asyncio.run(scenario()) == [True, False, False, False]


def test_only_so_many_answers_are_opened_at_the_same_time() -> None:
    opening, most = 0, 0
    may_end = threading.Event()

    def work() -> None:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        may_end.wait(60)
        opening -= 1

    async def scenario() -> None:
        room = room_of(64)
        large = fetched(encode_records([(None, b"x" * 70_000, (), 0)]))
        tasks = [asyncio.ensure_future(room.opened([large], work)) for _ in range(3 * OPENINGS_MAX)]
        while opening < OPENINGS_MAX:  # noqa: ASYNC110  # threads set no event
            await asyncio.sleep(0.001)
        may_end.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert most == OPENINGS_MAX


def test_a_reader_that_hangs_up_keeps_its_reservation_until_its_thread_has_ended() -> None:
    long = fetched(encode_records([(None, b"x" * 70_000, (), 0)]))
    begun, may_end = threading.Semaphore(0), threading.Event()
    at_work = at_work_peak = 0

    def work() -> None:
        nonlocal at_work, at_work_peak
        at_work += 1
        at_work_peak = max(at_work_peak, at_work)
        begun.release()
        assert may_end.wait(60)
        at_work -= 1

    async def main() -> None:
        room = room_of(64)

        async def read() -> None:
            with room.reserve() as reservation:
                await reservation.ask(1, timeout_s=1, bytes_least=1)
                await room.opened([long], work)

        leaving = [asyncio.ensure_future(read()) for _ in range(OPENINGS_MAX)]
        for _ in leaving:
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        behind = asyncio.ensure_future(read())
        for task in leaving:
            task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (room.bytes_used, at_work) == (OPENINGS_MAX + 1, OPENINGS_MAX)
        may_end.set()
        await behind
        await asyncio.gather(*leaving, return_exceptions=True)
        assert (room.bytes_used, at_work_peak) == (0, OPENINGS_MAX)
        assert all(task.cancelled() for task in leaving)

    asyncio.run(main())
