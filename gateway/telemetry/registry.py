"""What a process tells Prometheus: /metrics, and /metrics/detail for what there is one of for each partition.

    field of a dataclass, declared (metadata/measurements.py) ─▶ measure, in a thread ─▶ families ─▶ text

A measure returns dataclasses whose fields declare metrics. It answers from memory: a scrape calls neither the metadata store nor
the bucket. Measures run in a thread, one scrape at a time, so that thousands of series do not block the event loop; what must be
read in the loop, a sampler reads before each scrape.
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
    body: bytes
    media_type: str


class MetricsRegistry:
    """The registry of the metrics of one process."""

    def __init__(self) -> None:
        self._summary = CollectorRegistry(auto_describe=False)
        self._detail = CollectorRegistry(auto_describe=False)
        self._threads = BoundedExecutor(1)
        self._samplers: list[Callable[[], None]] = []
        # What the listeners count.
        self.traffic = Traffic()

    def add_sampler(self, sample: Callable[[], None]) -> None:
        """Calls `sample` in the loop before each scrape."""
        self._samplers.append(sample)

    def register(self, measure: Measure, *, detail: bool = False) -> None:
        """Adds what `measure` returns to /metrics, or to /metrics/detail. It is called in a thread."""
        (self._detail if detail else self._summary).register(_Measured(measure))

    def register_process(self) -> None:
        """Adds process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds and their kin."""
        ProcessCollector(registry=self._summary)

    async def exposition(self, accept: str = "", *, detailed: bool = False) -> Exposition:
        """`accept`: the header of the request; without, the text format of Prometheus."""
        try:
            encode, media_type = choose_encoder(accept[:ACCEPT_CHARACTERS_MAX])
        except (TypeError, ValueError):  # it compares what is no version
            encode, media_type = choose_encoder("")
        registry = self._detail if detailed else self._summary
        self._sample()
        return Exposition(await self._threads.run(lambda: encode(registry)), media_type)

    def families(self, *, detailed: bool = False) -> list[Metric]:
        """Returns what a scrape would tell now. Called in the loop."""
        self._sample()
        return list((self._detail if detailed else self._summary).collect())

    def _sample(self) -> None:
        for sample in self._samplers:
            sample()


class _Measured(Collector):
    """Lets the registry of prometheus-client collect what a measure returns."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    def collect(self) -> Iterable[Metric]:
        return families(self._measure())


def families(measured: Iterable[object]) -> list[Metric]:
    """Returns the families that the fields of dataclasses declare, each once, in the order of the fields."""
    found: dict[str, Any] = {}
    for each in measured:
        if isinstance(each, ByLabel):
            for value, one in each.measured.items():
                _add_fields(found, one, (each.label,), (value,))
        else:
            _add_fields(found, each, (), ())
    return list(found.values())


def _add_fields(found: dict[str, Any], measured: Any, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    """`labels` and their `values` come first in each series."""
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
            for of, number in dict(held).items():  # the loop may count meanwhile
                _add(family, (*values, *of) if isinstance(of, tuple) else (*values, of), number)
        elif held is not None:
            _add(family, (*values, *declared.values), held)


def _add(family: Any, values: tuple[str, ...], held: float | Histogram) -> None:
    if isinstance(held, Histogram):
        bounds = [*map(floatToGoString, held.bounds), "+Inf"]
        family.add_metric(values, list(zip(bounds, accumulate(held.counts.copy()), strict=True)), held.total)
    else:
        family.add_metric(values, held)
