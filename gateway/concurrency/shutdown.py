"""Interrupts waits without a near end (long polls, streams) when a listener stops.

Invariant: after `stop`, no such wait continues and none begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metadata.errors import Stopping


class InterruptibleWaits:
    """Holds the open waits of a listener, and ends them all at its stop."""

    def __init__(self) -> None:
        self.stopping = False
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        self.stopping = True
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():  # its task has not seen it yet, and a timeout that has expired can't be moved
                wait.reschedule(now_s)

    @asynccontextmanager
    async def until_stop(self) -> AsyncIterator[None]:
        """Runs the body, and interrupts it with Stopping when the listener stops. A deadline that moves costs no task."""
        if self.stopping:
            raise Stopping("this broker is shutting down")
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if not wait.expired():
                raise
            raise Stopping("this broker is shutting down") from None
