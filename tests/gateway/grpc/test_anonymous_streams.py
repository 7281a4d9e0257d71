"""Streams without authentication: without room, a stream of the address with the most streams ends, and no other."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc.anonymous_streams import FEW, TAKE_S, AnonymousStreamLimiter
from metadata.errors import Throttled
from tests.simulation.virtual_loop import run


class Call:
    """As much of a ServicerContext as a place asks for."""

    def __init__(self, address: str, connection: int) -> None:
        self._peer = f"ipv4:{address}:{connection}"
        self._reported: list[Any] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, reported: Any) -> None:
        self._reported.append(reported)

    def is_done(self) -> None:
        while self._reported:
            self._reported.pop()(self)


class Endpoint:
    """Holds streams until they are ended."""

    def __init__(self, streams_max: int, *, clients_read: bool = True) -> None:
        """`clients_read`: calls that have ended are done."""
        self.cut: list[str] = []
        self.watches: Any = AnonymousStreamLimiter(streams_max, self._cut_off)
        self.clients_read = clients_read
        self.calls: list[Call] = []
        self.streams: list[tuple[str, asyncio.Task[None]]] = []

    async def open(self, address: str) -> asyncio.Task[None]:
        stream = asyncio.ensure_future(self._hold(address))
        self.streams.append((address, stream))
        await asyncio.sleep(0.001)
        return stream

    async def _hold(self, address: str) -> None:
        call = Call(address, len(self.calls))
        self.calls.append(call)
        try:
            async with self.watches.slot(call):
                await asyncio.get_running_loop().create_future()
        finally:
            if self.clients_read:
                call.is_done()

    def _cut_off(self, peers: Collection[str]) -> int:
        """Ends their calls, as gRPC does with those of a connection that is gone."""
        self.cut += sorted(peers)
        for call in self.calls:
            if call.peer() in peers:
                call.is_done()
        return len(peers)

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
        assert not self.watches._untaken
        assert not self.watches._not_done


def test_a_stream_beyond_the_bound_ends_the_oldest_of_the_address_with_the_most() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=4)
        load_balancer = await endpoint.open("10.0.0.1")
        outsider = [await endpoint.open("10.0.0.9") for _ in range(10)]
        assert [stream.done() for stream in outsider] == [True] * 7 + [False] * 3
        assert not load_balancer.done()
        assert len(endpoint.watches) == 4
        later = await endpoint.open("10.0.0.2")
        assert outsider[7].done()
        assert not later.done()
        assert set(endpoint.ended()) == {"10.0.0.9"}
        await endpoint.close()

    run(scenario())


def test_a_slot_of_an_ended_call_is_free() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=1)
        for _ in range(3):
            stream = await endpoint.open("10.0.0.1")
            stream.cancel()
            await asyncio.wait((stream,))
        await endpoint.open("10.0.0.2")
        assert not endpoint.ended()
        await endpoint.close()

    run(scenario())


def test_an_address_that_reads_no_answers_is_refused_new_streams_and_others_are_not() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=4, clients_read=False)
        outsider = [await endpoint.open("10.0.0.9") for _ in range(10)]
        assert [stream.done() for stream in outsider] == [True, True] + [False] * 4 + [True] * 4
        assert endpoint.watches._not_done == {"10.0.0.9": 6}, "four with places, and half as many that are untaken"
        load_balancer = await endpoint.open("10.0.0.1")
        assert not load_balancer.done()
        endpoint.calls[0].is_done()
        endpoint.calls[1].is_done()
        later = await endpoint.open("10.0.0.9")
        assert not later.done()
        await endpoint.close()

    run(scenario())


def test_clients_that_take_nothing_hold_together_what_one_may_and_a_few_each() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=20, clients_read=False)
        addresses = [f"10.0.0.{number}" for number in range(50)]
        for address in addresses:
            for _ in range(3 * FEW):
                await endpoint.open(address)
        assert len(endpoint.watches) == 20
        assert max(endpoint.watches._not_done[address] for address in addresses[10:]) == FEW
        assert endpoint.watches._not_done.total() <= 20 + 10 + FEW * len(addresses)
        assert not endpoint.cut, "all of it came within a moment"
        await endpoint.close()

    run(scenario())


def test_an_address_that_reads_its_answers_is_not_refused_because_others_read_none() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=20, clients_read=False)
        load_balancer = [await endpoint.open("10.0.0.1") for _ in range(FEW)]
        for address in ("10.0.0.7", "10.0.0.8", "10.0.0.9"):
            for _ in range(30):
                await endpoint.open(address)
        assert len(endpoint.watches._untaken) >= 10
        load_balancer.append(await endpoint.open("10.0.0.1"))
        assert not any(stream.done() for stream in load_balancer)
        load_balancer[0].cancel()
        await asyncio.wait(load_balancer[:1])
        refused = await endpoint.open("10.0.0.1")
        assert "1 of them by this address" in str(refused.exception()), "it has to take that one first"
        await endpoint.close()

    run(scenario())


def test_untaken_calls_of_fifty_addresses_are_at_most_about_four_times_the_slots() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=500, clients_read=False)
        for number in range(50):
            refused = False
            while not refused:
                stream = await endpoint.open(f"10.0.0.{number}")
                refused = stream.done() and "wait to be taken" in str(stream.exception())
        assert not endpoint.cut, "all of it came within a moment"
        assert len(endpoint.watches._untaken) < 4.5 * 500
        await endpoint.close()

    run(scenario())


@pytest.mark.parametrize("found", [0, 2])
def test_a_cut_of_connections_is_logged_only_if_it_found_any(found: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    looked_in: list[int] = []

    def cut_off(peers: Collection[str]) -> int:
        looked_in.append(threading.get_ident())
        return found

    async def scenario() -> None:
        endpoint = Endpoint(streams_max=2, clients_read=False)
        endpoint.watches._cut_off = cut_off
        for _ in range(3):
            await endpoint.open("10.0.0.9")
        endpoint.watches._untaken = dict.fromkeys(endpoint.watches._untaken, asyncio.get_running_loop().time() - TAKE_S)
        await endpoint.open("10.0.0.1")
        async with asyncio.timeout(10):
            await endpoint.watches._cutting
        await asyncio.sleep(0.01)
        await endpoint.close()

    asyncio.run(scenario())
    assert len(looked_in) == 1
    assert looked_in != [threading.get_ident()], "the loop goes on meanwhile"
    assert ("cut off" in caplog.text) is (found > 0)


def test_connections_that_took_nothing_for_long_are_cut_off_once_their_calls_are_many() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=4, clients_read=False)
        for address in ("10.0.0.8", "10.0.0.9"):
            for _ in range(4):
                await endpoint.open(address)
        assert len(endpoint.watches._untaken) == 4
        await asyncio.sleep(TAKE_S)
        untaken_since_a_moment = await endpoint.open("10.0.0.1")
        untaken_since_a_moment.cancel()
        await asyncio.wait((untaken_since_a_moment,))
        assert endpoint.cut == ["ipv4:10.0.0.8:0", "ipv4:10.0.0.8:1", "ipv4:10.0.0.9:4", "ipv4:10.0.0.9:5"]
        assert endpoint.watches._not_done == {"10.0.0.8": 2, "10.0.0.9": 2, "10.0.0.1": 1}, "those with places stay"
        await endpoint.close()

    run(scenario())


def test_a_few_unread_answers_do_not_cut_a_connection() -> None:
    async def scenario() -> None:
        endpoint = Endpoint(streams_max=4, clients_read=False)
        stream = await endpoint.open("10.0.0.8")
        stream.cancel()
        await asyncio.sleep(10 * TAKE_S)
        await endpoint.open("10.0.0.9")
        assert not endpoint.cut
        await endpoint.close()

    run(scenario())


@given(st.integers(1, 6), st.lists(st.sampled_from("abcd"), max_size=40))
def test_streams_of_an_address_within_its_fair_share_are_never_ended(streams_max: int, arrivals: list[str]) -> None:
    """A fair share: no more streams than the places by the number of addresses that there ever were."""

    async def scenario() -> None:
        endpoint = Endpoint(streams_max)
        for address in arrivals:
            await endpoint.open(address)
            assert len(endpoint.watches) <= streams_max
        wanted = Counter(arrivals)
        modest = {address for address in wanted if wanted[address] * len(wanted) <= streams_max}
        assert not modest & set(endpoint.ended())
        if arrivals:
            await endpoint.close()

    run(scenario())
