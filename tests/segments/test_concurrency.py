"""Works beside each other: who waits for them gets all results or one error, and is cancelled whenever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from metadata.errors import TidelogError, Unavailable
from metadata.model import Partition
from segments.concurrency import gather_all
from segments.history.manifest_store import newest_manifests
from segments.object_store.interface import ListPage
from segments.object_store.memory import MemoryObjectStore
from segments.recovery.takeover_prefetch import TakeoverPrefetch
from segments.settings import SegmentSettings
from tests.kit.segments.batches import ORDERS, led

# Of the event loop, between a failure and a cancellation.
TURNS = range(6)


class FailsBeside(MemoryObjectStore):
    """What lists under `failing` fails when `fails` is set; other listings hang, and take a while to end."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self._failing = failing
        self.fails = asyncio.Event()

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        if self._failing in prefix:
            await self.fails.wait()
            raise Unavailable("503")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(2)  # a connection that is closed
        raise AssertionError("no answer")


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def is_cancelled(work: Callable[[], Awaitable[object]], fails: asyncio.Event, *, after: int) -> bool:
    """Whether who goes on behind the error of a work is cancelled, so many turns after it failed."""

    async def goes_on() -> None:
        with suppress(TidelogError):
            await work()
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(goes_on())
    await turns(5)
    fails.set()
    await turns(after)
    task.cancel()
    await turns(20)
    lost = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return not lost


def test_all_results_come_in_order() -> None:
    async def answer(number: int) -> int:
        await turns(3 - number)
        return number

    async def run() -> None:
        assert await gather_all(map(answer, range(3))) == [0, 1, 2]
        assert await gather_all(map(answer, range(0))) == []

    asyncio.run(run())


def test_the_first_error_comes_as_it_is_and_the_others_have_ended() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise LookupError("of a test")

    async def stays() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(3)
            ended.append("stays")

    async def run() -> None:
        with pytest.raises(LookupError, match="of a test"):
            await gather_all([stays(), fails(), stays()])
        assert ended == ["stays", "stays"]

    asyncio.run(run())


def test_a_failure_does_not_count_as_a_cancellation() -> None:
    """A TaskGroup leaves one behind in Python 3.11: time limits around it end their owner, in place of a TimeoutError."""

    async def fails() -> None:
        await turns(1)
        raise LookupError("of a test")

    async def run() -> None:
        with pytest.raises(LookupError):
            await gather_all([fails(), asyncio.sleep(1_000)])
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(run())


def test_a_work_that_makes_an_error_of_a_cancellation_does_not_hide_it() -> None:
    async def complains() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise Unavailable("the connection was closed") from None

    async def run() -> None:
        task = asyncio.ensure_future(gather_all([complains(), complains()]))
        await turns(2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("after", TURNS)
def test_a_cancellation_beside_a_failure_is_not_lost(after: int) -> None:
    async def run() -> None:
        store = FailsBeside("fails")
        works = lambda: gather_all(store.list(prefix) for prefix in ("fails", "hangs"))  # noqa: E731
        assert await is_cancelled(works, store.fails, after=after)

    asyncio.run(run())


@pytest.mark.parametrize("after", TURNS)
def test_reading_ahead_that_fails_can_be_cancelled(after: int) -> None:
    """It goes on behind errors: a session that ended in that moment stayed open, and no other began."""

    async def run() -> None:
        store = FailsBeside(f"{3:016x}")
        ahead = TakeoverPrefetch(store, SegmentSettings())
        assert await is_cancelled(lambda: ahead.read({ORDERS: [led(3), led(4)]}), store.fails, after=after)

    asyncio.run(run())


@pytest.mark.parametrize("after", TURNS)
def test_reading_manifests_that_fails_can_be_cancelled(after: int) -> None:
    topics = {ORDERS: "a", ORDERS._replace(partition=Partition(1)): "b"}

    async def run() -> None:
        store = FailsBeside("/a/")
        assert await is_cancelled(lambda: newest_manifests(store, topics), store.fails, after=after)

    asyncio.run(run())
