"""Tasks that end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidelog.tasks import first_completed, gather_all


def test_the_first_that_ends_gives_the_answer_and_the_others_are_ended() -> None:
    ended: list[str] = []

    async def answers() -> int:
        return 7

    async def stays() -> int:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("stays")
        return 0

    async def run() -> None:
        assert await first_completed(stays(), answers()) == 7
        assert ended == ["stays"]

    asyncio.run(run())


def test_an_error_of_the_first_completed_task_is_raised_unchanged() -> None:
    async def fails() -> None:
        raise LookupError("of a test")

    async def run() -> None:
        with pytest.raises(LookupError, match="of a test"):
            await first_completed(asyncio.sleep(1_000), fails())

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("wait_for", [lambda *works: first_completed(*works), lambda *works: gather_all(works, at_once=2)])
def test_a_cancellation_that_comes_together_with_an_error_is_not_lost(
    wait_for: Callable[..., Coroutine[Any, Any, object]], turns: int
) -> None:
    async def run() -> None:
        fault = asyncio.Event()

        async def fails() -> None:
            await fault.wait()
            raise LookupError("of a test")

        async def ends_late() -> None:
            await asyncio.get_running_loop().create_future()

        work = asyncio.ensure_future(wait_for(fails(), ends_late()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        fault.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()

    asyncio.run(run())


def test_many_are_answered_in_order_so_many_at_a_time() -> None:
    under_way: list[int] = []
    most = 0

    async def answer(number: int) -> int:
        nonlocal most
        under_way.append(number)
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.remove(number)
        return number

    async def run() -> None:
        assert await gather_all(map(answer, range(20)), at_once=3) == list(range(20))
        assert await gather_all([], at_once=3) == []

    asyncio.run(run())
    assert most == 3


def test_the_error_of_one_of_many_ends_all_also_those_that_had_no_turn_yet() -> None:
    begun: list[int] = []

    async def answer(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise LookupError("of a test")
        await asyncio.get_running_loop().create_future()

    async def run() -> None:
        with pytest.raises(LookupError, match="of a test"):
            await gather_all(map(answer, range(10)), at_once=2)
        assert len(begun) < 10
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
