"""Times all groups of a broker: one heap of due times, and no task for each group.

Heartbeats only postpone what is due, and cost the heap nothing: a group that is woken too early says when to wake it again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Delay of a wake-up from which the process counts as frozen, or its loop as blocked.
LATE_MS: Final = 1_000


def uptime_ms() -> int:
    """Returns the milliseconds of a clock that never jumps, for all that waits and expires."""
    return int(asyncio.get_running_loop().time() * 1000 + 0.001)  # added so that rounding never makes a timer early


class GroupTimer:
    """Wakes groups when something is due. Its owner runs `run()` as a task."""

    def __init__(self, due: Callable[[str], None], *, slept: Callable[[], None]) -> None:
        """`due` is called with the name of each group whose time has come. `slept` is called first after a time in which nothing
        ran here: no heartbeat could arrive in it."""
        self._due = due
        self._slept = slept
        self._heap: list[tuple[int, str]] = []
        self._wakes: dict[str, int] = {}
        self._sooner = asyncio.Event()

    def wake(self, name: str, at_ms: int) -> None:
        """Wakes the group at `at_ms`, unless it is woken sooner anyway."""
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
