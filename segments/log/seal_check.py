"""Coalesces checks for a seal of the own session: one check at a time, which all waiting readers share.

    asked ─▶ a check is under way? ─▶ it may have read the bucket already: the next one answers all who ask meanwhile
                                  └▶ none: one begins

Invariant: what a check finds was true at some time after the check was asked for. So where it finds no seal, no other broker had
been appointed when the question came, nor had committed more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from metadata.errors import TidelogError, Unavailable
from segments.shared_errors import copy_of

Outcome = TidelogError | None


class SealCheck:
    """Checks for a seal; concurrent callers share one request."""

    def __init__(
        self,
        check_seal: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, Outcome]], asyncio.Task[Outcome]],
        *,
        timeout_s: float,
    ) -> None:
        """`check_seal` asks the bucket, and ends the session where it finds a seal; `spawn` owns the tasks."""
        self._read_seal = check_seal
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._last: asyncio.Task[Outcome] | None = None
        self._next: asyncio.Task[Outcome] | None = None

    async def check(self) -> None:
        """Returns after a check that began later than this call. Raises Unavailable where the bucket did not answer."""
        if self._next is None:
            self._next = self._last = self._spawn(self._check_after(self._last))
        checking = self._next
        await asyncio.wait((checking,))
        error = Unavailable("the session has ended") if checking.cancelled() else checking.result()
        if error is not None:
            raise copy_of(error)

    async def _check_after(self, before: asyncio.Task[Outcome] | None) -> Outcome:
        if before is not None:
            await asyncio.wait((before,))
        self._next = None
        why: TidelogError | str
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read_seal()
            return None
        except TidelogError as error:
            why = error
        except TimeoutError:
            why = "no answer in time"
        return Unavailable(f"this broker may lead no more, and the bucket does not tell whether it does: {why}")
