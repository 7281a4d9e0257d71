"""How work that takes long leaves the event loop to others: in a few threads, or in steps with turns between them.

    one long piece         ─▶ BoundedExecutor.run   a thread when it is its turn
    thousands of small ones ─▶ LoopYielder.give   when those since the last turn have taken TURN_S together
                               in_turns         the same, for what is made of each of many
    a millisecond, for each of many callers ─▶ OnePerLoopTurn.take   in turn, so that others never wait behind all of them

Invariants: never are more than `threads_max` pieces of work in threads; whoever asked for one is held until its thread has ended,
cancelled or not, and so is what it holds (room in a budget, a place among the threads): a thread can't be stopped, only waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

TURN_S: Final = 0.002
# Of each door for each kind of work. More would share one interpreter lock and two cores, but not their memory.
THREADS_MAX: Final = 2

_Made = TypeVar("_Made")
_Item = TypeVar("_Item")


class BoundedExecutor:
    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._places = asyncio.Semaphore(threads_max)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        """What `work` makes in a thread, or raises. Who is cancelled while it waits for one gives up at once."""
        async with self._places:
            working = asyncio.get_running_loop().run_in_executor(None, work)
            cancelled: asyncio.CancelledError | None = None
            while not working.done():
                try:
                    await asyncio.wait((working,))
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                working.exception()  # nobody is left who would hear of it
                raise cancelled
            return working.result()


class LoopYielder:
    """Of one task that takes many small steps."""

    def __init__(self) -> None:
        self._turn_s = time.monotonic()  # the loop's own clock stands still between its turns

    async def give(self) -> None:
        """To be called after each step."""
        if time.monotonic() - self._turn_s > TURN_S:
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()


async def map_yielding(work: Callable[[_Item], _Made], items: Iterable[_Item]) -> list[_Made]:
    """What `work` makes of each, in order."""
    turns, made = LoopYielder(), list[_Made]()
    for item in items:
        made.append(work(item))
        await turns.give()
    return made


class OnePerLoopTurn:
    """Of many tasks that come to a larger step in one turn of the loop, one does it now, and each of the others a turn later."""

    def __init__(self) -> None:
        self._taken = asyncio.Lock()

    async def take(self) -> None:
        """To be called before the step. At once where nobody has taken this turn; else in order of arrival."""
        await self._taken.acquire()
        asyncio.get_running_loop().call_soon(self._taken.release)
