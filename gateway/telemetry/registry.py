"""What a broker tells Prometheus: /metrics, and /metrics/detail for what there is one of for each partition.

Whoever has something to tell adds a collector, which answers from memory alone: a scrape asks neither the metadata store nor the
bucket. What is told is laid out in a thread, one scrape at a time, so that thousands of series don't hold up the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.concurrency.offload import WorkThreads
from gateway.telemetry.traffic import Traffic

ACCEPT_CHARACTERS_MAX: Final = 1_000


class Exposition(NamedTuple):
    body: bytes
    media_type: str


class Metrics:
    def __init__(self) -> None:
        self._summary = CollectorRegistry(auto_describe=False)
        self._detail = CollectorRegistry(auto_describe=False)
        self._threads = WorkThreads(1)
        self._looks: list[Callable[[], None]] = []
        self.traffic = Traffic()
        """What the doors count."""

    def before(self, look: Callable[[], None]) -> None:
        """Calls it in the loop before each scrape: what is laid out in a thread can't ask the loop anything."""
        self._looks.append(look)

    def tell_of_process(self) -> None:
        """process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds and their kin."""
        ProcessCollector(registry=self._summary)

    def tell(self, summary: Collector | None = None, detail: Collector | None = None) -> None:
        """From now on; they are called in a thread."""
        if summary is not None:
            self._summary.register(summary)
        if detail is not None:
            self._detail.register(detail)

    async def exposition(self, accept: str = "", *, detailed: bool = False) -> Exposition:
        """`accept`: the header of the request; without, the text format of Prometheus."""
        try:
            encode, media_type = choose_encoder(accept[:ACCEPT_CHARACTERS_MAX])
        except (TypeError, ValueError):  # it compares what is no version
            encode, media_type = choose_encoder("")
        registry = self._detail if detailed else self._summary
        self._look()
        return Exposition(await self._threads.run(lambda: encode(registry)), media_type)

    def families(self, *, detailed: bool = False) -> list[Metric]:
        """As they would be told now. In the loop."""
        self._look()
        return list((self._detail if detailed else self._summary).collect())

    def _look(self) -> None:
        for look in self._looks:
            look()
