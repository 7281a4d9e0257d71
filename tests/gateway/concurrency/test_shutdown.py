from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.shutdown import InterruptibleWaits
from metadata.errors import Stopping


def test_a_stop_ends_all_waits_and_lets_none_begin() -> None:
    async def scenario() -> None:
        waits = InterruptibleWaits()

        async def wait() -> None:
            async with waits.until_stop():
                await asyncio.Event().wait()

        async with asyncio.timeout(60):
            waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            waits.stop()
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [Stopping] * 3
        with pytest.raises(Stopping):
            await wait()

    asyncio.run(scenario())


def test_a_wait_that_ends_by_itself_is_left_alone() -> None:
    async def scenario() -> None:
        waits = InterruptibleWaits()
        async with waits.until_stop():
            found = await asyncio.sleep(0, 7)
        waits.stop()
        assert found == 7

    asyncio.run(scenario())


def test_another_time_out_inside_is_not_taken_for_a_stop() -> None:
    async def scenario() -> None:
        waits = InterruptibleWaits()
        with pytest.raises(TimeoutError):
            async with waits.until_stop(), asyncio.timeout(0):
                await asyncio.Event().wait()

    asyncio.run(scenario())


def test_a_cancelled_task_stays_cancelled() -> None:
    async def scenario() -> None:
        waits = InterruptibleWaits()

        async def wait() -> None:
            async with waits.until_stop():
                await asyncio.Event().wait()

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
