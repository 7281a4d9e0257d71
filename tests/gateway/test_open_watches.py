"""Streams that anybody may open: they come to an end where their address holds most, and nobody else's does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.open_watches import OpenWatches
from metadata.errors import Throttled
from tests.simulation.virtual_loop import run


class Call:
    """As much of a ServicerContext as a place asks for."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._told: list[Any] = []

    def peer(self) -> str:
        return f"ipv4:{self._address}:4711"

    def add_done_callback(self, told: Any) -> None:
        self._told.append(told)

    def is_done(self) -> None:
        while self._told:
            self._told.pop()(self)


class Door:
    """Holds streams until they are ended."""

    def __init__(self, streams_max: int, *, clients_read: bool = True) -> None:
        """`clients_read`: calls that have ended are done."""
        self.watches: Any = OpenWatches(streams_max)
        self.clients_read = clients_read
        self.calls: list[Call] = []
        self.streams: list[tuple[str, asyncio.Task[None]]] = []

    async def open(self, address: str) -> asyncio.Task[None]:
        stream = asyncio.ensure_future(self._hold(address))
        self.streams.append((address, stream))
        await asyncio.sleep(0.001)
        return stream

    async def _hold(self, address: str) -> None:
        call = Call(address)
        self.calls.append(call)
        try:
            async with self.watches.place(call):
                await asyncio.get_running_loop().create_future()
        finally:
            if self.clients_read:
                call.is_done()

    def ended(self) -> list[str]:
        done = [(address, stream) for address, stream in self.streams if stream.done() and not stream.cancelled()]
        return [address for address, stream in done if isinstance(stream.exception(), Throttled)]

    async def close(self) -> None:
        for _, stream in self.streams:
            stream.cancel()
        await asyncio.wait([stream for _, stream in self.streams])
        assert not len(self.watches)
        for call in self.calls:
            call.is_done()
        assert not self.watches._not_done


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


def test_who_takes_nothing_of_what_he_is_told_is_refused_more_and_others_are_not() -> None:
    async def scenario() -> None:
        door = Door(streams_max=4, clients_read=False)
        stranger = [await door.open("10.0.0.9") for _ in range(10)]
        assert [stream.done() for stream in stranger] == [True, True] + [False] * 4 + [True] * 4
        assert len(door.watches._not_done) == 1
        assert door.watches._not_done["10.0.0.9"] == 6, "four with places, and half as many that are not done"
        load_balancer = await door.open("10.0.0.1")
        assert not load_balancer.done()
        door.calls[0].is_done()
        door.calls[1].is_done()
        later = await door.open("10.0.0.9")
        assert not later.done()
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
