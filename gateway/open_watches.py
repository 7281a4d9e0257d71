"""Streams that anybody may open and hold for as long as he likes, health and reflection: so many at a time, shared by address.

    a new stream ─▶ a place is free: it has it
                 └▶ none is: the oldest stream of the address that has most is ended, its own address included

So who opens thousands of them ends his own, and never comes to hold the calls that the door has for others. Invariant: at most
`streams_max` are open, and each that is ended is told why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metadata.errors import Throttled


class OpenWatches:
    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._of: dict[str, list[asyncio.Timeout]] = {}
        """By address, the oldest first."""

    def __len__(self) -> int:
        return sum(len(places) for places in self._of.values())

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Runs the body of a stream of this address; interrupted with Throttled when its place is another's."""
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
