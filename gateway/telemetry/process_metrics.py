"""What a process tells Prometheus of itself: its version, and how late its event loop is, which delays every request."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.measurements import Histogram, gauge, histogram

INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The version of a process."""

    info: Mapping[tuple[str, str], int] = gauge("tidelog_build_info", "1, with the version.", labels=("version", "python"))


def build_info(version: str) -> BuildInfo:
    return BuildInfo({(version, platform.python_version()): 1})


@dataclass(slots=True)
class EventLoopLag:
    """Measures by how much a timer is late that is due each INTERVAL_S."""

    seconds: Histogram = histogram("tidelog_event_loop_lag_seconds", "How late the event loop was, looked at four times a second.")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + INTERVAL_S  # the loop's own clock stands still between its turns
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, time.monotonic() - due_s))
