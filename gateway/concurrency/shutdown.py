"""The waits of a door that have no near end (long polls, streams), and the one switch that ends them all.

Invariant: after `stop`, no wait in here lasts any longer, and none begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metadata.errors import Stopping


class InterruptibleWaits:
    def __init__(self) -> None:
        self.stopping = False
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        self.stopping = True
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now_s)

    @asynccontextmanager
    async def until_stop(self) -> AsyncIterator[None]:
        """Runs the body, which is interrupted with Stopping when the door stops. A deadline that moves costs no task."""
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
