"""One timer for all groups that a broker coordinates: a heap of the times at which something is due, and no task for each.

Heartbeats only put off what is due, and cost the heap nothing: a group that is woken too early says when to wake it again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Who is woken so much too late was not running: a frozen process, or a loop that was held.
LATE_MS: Final = 1_000


def uptime_ms() -> int:
    """Of a clock that never jumps, for all that waits and expires."""
    return int(asyncio.get_running_loop().time() * 1000 + 0.001)  # or rounding would make a timer come before its time


class GroupTimer:
    """Its owner runs `run()` as a task."""

    def __init__(self, due: Callable[[str], None], *, slept: Callable[[], None]) -> None:
        """`due` is told the name of each group whose time has come. `slept` is told first where nothing here ran for a while:
        nobody could be heard of in that time."""
        self._due = due
        self._slept = slept
        self._heap: list[tuple[int, str]] = []
        self._wakes: dict[str, int] = {}
        self._sooner = asyncio.Event()

    def wake(self, name: str, at_ms: int) -> None:
        """Unless it is woken sooner anyway."""
        if (planned_ms := self._wakes.get(name)) is None or at_ms < planned_ms:
            self._wakes[name] = at_ms
            heapq.heappush(self._heap, (at_ms, name))
            if self._heap[0] == (at_ms, name):
                self._sooner.set()

    def forget(self, name: str) -> None:
        self._wakes.pop(name, None)

    async def run(self) -> None:
        while True:
            self._sooner.clear()
            next_ms = self._heap[0][0] if self._heap else None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if next_ms is None else next_ms / 1000):
                    await self._sooner.wait()
            if next_ms is not None and uptime_ms() - next_ms >= LATE_MS:
                self._slept()
            while self._heap and self._heap[0][0] <= uptime_ms():
                at_ms, name = heapq.heappop(self._heap)
                if self._wakes.get(name) == at_ms:
                    del self._wakes[name]
                    self._due(name)
