"""Streams that anybody may open: they come to an end where their address holds most, and nobody else's does."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.open_watches import OpenWatches
from metadata.errors import Throttled
from tests.simulation.virtual_loop import run


class Door:
    """Holds streams until they are ended."""

    def __init__(self, streams_max: int) -> None:
        self.watches = OpenWatches(streams_max)
        self.streams: list[tuple[str, asyncio.Task[None]]] = []

    async def open(self, address: str) -> asyncio.Task[None]:
        stream = asyncio.ensure_future(self._hold(address))
        self.streams.append((address, stream))
        await asyncio.sleep(0.001)
        return stream

    async def _hold(self, address: str) -> None:
        async with self.watches.place(address):
            await asyncio.get_running_loop().create_future()

    def ended(self) -> list[str]:
        done = [(address, stream) for address, stream in self.streams if stream.done() and not stream.cancelled()]
        return [address for address, stream in done if isinstance(stream.exception(), Throttled)]

    async def close(self) -> None:
        for _, stream in self.streams:
            stream.cancel()
        await asyncio.wait([stream for _, stream in self.streams])
        assert not len(self.watches)


def test_who_opens_too_many_ends_the_oldest_of_his_own() -> None:
    async def scenario() -> None:
        door = Door(streams_max=4)
        load_balancer = await door.open("10.0.0.1")
        stranger = [await door.open("10.0.0.9") for _ in range(10)]
        assert [stream.done() for stream in stranger] == [True] * 7 + [False] * 3
        assert not load_balancer.done()
        assert len(door.watches) == 4
        later = await door.open("10.0.0.2")
        assert stranger[7].done()
        assert not later.done()
        assert set(door.ended()) == {"10.0.0.9"}
        await door.close()

    run(scenario())


def test_a_place_that_was_left_is_free() -> None:
    async def scenario() -> None:
        door = Door(streams_max=1)
        for _ in range(3):
            stream = await door.open("10.0.0.1")
            stream.cancel()
            await asyncio.wait((stream,))
        await door.open("10.0.0.2")
        assert not door.ended()
        await door.close()

    run(scenario())


@given(st.integers(1, 6), st.lists(st.sampled_from("abcd"), max_size=40))
def test_nobody_with_a_fair_share_is_ended(streams_max: int, arrivals: list[str]) -> None:
    """A fair share: no more streams than the places by the number of addresses that there ever were."""

    async def scenario() -> None:
        door = Door(streams_max)
        for address in arrivals:
            await door.open(address)
            assert len(door.watches) <= streams_max
        wanted = Counter(arrivals)
        modest = {address for address in wanted if wanted[address] * len(wanted) <= streams_max}
        assert not modest & set(door.ended())
        if arrivals:
            await door.close()

    run(scenario())
