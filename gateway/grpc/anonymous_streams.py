"""Bounds the calls of health and reflection, which clients may open without credentials, and shares the places among addresses.

  a new call ─▶ a place is free: it gets the place
             └▶ none is free: the oldest call of the address with the most calls ends, possibly its own address
  answered or ended ─▶ the client reads its answer: done
                    └▶ the client reads nothing: gRPC holds the call, "untaken", until its connection ends
                         many untaken calls of one address  ─▶ that address is refused more
                         many untaken calls altogether      ─▶ an address with a FEW calls is refused more if some of them are
                                                               untaken; connections untaken for TAKE_S are cut off

A client that opens thousands of calls ends its own, and clients that read nothing hold none of the calls reserved for others.
Invariants: at most `streams_max` calls have places. Each ended call receives its reason as soon as its client reads. A client that
reads all its answers is not refused because of others. Untaken calls are at most half of the places, plus a FEW per address, plus
those that a new address displaced; with fifty addresses about four times the places.
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

# Time for a client to read some bytes; after it, the connection may be cut if untaken answers are many.
TAKE_S: Final = 10.0
# Calls that each address may hold regardless of the others.
FEW: Final = 4
# Pause between two searches of the open files for connections; each search runs in a thread.
CUTS_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


class AnonymousStreamLimiter:
    """Gives each call of health or reflection a place, and ends the oldest call of the busiest address when places run out."""

    def __init__(self, streams_max: int, cut_off: Callable[[Collection[str]], int] = lambda peers: 0) -> None:
        """`cut_off` ends the connections of peers, named as by gRPC, and returns how many it found. It is called in a thread."""
        self._streams_max = streams_max
        self._untaken_max = max(1, streams_max // 2)
        self._cut_off = cut_off
        self._next_cut_s = 0.0
        self._cutting: asyncio.Future[int] | None = None
        # Calls with a place, by address, the oldest first.
        self._of: dict[str, list[_Call]] = {}
        # Calls without a place that are not done, with the time since when.
        self._untaken: dict[_Call, float] = {}
        # Open calls of both kinds, by address.
        self._not_done: Counter[str] = Counter()

    def __len__(self) -> int:
        """Returns how many calls have places."""
        return sum(len(calls) for calls in self._of.values())

    @asynccontextmanager
    async def slot(self, context: Context) -> AsyncIterator[None]:
        """Runs the body of a call, and interrupts it with Throttled when another call takes its place. The body writes by
        `write_wholly`.

        Raises Throttled at once if too many answers are untaken.
        """
        address = client_host(context)
        self._check(address)
        self._not_done[address] += 1
        slot = asyncio.timeout(None)
        call = _Call(address, str(context.peer()), slot)
        context.add_done_callback(partial(self._done, call))  # type: ignore[arg-type]  # as in limits.py
        try:
            async with slot:
                self._of.setdefault(address, []).append(call)
                if len(self) > self._streams_max:
                    self._end_one()
                try:
                    yield
                finally:
                    self._leave(call)
        except TimeoutError:
            if not slot.expired():
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
            self._cutting.add_done_callback(_log_ended_streams)

    def _end_one(self) -> None:
        _, calls = max(self._of.items(), key=lambda held: len(held[1]))
        oldest = calls[0]
        self._leave(oldest)
        oldest.slot.reschedule(asyncio.get_running_loop().time())

    def _leave(self, call: _Call) -> None:
        """Gives up the call's place, if it still has one."""
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


def _log_ended_streams(cutting: asyncio.Future[int]) -> None:
    if cutting.cancelled():
        return
    error = cutting.exception()
    if error is not None:
        log.error("idle connections could not be cut off; a later call retries", exc_info=error)
    elif cutting.result():
        log.info("idle connections cut off connections=%d: clients of health and reflection read nothing", cutting.result())


class _Call:
    __slots__ = ("address", "peer", "slot")

    def __init__(self, address: str, peer: str, slot: asyncio.Timeout) -> None:
        self.address = address
        self.peer = peer
        self.slot = slot
