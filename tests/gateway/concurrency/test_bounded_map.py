"""Work for many items runs a few at a time, and its results keep the order of the items."""

from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.bounded_map import map_bounded


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_results_keep_the_order_of_the_items_and_few_run_at_once(count: int) -> None:
    running = peak = 0

    async def work(item: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running, len(asyncio.all_tasks()) - 1)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        running -= 1
        return 10 * item

    assert asyncio.run(map_bounded(work, range(count), at_once=4)) == [10 * each for each in range(count)]
    assert peak <= 4


def test_the_first_error_ends_the_others() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        if item == 3:
            raise LookupError(item)
        done.append(item)

    with pytest.raises(LookupError):
        asyncio.run(map_bounded(work, range(100), at_once=4))
    assert len(done) < 20
