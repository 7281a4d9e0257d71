"""How late the event loop is: a timer that should ring each INTERVAL_S, and what it was late by. What all requests have to bear."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.metric_families import gauges
from metadata.measurements import Histogram

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


class BuildCollector(Collector):
    """For processes that are no broker."""

    def __init__(self, version: str) -> None:
        self._version = version

    def collect(self) -> Iterable[Metric]:
        yield build_info(self._version)


def build_info(version: str) -> Metric:
    return gauges("tidelog_build_info", "1, with the version.", ("version", "python"), [((version, platform.python_version()), 1)])
