"""A bucket behind a bad network: delays, lost answers, late requests, refusals, outages, and clients that freeze and wake.

Each broker of a simulation has a FaultyStore of its own in front of one shared store. All chance comes from the `random` that
it is given, and all waiting is asyncio.sleep, so that under virtual time the same seed gives the same run; `log` tells it.

    caller ── create ──► on the wire ── request_s ──► lands in the shared store ── answer_s ──► caller
                              │                            │                           └ answer lost: OutcomeUnknown
                              │                            └ late: the caller had its OutcomeUnknown long before
                              ├ lost: OutcomeUnknown, never lands        └ 500: OutcomeUnknown, landed or not
                              └ frozen, or the store hangs: stays on the wire until it may go on

A write that is on the wire is no longer its caller's: it lands, or does not, whether the caller waits, was cancelled or died.
Its task belongs to no process of the virtual loop. Reads end with their callers.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from metadata.errors import OutcomeUnknown, Throttled, TidelogError, Unavailable
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail

_Answer = TypeVar("_Answer")
# Draws a time in seconds.
Delay = Callable[[random.Random], float]


def between(low_s: float, high_s: float) -> Delay:
    return lambda chance: chance.uniform(low_s, high_s)


def sometimes(probability: float, rare: Delay, usual: Delay) -> Delay:
    """Mostly `usual`, but `rare` with the given probability: the tail of a distribution."""
    return lambda chance: (rare if chance.random() < probability else usual)(chance)


_TO_THE_STORE, _BACK, _LATE = between(0.005, 0.03), between(0.001, 0.01), between(0.5, 20.0)


@dataclass(frozen=True, slots=True)
class Faults:
    """Delays, and the probability of each misfortune of one request. Those of a write add up to at most 1."""

    # From the caller to the store. Requests that are under way together land in any order.
    request_s: Delay = _TO_THE_STORE
    answer_s: Delay = _BACK
    # How long after its OutcomeUnknown a late write lands.
    late_s: Delay = _LATE
    # A write that happened is answered with OutcomeUnknown.
    answer_lost: float = 0.0
    # A write that never happens is answered with OutcomeUnknown.
    request_lost: float = 0.0
    # A write is answered with OutcomeUnknown, and happens afterwards.
    late: float = 0.0
    # OutcomeUnknown; it happened with probability one half.
    error_500: float = 0.0
    # Throttled; nothing happened.
    error_503: float = 0.0
    # OutcomeUnknown; nothing happened.
    conflict_409: float = 0.0
    # A read, listing or tail is answered with Unavailable.
    read_error: float = 0.0
    # A write on the wire whose caller was cancelled lands all the same.
    lands_after_cancel: float = 0.5


CALM = Faults()
STORMY = Faults(
    request_s=sometimes(0.05, between(0.5, 5.0), between(0.002, 0.08)),
    answer_s=sometimes(0.02, between(0.2, 2.0), between(0.001, 0.02)),
    answer_lost=0.05,
    request_lost=0.04,
    late=0.04,
    error_500=0.05,
    error_503=0.05,
    conflict_409=0.03,
    read_error=0.03,
)


class Outage(Enum):
    NONE = "none"
    # No connection: every request is Unavailable at once, and nothing happens.
    REFUSES = "refuses"
    # Nothing moves in either direction until the outage is over.
    HANGS = "hangs"
    # Every write is a 500, which happened or not; every read is Unavailable.
    ERRORS = "errors"


class _Fate(Enum):
    DONE = "done"
    ANSWER_LOST = "answer lost"
    REQUEST_LOST = "request lost"
    LATE = "late"
    ERROR_500_DONE = "500 and done"
    ERROR_500_NOT = "500 and not done"
    ERROR_503 = "503"
    CONFLICT_409 = "409"


_LANDS_IN_TIME = {_Fate.DONE, _Fate.ANSWER_LOST, _Fate.ERROR_500_DONE}


class _Write:
    def __init__(self, what: str, fate: _Fate, land: Callable[[], Awaitable[None]], answer: asyncio.Future[None]) -> None:
        self.what = what
        self.fate = fate
        self.land = land
        self.answer = answer
        self.lost = False


class FaultyStore:
    """One client's way to `inner`, which it shares with others and does not close.

    `before_create` and `after_create` are called with the key where a create lands, just before and just after the object
    exists: a crash test kills its process there. `log` may be shared by several clients, so that it has one story; it stays
    empty where nothing is to be `reported`.
    """

    def __init__(
        self,
        inner: ObjectStore,
        chance: random.Random,
        faults: Faults = CALM,
        *,
        name: str = "client",
        log: list[str] | None = None,
        reported: bool = True,
        before_create: Callable[[str], None] | None = None,
        after_create: Callable[[str], None] | None = None,
    ) -> None:
        self.url = inner.url
        self.name = name
        self.faults = faults
        """May be changed at any time; counts for what is sent from then on."""
        self.slow_factor = 1.0
        """Multiplies every delay that is drawn."""
        self.log: list[str] = [] if log is None else log
        self._reported = reported
        self.counts: Counter[str] = Counter()
        """Requests by verb ("create", "get", …), and what befell them ("500 and done", "landed late", …)."""
        self._inner = inner
        self._chance = chance
        self._before_create = before_create
        self._after_create = after_create
        self._outage = Outage.NONE
        self._frozen = False
        self._way_is_free = asyncio.Event()
        self._way_is_free.set()
        self._wire: dict[asyncio.Task[None], str] = {}  # what each carries; a dict, since a set has no order

    # What the simulation does to it

    @property
    def outage(self) -> Outage:
        return self._outage

    @outage.setter
    def outage(self, outage: Outage) -> None:
        self._outage = outage
        self._note("the store", f"outage: {outage.value}")
        self._open_or_close_the_way()

    def freeze(self) -> None:
        """From now on no request of this client moves, and none is answered: a zombie, or a network that keeps packets."""
        self._frozen = True
        self._note("the client", "frozen")
        self._open_or_close_the_way()

    def thaw(self) -> None:
        self._frozen = False
        self._note("the client", "thawed")
        self._open_or_close_the_way()

    @property
    def on_the_wire(self) -> int:
        """Writes that may still land."""
        return len(self._wire)

    @property
    def objects_on_the_wire(self) -> int:
        """As many different ones: the same object may be sent twice."""
        return len(set(self._wire.values()))

    async def settle(self) -> None:
        """Returns when no write is on the wire. What is frozen must be thawed first."""
        while self._wire:
            await asyncio.wait(self._wire)

    def digest(self) -> str:
        """SHA-256 of the log: the same for every run with the same seed."""
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()

    # ObjectStore

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        content = b"".join(body)

        async def land() -> None:
            if self._before_create is not None:
                self._before_create(key)
            await self._inner.create(key, [content], crc32c=crc32c)
            if self._after_create is not None:
                self._after_create(key)

        await self._write("create", f"create {key} ({len(content)} bytes)", land)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._read("get", f"get {key} [{start}, {end})", lambda: self._inner.get(key, start=start, end=end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._read("tail", f"tail {key}", lambda: self._inner.tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        what = f"list {prefix} after {start_after!r}"
        return await self._read("list", what, lambda: self._inner.list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._write("delete", f"delete {key}", lambda: self._inner.delete(key))

    async def close(self) -> None:
        """The shared store stays open, and what is on the wire stays there."""

    # The way there and back

    async def _write(self, verb: str, what: str, land: Callable[[], Awaitable[None]]) -> None:
        self._check_connection(verb, what)
        loop = asyncio.get_running_loop()
        write = _Write(what, self._draw_fate(), land, loop.create_future())
        task = loop.create_task(self._carry(write), context=Context())
        self._wire[task] = what
        task.add_done_callback(lambda carried: self._off_the_wire(carried, write), context=Context())
        try:
            await write.answer
        except asyncio.CancelledError:
            write.lost = self._chance.random() >= self.faults.lands_after_cancel
            self._note(what, "its caller was cancelled" + (", and it is lost" if write.lost else ""))
            raise

    async def _carry(self, write: _Write) -> None:
        await self._travel(self.faults.request_s)
        refusal = await self._land(write, "landed") if write.fate in _LANDS_IN_TIME else None
        await self._travel(self.faults.answer_s)
        self._answer(write, refusal)
        if write.fate is _Fate.LATE:
            await self._travel(self.faults.late_s)
            await self._land(write, "landed late")

    def _off_the_wire(self, task: asyncio.Task[None], write: _Write) -> None:
        """A bug in the store or in a test's callback is thrown at the caller, else left to the loop's exception handler."""
        del self._wire[task]
        if write.answer.done():
            return
        if task.cancelled():
            write.answer.cancel()
        elif error := task.exception():
            write.answer.set_exception(error)

    async def _land(self, write: _Write, how: str) -> TidelogError | None:
        """Does the write, and returns the error that the store answers with, if it does."""
        if write.lost:
            return None
        try:
            await write.land()
        except TidelogError as refusal:
            self._note(write.what, f"{how}: {type(refusal).__name__}")
            return refusal
        self._note(write.what, how)
        return None

    def _answer(self, write: _Write, refusal: TidelogError | None) -> None:
        if write.fate is not _Fate.DONE:
            self._note(write.what, write.fate.value)
        if write.answer.done():  # its caller is gone
            return
        if write.fate is _Fate.ERROR_503:
            write.answer.set_exception(Throttled(f"{write.what}: 503 SlowDown; nothing was written", retry_after_s=0.1))
        elif write.fate is not _Fate.DONE:
            write.answer.set_exception(OutcomeUnknown(f"{write.what}: no certain answer ({write.fate.value})"))
        elif refusal is not None:
            write.answer.set_exception(refusal)
        else:
            write.answer.set_result(None)

    async def _read(self, verb: str, what: str, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        self._check_connection(verb, what)
        fails = self._outage is Outage.ERRORS or self._chance.random() < self.faults.read_error
        await self._travel(self.faults.request_s)
        try:
            result = await call()
        except TidelogError as refusal:
            self._note(what, type(refusal).__name__)
            await self._travel(self.faults.answer_s)
            raise
        await self._travel(self.faults.answer_s)
        if fails:
            self._note(what, "read error")
            raise Unavailable(f"{what}: 500 InternalError")
        self._note(what, "read")
        return result

    async def _travel(self, delay: Delay) -> None:
        await asyncio.sleep(delay(self._chance) * self.slow_factor)
        while not self._way_is_free.is_set():
            await self._way_is_free.wait()

    def _check_connection(self, verb: str, what: str) -> None:
        self.counts[verb] += 1
        self._note(what, "sent")
        if self._outage is Outage.REFUSES:
            self._note(what, "refused")
            raise Unavailable(f"{what}: connection refused; nothing was sent")

    def _draw_fate(self) -> _Fate:
        if self._outage is Outage.ERRORS:
            return self._chance.choice((_Fate.ERROR_500_DONE, _Fate.ERROR_500_NOT))
        faults, drawn = self.faults, self._chance.random()
        for probability, fate in (
            (faults.answer_lost, _Fate.ANSWER_LOST),
            (faults.request_lost, _Fate.REQUEST_LOST),
            (faults.late, _Fate.LATE),
            (faults.error_500 / 2, _Fate.ERROR_500_DONE),
            (faults.error_500 / 2, _Fate.ERROR_500_NOT),
            (faults.error_503, _Fate.ERROR_503),
            (faults.conflict_409, _Fate.CONFLICT_409),
        ):
            if drawn < probability:
                return fate
            drawn -= probability
        return _Fate.DONE

    def _open_or_close_the_way(self) -> None:
        if self._frozen or self._outage is Outage.HANGS:
            self._way_is_free.clear()
        else:
            self._way_is_free.set()

    def _note(self, what: str, event: str) -> None:
        """`event` is counted under its first words, up to a colon or comma."""
        self.counts[event.partition(":")[0].partition(",")[0]] += 1
        if self._reported:
            self.log.append(f"{asyncio.get_running_loop().time():12.6f} {self.name} {what}: {event}")
