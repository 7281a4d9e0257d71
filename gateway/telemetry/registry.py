"""Serves the metrics of a process: /metrics, and /metrics/detail with the series that each partition has.

    field of a dataclass, declared (metadata/measurements.py) ─▶ measure, in a thread ─▶ families ─▶ text

A measure returns dataclasses whose fields declare metrics. It reads memory only: a scrape calls neither the metadata store nor
the bucket. Measures run in a thread, one scrape at a time, so that thousands of series do not block the event loop. Samplers read
in the loop, before each scrape, what only the loop may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.concurrency.offload import BoundedExecutor
from gateway.telemetry.traffic import Traffic
from metadata.measurements import DECLARED, ByLabel, Histogram

ACCEPT_CHARACTERS_MAX: Final = 1_000
_FAMILIES: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}

Measure = Callable[[], Iterable[object]]


class Exposition(NamedTuple):
    """The body of an answer to a scrape, with its Content-Type."""

    body: bytes
    media_type: str


class MetricsRegistry:
    """Holds the measures and samplers of one process, and encodes their metrics for scrapes."""

    def __init__(self) -> None:
        self._summary = CollectorRegistry(auto_describe=False)
        self._detail = CollectorRegistry(auto_describe=False)
        self._threads = BoundedExecutor(1)
        self._samplers: list[Callable[[], None]] = []
        # Counters of the listeners.
        self.traffic = Traffic()

    def add_sampler(self, sample: Callable[[], None]) -> None:
        """Calls `sample` in the loop before each scrape."""
        self._samplers.append(sample)

    def register(self, measure: Measure, *, detail: bool = False) -> None:
        """Adds what `measure` returns to /metrics, or to /metrics/detail. It is called in a thread."""
        (self._detail if detail else self._summary).register(_Measured(measure))

    def register_process(self) -> None:
        """Adds the metrics of the operating system: process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds …"""
        ProcessCollector(registry=self._summary)

    async def exposition(self, accept: str = "", *, detailed: bool = False) -> Exposition:
        """Encodes the metrics for a scrape. `accept` is the request's header; without it, the text format of Prometheus is used."""
        try:
            encode, media_type = choose_encoder(accept[:ACCEPT_CHARACTERS_MAX])
        except (TypeError, ValueError):  # the header has a version that cannot be compared
            encode, media_type = choose_encoder("")
        registry = self._detail if detailed else self._summary
        self._sample()
        return Exposition(await self._threads.run(lambda: encode(registry)), media_type)

    def families(self, *, detailed: bool = False) -> list[Metric]:
        """Returns the metrics that a scrape would return now. Must be called in the loop."""
        self._sample()
        return list((self._detail if detailed else self._summary).collect())

    def _sample(self) -> None:
        for sample in self._samplers:
            sample()


class _Measured(Collector):
    """Passes the metrics of a measure to the registry of prometheus-client."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    def collect(self) -> Iterable[Metric]:
        return families(self._measure())


def families(measured: Iterable[object]) -> list[Metric]:
    """Returns the metric families that the fields of these dataclasses declare, each once, in the order of the fields."""
    found: dict[str, Any] = {}
    for each in measured:
        if isinstance(each, ByLabel):
            for value, one in each.measured.items():
                _add_fields(found, one, (each.label,), (value,))
        else:
            _add_fields(found, each, (), ())
    return list(found.values())


def _add_fields(found: dict[str, Any], measured: Any, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    """Adds the series of one dataclass; `labels` and their `values` come first in each."""
    for field in fields(measured):
        declared = field.metadata.get(DECLARED)
        if declared is None:
            continue
        family = found.get(declared.name)
        if family is None:
            family = _FAMILIES[declared.kind](declared.name, declared.help, labels=(*labels, *declared.labels))
            found[declared.name] = family
        held = getattr(measured, field.name)
        if declared.values is None:
            for of, number in dict(held).items():  # a copy, since the loop may change it
                _add(family, (*values, *of) if isinstance(of, tuple) else (*values, of), number)
        elif held is not None:
            _add(family, (*values, *declared.values), held)


def _add(family: Any, values: tuple[str, ...], held: float | Histogram) -> None:
    if isinstance(held, Histogram):
        bounds = [*map(floatToGoString, held.bounds), "+Inf"]
        family.add_metric(values, list(zip(bounds, accumulate(held.counts.copy()), strict=True)), held.total)
    else:
        family.add_metric(values, held)
