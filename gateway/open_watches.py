"""Calls that anybody may open and hold for as long as he likes, health and reflection: so many at a time, shared by address.

    a new call ─▶ a place is free: it has it
               └▶ none is: the oldest call of the address that has most is ended, its own address included

    answered ─▶ its client takes the answer: done
             └▶ it takes nothing: the call is held. An address with too many of these is refused more, which needs no window

So who opens thousands of them ends his own, and one whose client takes nothing of its answers is refused before it holds the calls
that the door has for others. Of a stream that was ended nobody can tell that: gRPC says that it is done once it has its status, and
holds it for a client that takes nothing until the connection ends (docs/known-gaps.md).
Invariants: at most `streams_max` have places, and of one address at most half as many more are not done; each that is ended is
told why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from gateway.grpc_calls import client_host
from metadata.errors import Throttled

if TYPE_CHECKING:
    from gateway.grpc_calls import Context


class OpenWatches:
    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._untaken_max = max(1, streams_max // 2)
        self._of: dict[str, list[asyncio.Timeout]] = {}
        """By address, the oldest first."""
        self._not_done: Counter[str] = Counter()
        """By address: those with a place, and those that were answered and whose client has not taken it."""

    def __len__(self) -> int:
        """How many have places."""
        return sum(len(places) for places in self._of.values())

    @asynccontextmanager
    async def place(self, context: Context) -> AsyncIterator[None]:
        """Runs the body of a call; interrupted with Throttled when its place is another's.

        Throttled at once where too many answers to its address were not taken.
        """
        address = client_host(context)
        self._check(address)
        self._not_done[address] += 1
        context.add_done_callback(partial(self._done, address))  # type: ignore[arg-type]  # as in open_calls.py
        try:
            async with asyncio.timeout(None) as place:
                self._of.setdefault(address, []).append(place)
                if len(self) > self._streams_max:
                    self._end_one()
                try:
                    yield
                finally:
                    self._leave(address, place)
        except TimeoutError:
            if not place.expired():
                raise
            raise Throttled(
                f"{self._streams_max} streams of health and reflection are open at this broker, which is all that it has: this "
                "was the oldest of the address that has most of them",
                hint="Watch the health once from each client, and end streams that are not used.",
            ) from None

    def _check(self, address: str) -> None:
        untaken = self._not_done[address] - len(self._of.get(address, ()))
        if untaken >= self._untaken_max:
            raise Throttled(
                f"{untaken} answers of health and reflection wait for this address to take them, which is all that may",
                hint="Read the answers, or close the connection.",
            )

    def _done(self, address: str, _: object) -> None:
        self._not_done[address] -= 1
        if not self._not_done[address]:
            del self._not_done[address]

    def _end_one(self) -> None:
        address, places = max(self._of.items(), key=lambda held: len(held[1]))
        oldest = places[0]
        self._leave(address, oldest)
        oldest.reschedule(asyncio.get_running_loop().time())

    def _leave(self, address: str, place: asyncio.Timeout) -> None:
        """Nothing where it has left already."""
        places = self._of.get(address, [])
        if place in places:
            places.remove(place)
            if not places:
                del self._of[address]
