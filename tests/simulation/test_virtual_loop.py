from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.virtual_loop import EPOCH_MS, Stuck, run, virtual_loop


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> tuple[float, int]:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time(), virtual_loop().now_ms()

    assert run(main()) == (3600.0, EPOCH_MS + 3_600_000)


def test_a_sleep_gives_its_result_and_one_of_no_time_waits_for_a_pass() -> None:
    async def main() -> tuple[str, str, list[str]]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "the pass")
        at_once = await asyncio.sleep(0, "at once")
        return at_once, await asyncio.sleep(1, "later"), seen

    assert run(main()) == ("at once", "later", ["the pass"])


def test_a_sleep_that_is_cancelled_at_the_instant_of_its_end_ends_once() -> None:
    async def main() -> str:
        async def slept() -> str:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                return "cancelled"
            return "slept"

        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[str]] = []
        loop.call_at(1.0, lambda: tasks[0].cancel())
        tasks.append(loop.create_task(slept()))
        return await tasks[0]

    assert run(main()) == "cancelled"


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def wake(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((name, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as tasks:
            for name, after_s in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
                tasks.create_task(wake(name, after_s))
        return seen

    assert run(main()) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_timers_of_one_instant_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        loop, seen = asyncio.get_running_loop(), list[int]()
        for number in range(20):
            loop.call_at(1.0, seen.append, number)
        await asyncio.sleep(2)
        return seen

    assert run(main()) == list(range(20))


def test_a_cancelled_timer_neither_fires_nor_moves_the_clock() -> None:
    async def main() -> tuple[list[str], float]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.call_later(5, seen.append, "cancelled").cancel()
        loop.call_later(1, seen.append, "kept")
        await asyncio.sleep(2)
        return seen, loop.time()

    assert run(main()) == (["kept"], 2.0)


def test_a_timeout_strikes_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert run(main()) == 30.0


def test_a_deadlock_is_reported_with_the_line_at_which_each_task_waits() -> None:
    async def waits_endlessly() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(waits_endlessly())

    with pytest.raises(Stuck, match=r"(?s)deadlock at 0\.000 s.*waits_endlessly.*test_virtual_loop\.py:\d+"):
        run(main())


def test_a_loop_that_waits_for_nothing_is_stopped() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match=r"the clock stands at 0\.000 s"):
        run(main())


def test_threads_run_inline_and_their_errors_reach_who_waits() -> None:
    def fail() -> None:
        raise ValueError("from the thread")

    async def main() -> int:
        with pytest.raises(ValueError, match="from the thread"):
            await asyncio.to_thread(fail)
        return await asyncio.to_thread(sum, (1, 2, 3))

    assert run(main()) == 6


def test_sockets_are_refused() -> None:
    async def main() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises(NotImplementedError):
        run(main())


def test_an_error_that_is_not_awaited_fails_the_run() -> None:
    def fail() -> None:
        raise ValueError("not awaited")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="not awaited"):
        run(main())


def test_tasks_that_main_leaves_behind_are_cancelled() -> None:
    ended: list[str] = []

    async def lingers() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        left_behind.append(asyncio.get_running_loop().create_task(lingers()))
        await asyncio.sleep(1)

    left_behind: list[asyncio.Task[None]] = []
    run(main())
    assert ended == ["cancelled"]


def ticking(name: str, seen: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def tick() -> None:
        for second in range(1, 5):
            await asyncio.sleep(1)
            seen.append(f"{name}{second} at {asyncio.get_running_loop().time():g}")

    return tick


def test_a_frozen_process_does_nothing_until_it_thaws_and_then_catches_up() -> None:
    async def main() -> list[str]:
        loop, seen = virtual_loop(), list[str]()
        task = loop.create_task(ticking("z", seen)(), context=loop.context_of("zombie"))
        await asyncio.sleep(1.5)
        loop.freeze("zombie")
        await asyncio.sleep(10)
        loop.thaw("zombie")
        await task
        return seen

    assert run(main()) == ["z1 at 1", "z2 at 11.5", "z3 at 12.5", "z4 at 13.5"]


def test_a_process_that_is_never_thawed_dies_without_a_last_word() -> None:
    seen: list[str] = []

    async def victim() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("finally")

    async def main() -> list[str]:
        loop = virtual_loop()
        task = loop.create_task(victim(), context=loop.context_of("victim"))
        await asyncio.sleep(0.5)
        loop.freeze("victim")
        await asyncio.sleep(100)
        assert not task.done()
        return list(seen)

    assert run(main()) == []


def test_children_and_timers_of_a_process_freeze_with_it() -> None:
    async def main() -> list[str]:
        loop, seen = virtual_loop(), list[str]()

        async def parent() -> None:
            loop.call_later(2, seen.append, "timer")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ticking("child", seen)())

        task = loop.create_task(parent(), context=loop.context_of("p"))
        await asyncio.sleep(0.5)
        loop.freeze("p")
        await asyncio.sleep(10)
        assert not task.done()
        return list(seen)

    assert run(main()) == []


async def interleaving() -> list[int]:
    seen: list[int] = []

    async def steps(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(steps(number))
    return seen


def test_shuffling_finds_other_orders_and_the_same_seed_finds_the_same() -> None:
    in_order = run(interleaving())
    assert in_order == list(range(6)) * 3
    found = {seed: run(interleaving(), seed=seed, shuffled=True) for seed in range(5)}
    assert all(sorted(order) == sorted(in_order) for order in found.values())
    assert len({tuple(order) for order in found.values()}) == 5
    assert all(run(interleaving(), seed=seed, shuffled=True) == order for seed, order in found.items())


def test_shuffling_never_moves_a_plain_callback_or_a_task_across_one() -> None:
    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()

        async def step(name: str) -> None:
            seen.append(name)

        tasks = [loop.create_task(step("before")), loop.create_task(step("before"))]
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        tasks.append(loop.create_task(step("after")))
        await asyncio.wait(tasks)
        return seen

    for seed in range(10):
        assert run(main(), seed=seed, shuffled=True) == ["before", "before", "first", "second", "after"]


def test_a_cancelled_group_ends_in_the_same_order_in_every_run() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def waits(number: int) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                seen.append(number)

        async def fails() -> None:
            await asyncio.sleep(1)
            raise ValueError

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(50):
                    tasks.create_task(waits(number))
                tasks.create_task(fails())

        with pytest.raises(ExceptionGroup):
            await group()
        return seen

    assert run(main()) == run(main()) == list(range(50))
