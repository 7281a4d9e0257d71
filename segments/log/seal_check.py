"""Looks for the seal of the own session on behalf of readers: one look at a time, shared by all who ask.

    asked ─▶ a look is under way? ─▶ it may have passed the place already: the next one tells, for all who ask meanwhile
                                 └▶ no: one begins

Invariant: what a look says was true at some time after it was asked for. So, where it finds no seal, nobody else could have been
appointed when the question came, and had committed more by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from metadata.errors import TidelogError, Unavailable
from segments.shared_errors import own_copy

Outcome = TidelogError | None


class SealCheck:
    def __init__(
        self,
        look: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, Outcome]], asyncio.Task[Outcome]],
        *,
        timeout_s: float,
    ) -> None:
        """`look` asks the bucket, and ends the session where it finds a seal; `spawn` owns the tasks."""
        self._look = look
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._last: asyncio.Task[Outcome] | None = None
        self._next: asyncio.Task[Outcome] | None = None

    async def look(self) -> None:
        """Returns after a look that began later than this was called. Unavailable where the bucket did not tell."""
        if self._next is None:
            self._next = self._last = self._spawn(self._look_behind(self._last))
        looking = self._next
        await asyncio.wait((looking,))
        error = Unavailable("the session has ended") if looking.cancelled() else looking.result()
        if error is not None:
            raise own_copy(error)

    async def _look_behind(self, before: asyncio.Task[Outcome] | None) -> Outcome:
        if before is not None:
            await asyncio.wait((before,))
        self._next = None
        why: TidelogError | str
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._look()
            return None
        except TidelogError as error:
            why = error
        except TimeoutError:
            why = "no answer in time"
        return Unavailable(f"this broker may lead no more, and the bucket does not tell whether it does: {why}")
