"""Calls that anybody may open and hold for as long as he likes, health and reflection: so many at a time, shared by address.

    a new call ─▶ a place is free: it has it
               └▶ none is: the oldest call of the address that has most is ended, its own address included

    answered, or ended ─▶ its client takes what it was told: done
                       └▶ it takes nothing: gRPC holds the call, which is untaken until its connection ends
                            many of one address  ─▶ it is refused more, which needs no window
                            many of all together ─▶ an address with a FEW calls is refused more, if some of these are untaken, and
                                                    the connections of those that were not taken for TAKE_S are cut off

So who opens thousands of them ends his own, and clients that take nothing hold none of the calls that the door has for others, from
one address or from fifty.
Invariants: at most `streams_max` have places; each that is ended is told why, as soon as it listens; who takes all his answers is
not refused for others who take none. Untaken are at most half as many as have places, and a FEW of each address, and those that a
new address has ended of others before any of its own was. These are a k-th of the places for the k-th address: fifty addresses
leave some four times the places untaken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.grpc.calls import client_host
from metadata.errors import Throttled

if TYPE_CHECKING:
    from gateway.grpc.calls import Context

# For a client to take some bytes; then its connection may go, where untaken answers are many.
TAKE_S: Final = 10.0
# Of one address, whatever others hold.
FEW: Final = 4
# Connections are looked for among all open files, in a thread.
CUTS_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


class AnonymousStreamLimiter:
    def __init__(self, streams_max: int, cut_off: Callable[[Collection[str]], int] = lambda peers: 0) -> None:
        """`cut_off` ends the connections of peers, as gRPC names them, and tells how many it found. It is called in a thread."""
        self._streams_max = streams_max
        self._untaken_max = max(1, streams_max // 2)
        self._cut_off = cut_off
        self._next_cut_s = 0.0
        self._cutting: asyncio.Future[int] | None = None
        self._of: dict[str, list[_Call]] = {}
        """Those with a place, by address, the oldest first."""
        self._untaken: dict[_Call, float] = {}
        """Those without a place that are not done, and since when."""
        self._not_done: Counter[str] = Counter()
        """Both, by address."""

    def __len__(self) -> int:
        """How many have places."""
        return sum(len(calls) for calls in self._of.values())

    @asynccontextmanager
    async def place(self, context: Context) -> AsyncIterator[None]:
        """Runs the body of a call; interrupted with Throttled when its place is another's. The body writes by `write_wholly`.

        Throttled at once where too many answers were not taken.
        """
        address = client_host(context)
        self._check(address)
        self._not_done[address] += 1
        place = asyncio.timeout(None)
        call = _Call(address, str(context.peer()), place)
        context.add_done_callback(partial(self._done, call))  # type: ignore[arg-type]  # as in limits.py
        try:
            async with place:
                self._of.setdefault(address, []).append(call)
                if len(self) > self._streams_max:
                    self._end_one()
                try:
                    yield
                finally:
                    self._leave(call)
        except TimeoutError:
            if not place.expired():
                raise
            raise Throttled(
                f"{self._streams_max} streams of health and reflection are open at this broker, which is all that it has: this "
                "was the oldest of the address that has most of them",
                hint="Watch the health once from each client, and end streams that are not used.",
            ) from None

    def _check(self, address: str) -> None:
        not_done, full = self._not_done[address], len(self._untaken) >= self._untaken_max
        untaken = not_done - len(self._of.get(address, ()))
        if full:
            self._cut_those_overdue()
        if untaken >= self._untaken_max or (full and untaken and not_done >= FEW):
            raise Throttled(
                f"{len(self._untaken)} answers of health and reflection wait to be taken, which is all that may, {untaken} of them "
                "by this address",
                hint="Read the answers, or close the connection.",
            )

    def _cut_those_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s < self._next_cut_s or (self._cutting is not None and not self._cutting.done()):
            return
        overdue = {call.peer for call, since_s in self._untaken.items() if since_s + TAKE_S <= now_s}
        if overdue:
            self._next_cut_s = now_s + CUTS_PAUSE_S
            self._cutting = loop.run_in_executor(None, self._cut_off, overdue)
            self._cutting.add_done_callback(_tell_of_those_cut)

    def _end_one(self) -> None:
        _, calls = max(self._of.items(), key=lambda held: len(held[1]))
        oldest = calls[0]
        self._leave(oldest)
        oldest.place.reschedule(asyncio.get_running_loop().time())

    def _leave(self, call: _Call) -> None:
        """Nothing where it has left already."""
        calls = self._of.get(call.address, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._of[call.address]
            self._untaken[call] = asyncio.get_running_loop().time()

    def _done(self, call: _Call, _: object) -> None:
        self._untaken.pop(call, None)
        self._not_done[call.address] -= 1
        if not self._not_done[call.address]:
            del self._not_done[call.address]


def _tell_of_those_cut(cutting: asyncio.Future[int]) -> None:
    if cutting.cancelled():
        return
    error = cutting.exception()
    if error is not None:
        log.error("connections that take nothing could not be cut off", exc_info=error)
    elif cutting.result():
        log.info("%d connections took nothing of what health and reflection told them: cut off", cutting.result())


class _Call:
    __slots__ = ("address", "peer", "place")

    def __init__(self, address: str, peer: str, place: asyncio.Timeout) -> None:
        self.address = address
        self.peer = peer
        self.place = place
