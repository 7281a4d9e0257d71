"""Keeps the event loop responsive during long work: in a few threads, or in steps with turns between them.

  one long piece           ─▶ BoundedExecutor.run     in a thread, when one is free
  thousands of small ones  ─▶ LoopYielder.give        yields once the steps since the last turn have taken TURN_S together
                              map_yielding            the same, for a function of each item
  a millisecond, for each of many callers ─▶ OnePerLoopTurn.take   one caller a turn, so that others never wait behind all

Invariants: at most `threads_max` pieces of work are in threads. A caller, cancelled or not, is held until its thread has ended,
with
what it holds (room in a budget, a place among the threads): a thread cannot be stopped, only awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

TURN_S: Final = 0.002
# Threads of each listener for each kind of work. More would share one interpreter lock and two cores, but not their memory.
THREADS_MAX: Final = 2

_Made = TypeVar("_Made")
_Item = TypeVar("_Item")


class BoundedExecutor:
    """Runs work in threads, at most `threads_max` pieces at a time."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._slots = asyncio.Semaphore(threads_max)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        """Returns the result of `work` in a thread, or raises its error. A caller cancelled while it waits for a thread gives up at
        once."""
        async with self._slots:
            working = asyncio.get_running_loop().run_in_executor(None, work)
            cancelled: asyncio.CancelledError | None = None
            while not working.done():
                try:
                    await asyncio.wait((working,))
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                working.exception()  # marks the error as retrieved: its caller was cancelled
                raise cancelled
            return working.result()


class LoopYielder:
    """Yields to the event loop from a task of many small steps."""

    def __init__(self) -> None:
        self._turn_s = time.monotonic()  # the loop's own clock stands still between its turns

    async def step(self) -> None:
        """Yields if TURN_S has passed; call it after each step."""
        if time.monotonic() - self._turn_s > TURN_S:
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()


async def map_yielding(work: Callable[[_Item], _Made], items: Iterable[_Item]) -> list[_Made]:
    """Returns the results of `work` for each item, in order, yielding between them."""
    yielder, made = LoopYielder(), list[_Made]()
    for item in items:
        made.append(work(item))
        await yielder.step()
    return made


class OnePerLoopTurn:
    """Lets one of many tasks take a larger step in each turn of the loop; each of the others follows a turn later."""

    def __init__(self) -> None:
        self._taken = asyncio.Lock()

    async def take(self) -> None:
        """Waits for a turn; call it before the step. Returns at once if this turn is free; else in order of arrival."""
        await self._taken.acquire()
        asyncio.get_running_loop().call_soon(self._taken.release)
