"""Back-pressure in bytes: the bound holds, the first to come is served first, and nothing leaks when callers give up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Throttled, TooLarge
from segments.byte_budget import ByteBudget
from tests.simulation.virtual_loop import run


async def now_s() -> float:
    return asyncio.get_running_loop().time()


async def hold(budget: ByteBudget, bytes_count: int, *, for_s: float, timeout_s: float = 100) -> float:
    """Is admitted, stays for a while, takes nothing over. When it was admitted."""
    async with budget.admit(bytes_count, timeout_s=timeout_s):
        admitted_at_s = await now_s()
        await asyncio.sleep(for_s)
    return admitted_at_s


async def gather_all(*requests: Awaitable[float]) -> list[float | BaseException]:
    return await asyncio.gather(*requests, return_exceptions=True)


# ── who is served, and when ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_fits_is_admitted_at_once() -> None:
    budget = ByteBudget(10)
    assert run(gather_all(hold(budget, 4, for_s=5), hold(budget, 6, for_s=5))) == [0, 0]
    assert (budget.bytes_used, budget.bytes_used_peak) == (0, 10)


def test_a_request_that_does_not_fit_waits_until_enough_is_given_back() -> None:
    budget = ByteBudget(10)
    assert run(gather_all(hold(budget, 6, for_s=1), hold(budget, 4, for_s=3), hold(budget, 7, for_s=1))) == [0, 0, 3]


def test_a_large_request_is_not_starved_by_small_ones_that_came_later() -> None:
    budget = ByteBudget(10)
    small = [hold(budget, 2, for_s=1) for _ in range(3)]
    assert run(gather_all(hold(budget, 8, for_s=2), hold(budget, 10, for_s=2), *small)) == [0, 2, 4, 4, 4]


def test_more_than_the_whole_budget_is_refused_without_waiting() -> None:
    budget = ByteBudget(10, of="reads from the bucket")
    with pytest.raises(TooLarge, match="11 bytes are more than all reads from the bucket may take"):
        run(hold(budget, 11, for_s=1))
    assert budget.bytes_used == 0


def test_a_request_without_room_in_time_is_throttled_with_the_cause() -> None:
    budget = ByteBudget(10)
    admitted, refused = run(gather_all(hold(budget, 7, for_s=5), hold(budget, 4, for_s=1, timeout_s=2)))
    assert admitted == 0
    assert isinstance(refused, Throttled)
    assert str(refused) == "records that are not yet on the bucket take 7 of 10 bytes; no room came within 2 s"


def test_without_time_to_wait_there_is_room_at_once_or_none() -> None:
    budget = ByteBudget(10)
    admitted, refused = run(gather_all(hold(budget, 7, for_s=5, timeout_s=0), hold(budget, 4, for_s=1, timeout_s=0)))
    assert admitted == 0
    assert isinstance(refused, Throttled)


def test_when_the_first_in_line_gives_up_those_behind_it_move_up_at_once() -> None:
    budget = ByteBudget(10)
    requests = hold(budget, 6, for_s=9), hold(budget, 10, for_s=1, timeout_s=2), hold(budget, 3, for_s=1), hold(budget, 1, for_s=1)
    admitted, refused, *behind = run(gather_all(*requests))
    assert (admitted, behind) == (0, [2, 2])
    assert isinstance(refused, Throttled)


def test_one_in_the_middle_of_the_line_that_gives_up_is_passed_over() -> None:
    budget = ByteBudget(10)
    requests = hold(budget, 10, for_s=5), hold(budget, 4, for_s=1), hold(budget, 9, for_s=1, timeout_s=2), hold(budget, 6, for_s=1)
    first, second, refused, last = run(gather_all(*requests))
    assert (first, second, last) == (0, 5, 5)
    assert isinstance(refused, Throttled)


# ── what an admitted request takes over ─────────────────────────────────────────────────────────────────────────────────


def test_bytes_that_were_taken_over_stay_taken_until_they_are_released() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        async with budget.admit(8, timeout_s=1) as admission:
            admission.take(5)
            assert budget.bytes_used == 8
        assert budget.bytes_used == 5
        budget.release(5)
        assert budget.bytes_used == 0

    run(main())


def test_a_request_that_fails_gives_back_what_it_did_not_take_over() -> None:
    async def main() -> None:
        async with budget.admit(8, timeout_s=1) as admission:
            admission.take(5)
            raise ZeroDivisionError

    budget = ByteBudget(10)
    with pytest.raises(ZeroDivisionError):
        run(main())
    assert budget.bytes_used == 5


def test_an_admitted_request_may_grow_past_the_bound_while_it_is_encoded_and_the_next_one_waits() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        async with budget.admit(8, timeout_s=1) as admission:
            admission.take(6)
            admission.take(9)
        assert budget.bytes_used == 15
        with pytest.raises(Throttled):
            await hold(budget, 1, for_s=0, timeout_s=1)
        budget.release(6)
        budget.release(9)
        assert await hold(budget, 10, for_s=0) == 1

    run(main())


def test_a_body_of_unknown_length_grows_chunk_by_chunk() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        async with budget.admit(2, timeout_s=1) as admission:
            admission.grow(3)
            admission.grow(5)
            assert budget.bytes_used == 10
            with pytest.raises(TooLarge, match="does not fit"):
                admission.grow(1)
            assert budget.bytes_used == 10
        assert budget.bytes_used == 0

    run(main())


def test_two_bodies_that_grow_into_each_other_do_not_stop_the_broker() -> None:
    async def grows(budget: ByteBudget) -> float:
        async with budget.admit(5, timeout_s=30) as admission:
            await asyncio.sleep(1)
            admission.grow(5)
            return await now_s()

    budget = ByteBudget(10)
    refused, grown = run(gather_all(grows(budget), grows(budget)))
    assert isinstance(refused, Throttled)
    assert grown == 1
    assert budget.bytes_used == 0


def test_timed_out_requests_leave_no_waiters_behind_a_large_one_at_the_head() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        async with budget.admit(10, timeout_s=1):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(hold(budget, 9, for_s=0, timeout_s=100))
                refused = [asyncio.create_task(hold(budget, 1, for_s=0, timeout_s=1)) for _ in range(100)]
                await asyncio.wait(refused)
                assert all(isinstance(task.exception(), Throttled) for task in refused)
                assert len(budget._waiting) == 1
                budget.release(9)
            budget.take(9)

    run(main())


def test_giving_back_more_than_was_taken_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        ByteBudget(10).release(1)


# ── callers that give up ────────────────────────────────────────────────────────────────────────────────────────────────


class Request(NamedTuple):
    arrives_at_s: int
    bytes_count: int
    holds_for_s: int
    timeout_s: int
    cancelled_at_s: int
    # Of the loop, within that second.
    cancelled_after_passes: int


requests = st.lists(
    st.builds(
        Request,
        arrives_at_s=st.integers(0, 4),
        bytes_count=st.integers(0, 10),
        holds_for_s=st.integers(0, 4),
        timeout_s=st.integers(0, 6),
        cancelled_at_s=st.integers(0, 12),
        cancelled_after_passes=st.integers(0, 4),
    ),
    max_size=8,
)


@given(requests, st.booleans(), st.integers(0, 99))
def test_the_bound_holds_and_nothing_leaks_when_callers_give_up_at_any_time(
    requests: list[Request], shuffled: bool, seed: int
) -> None:
    """Whole seconds make grants, timeouts and cancellations fall on one instant, in any order."""
    budget = ByteBudget(10)
    waiting: dict[int, Request] = {}
    granted: list[tuple[int, float]] = []

    async def request(number: int, wanted: Request) -> None:
        await asyncio.sleep(wanted.arrives_at_s)
        waiting[number] = wanted
        arrival = len(arrivals)
        arrivals.append(number)
        try:
            async with budget.admit(wanted.bytes_count, timeout_s=wanted.timeout_s):
                del waiting[number]
                granted.append((arrival, await now_s()))
                await asyncio.sleep(wanted.holds_for_s)
        except Throttled:
            assert await now_s() == wanted.arrives_at_s + wanted.timeout_s
        finally:
            waiting.pop(number, None)

    async def watch_between_the_seconds() -> None:
        for _ in range(24):
            await asyncio.sleep(0.5)
            assert 0 <= budget.bytes_used <= 10
            if await now_s() % 1 and waiting:
                first = next(wanted for number in arrivals if (wanted := waiting.get(number)))
                assert budget.bytes_used + first.bytes_count > 10, "there is room, and yet the first in line waits"

    async def cancel(task: asyncio.Task[None], wanted: Request) -> None:
        await asyncio.sleep(wanted.cancelled_at_s)
        for _ in range(wanted.cancelled_after_passes):
            await asyncio.sleep(0)
        task.cancel()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch_between_the_seconds())
            for number, wanted in enumerate(requests):
                tasks.create_task(cancel(tasks.create_task(request(number, wanted)), wanted))

    arrivals: list[int] = []
    run(main(), shuffled=shuffled, seed=seed)
    assert budget.bytes_used == 0
    assert budget.bytes_used_peak <= 10
    times_in_order_of_arrival = [at_s for _, at_s in sorted(granted)]
    assert times_in_order_of_arrival == sorted(times_in_order_of_arrival), "somebody was overtaken"
