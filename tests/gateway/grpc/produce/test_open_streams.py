"""A stop waits for producers that are about to leave, and for no stream without requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from gateway.grpc.produce.open_streams import ProducerStreams
from tests.simulation.virtual_loop import run, virtual_loop


def waiting(scenario: Callable[[ProducerStreams], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(ProducerStreams())

    run(main())


async def waited_s(streams: ProducerStreams, *, is_left: bool = True) -> float:
    began_s = virtual_loop().time()
    assert await streams.until_left(in_use_s=1.0, timeout_s=2.0) is is_left
    return virtual_loop().time() - began_s


def test_a_stopping_broker_does_not_wait_without_open_streams() -> None:
    async def scenario(streams: ProducerStreams) -> None:
        assert await waited_s(streams) == 0
        with streams.open():
            await asyncio.sleep(1)
            assert await waited_s(streams) == 0
        with streams.open():
            pass
        assert await waited_s(streams) == 0

    waiting(scenario)


def test_streams_that_brought_something_lately_are_waited_for_until_each_was_left() -> None:
    async def scenario(streams: ProducerStreams) -> None:
        with ExitStack() as one, ExitStack() as other:
            for stack, left_after_s in ((one, 0.3), (other, 0.7)):
                stack.enter_context(streams.open())
                virtual_loop().call_later(left_after_s, stack.close)
            assert await waited_s(streams) == pytest.approx(0.7)

    waiting(scenario)


def test_a_producer_that_stays_and_has_fallen_silent_is_let_go_of() -> None:
    async def scenario(streams: ProducerStreams) -> None:
        with streams.open() as heard:
            virtual_loop().call_later(0.5, heard)
            assert await waited_s(streams) == pytest.approx(1.5)

    waiting(scenario)


def test_a_stopping_broker_waits_a_bounded_time_for_a_stream_that_never_learns_its_leaders() -> None:
    async def scenario(streams: ProducerStreams) -> None:
        with streams.open() as heard:
            for n in range(40):
                virtual_loop().call_later(n / 10, heard)
            assert await waited_s(streams, is_left=False) == pytest.approx(2)

    waiting(scenario)
