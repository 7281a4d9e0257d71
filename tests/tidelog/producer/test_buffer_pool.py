"""Who waits for room in the buffer, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from metadata.errors import Rejected, Throttled
from tests.kit.tidelog.producing import until
from tidelog.producer.accumulator import RecordAccumulator
from tidelog.producer.buffer_pool import BufferPool
from tidelog.settings import ClientSettings


def with_room(test: Callable[[RecordAccumulator, BufferPool], Awaitable[None]], *, timeout_s: float = 20.0) -> None:
    """1,000 bytes, of which 900 are taken."""

    async def run() -> None:
        accumulator = RecordAccumulator(ClientSettings())
        accumulator.buffered_bytes = 900
        async with asyncio.timeout(60):
            await test(accumulator, BufferPool(accumulator, bytes_max=1_000, timeout_s=timeout_s))

    asyncio.run(run())


def test_room_is_given_in_the_order_of_coming_whatever_the_size() -> None:
    async def test(accumulator: RecordAccumulator, room: BufferPool) -> None:
        got: list[int] = []

        async def wait(size: int) -> None:
            await room.wait(size)
            got.append(size)

        async with asyncio.TaskGroup() as tasks:
            for size in (500, 50, 400):
                tasks.create_task(wait(size))
            await until(lambda: len(room.waiting) == 3)
            assert got == [], "there is room for the second, but it came second"
            accumulator.buffered_bytes -= 450
            room.admit()
            await until(lambda: got == [500, 50])
            assert accumulator.buffered_bytes == 1_000
            accumulator.buffered_bytes -= 900
            room.admit()
        assert got == [500, 50, 400]
        assert accumulator.buffered_bytes == 500

    with_room(test)


def test_a_producer_that_gives_up_at_the_head_of_the_queue_lets_the_others_through() -> None:
    async def test(accumulator: RecordAccumulator, room: BufferPool) -> None:
        large, small = asyncio.create_task(room.wait(500)), asyncio.create_task(room.wait(50))
        await until(lambda: len(room.waiting) == 2)
        large.cancel()
        await small
        assert accumulator.buffered_bytes == 950
        assert not room.waiting

    with_room(test)


def test_a_producer_that_is_cancelled_in_the_moment_of_getting_room_gives_it_back() -> None:
    async def test(accumulator: RecordAccumulator, room: BufferPool) -> None:
        first, second = asyncio.create_task(room.wait(500)), asyncio.create_task(room.wait(500))
        await until(lambda: len(room.waiting) == 2)
        accumulator.buffered_bytes = 400
        room.admit()
        first.cancel()
        await second
        assert accumulator.buffered_bytes == 900
        assert first.cancelled()

    with_room(test)


def test_waiting_has_an_end() -> None:
    async def test(accumulator: RecordAccumulator, room: BufferPool) -> None:
        with pytest.raises(Throttled, match=r"the buffer \(1000 bytes\) stayed full for 10 ms"):
            await room.wait(500)
        assert (accumulator.buffered_bytes, len(room.waiting)) == (900, 0)

    with_room(test, timeout_s=0.01)


def test_a_close_raises_an_error_of_its_own_to_every_waiter() -> None:
    async def test(accumulator: RecordAccumulator, room: BufferPool) -> None:
        waiting = [asyncio.create_task(room.wait(500)) for _ in range(3)]
        await until(lambda: len(room.waiting) == 3)
        room.close(Rejected("the client is closed"))
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in errors] == ["the client is closed"] * 3
        assert len({id(error) for error in errors}) == 3
        assert accumulator.buffered_bytes == 900

    with_room(test)
