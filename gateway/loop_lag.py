"""How late the event loop is: a timer that should ring each INTERVAL_S, and what it was late by. What all requests have to bear."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from metadata.histogram import Histogram

INTERVAL_S: Final = 0.25


class LoopLag:
    def __init__(self) -> None:
        self.seconds = Histogram()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + INTERVAL_S  # the loop's own clock stands still between its turns
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, time.monotonic() - due_s))
