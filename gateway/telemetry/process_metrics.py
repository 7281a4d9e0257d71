"""Metrics of any process: its version, and the lag of its event loop, which delays every request."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.measurements import Histogram, gauge, histogram

# Time between two measurements of the lag.
INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The versions of Tidelog and Python of this process."""

    info: Mapping[tuple[str, str], int] = gauge("tidelog_build_info", "1, with the version.", labels=("version", "python"))


def build_info(version: str) -> BuildInfo:
    """Returns the metric of this process's versions. `version` is that of Tidelog."""
    return BuildInfo({(version, platform.python_version()): 1})


@dataclass(slots=True)
class EventLoopLag:
    """Measures how late a timer fires that is due each INTERVAL_S."""

    seconds: Histogram = histogram("tidelog_event_loop_lag_seconds", "How late the event loop was, looked at four times a second.")

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            due_s = time.monotonic() + INTERVAL_S  # the loop's own clock stands still within one iteration
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, time.monotonic() - due_s))
