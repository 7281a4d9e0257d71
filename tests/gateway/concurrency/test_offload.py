"""Long work: the loop goes on, the bound on threads holds when callers hang up, and small steps leave turns between them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from gateway.concurrency.offload import TURN_S, BoundedExecutor, LoopYielder, OnePerLoopTurn, map_yielding


class Worked:
    """Pieces of work that wait until they may end, and what is known of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)
        self.busy = self.busy_peak = 0

    def __call__(self) -> str:
        with self._lock:
            self.busy += 1
            self.busy_peak = max(self.busy_peak, self.busy)
        self.begun.release()
        assert self.may_end.wait(60)
        with self._lock:
            self.busy -= 1
        return "done"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # threads set no event of the loop
            await asyncio.sleep(0.001)


def test_no_more_than_so_many_are_at_work_and_each_gets_what_its_work_made() -> None:
    async def main() -> None:
        threads, work = BoundedExecutor(2), Worked()
        running = [asyncio.ensure_future(threads.run(work)) for _ in range(6)]
        await until(lambda: work.busy == 2)
        work.may_end.set()
        assert await asyncio.gather(*running) == ["done"] * 6
        assert work.busy_peak == 2

    asyncio.run(main())


def test_a_cancelled_caller_keeps_its_slot_until_its_thread_has_ended() -> None:
    async def main() -> None:
        threads, work = BoundedExecutor(2), Worked()
        leaving = [asyncio.ensure_future(threads.run(work)) for _ in range(2)]
        await until(lambda: work.busy == 2)
        staying = asyncio.ensure_future(threads.run(work))
        for _ in range(3):  # they insist
            for task in leaving:
                task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        assert not any(task.done() for task in (*leaving, staying))
        assert work.busy_peak == 2
        work.may_end.set()
        assert await staying == "done"
        assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*leaving, return_exceptions=True))
        assert work.busy_peak == 2

    asyncio.run(main())


def test_a_caller_that_hangs_up_before_its_turn_is_gone_at_once() -> None:
    async def main() -> None:
        threads, work = BoundedExecutor(1), Worked()
        running = asyncio.ensure_future(threads.run(work))
        waiting = asyncio.ensure_future(threads.run(work))
        await until(lambda: work.busy == 1)
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert not running.done()
        work.may_end.set()
        assert await running == "done"
        assert await threads.run(lambda: 5) == 5

    asyncio.run(main())


def test_an_error_is_raised_to_its_caller_and_dropped_if_the_caller_was_cancelled() -> None:
    unheard: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        threads, may_end = BoundedExecutor(1), threading.Event()

        def fail() -> None:
            assert may_end.wait(60)
            raise ValueError("wrong")

        leaving = asyncio.ensure_future(threads.run(fail))
        await asyncio.sleep(0)
        leaving.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(ValueError, match="wrong"):
            await threads.run(fail)

    asyncio.run(main())
    assert unheard == []


def test_the_loop_gets_its_turn_by_the_time_that_steps_took_and_not_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("gateway.concurrency.offload.time.monotonic", lambda: now_s)

    async def turns_of(steps: int, *, step_s: float) -> int:
        nonlocal now_s
        given = 0

        async def other() -> None:
            nonlocal given
            while True:
                await asyncio.sleep(0)
                given += 1

        async with asyncio.TaskGroup() as tasks:
            others = tasks.create_task(other())
            await asyncio.sleep(0)
            turns = LoopYielder()
            for _ in range(steps):
                now_s += step_s
                await turns.step()
            others.cancel()
        return given

    assert asyncio.run(turns_of(10_000, step_s=TURN_S / 20_000)) == 0
    assert asyncio.run(turns_of(10, step_s=1.0)) >= 9


def test_map_yielding_keeps_the_order_and_gives_other_tasks_their_turns() -> None:
    async def main() -> None:
        turns_given = 0

        async def others() -> None:
            nonlocal turns_given
            while True:
                turns_given += 1
                await asyncio.sleep(0)

        def work(item: int) -> int:
            ends_s = time.monotonic() + TURN_S
            while time.monotonic() < ends_s:
                pass
            return -item

        waiting = asyncio.ensure_future(others())
        assert await map_yielding(work, range(10)) == [-item for item in range(10)]
        waiting.cancel()
        assert turns_given >= 9

    asyncio.run(main())


def test_of_many_large_steps_one_is_done_in_each_turn_of_the_loop_and_others_come_between_them() -> None:
    done: list[object] = []

    async def large(turns: OnePerLoopTurn, number: int) -> None:
        await turns.take()
        done.append(number)

    async def main() -> None:
        turns = OnePerLoopTurn()
        large_steps = [asyncio.ensure_future(large(turns, number)) for number in range(3)]
        leaving = asyncio.ensure_future(large(turns, 99))
        last = asyncio.ensure_future(large(turns, 3))
        await asyncio.sleep(0)
        leaving.cancel()
        while not last.done():
            done.append("another")
            await asyncio.sleep(0)
        await asyncio.gather(*large_steps)
        await turns.take()  # and it is free again

    asyncio.run(main())
    assert [step for step in done if step != "another"] == [0, 1, 2, 3]
    assert all(done[done.index(number) + 1] == "another" for number in range(3))
