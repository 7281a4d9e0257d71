"""From plain numbers to what prometheus-client writes out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from metadata.measurements import Histogram

Labels = tuple[str, ...]


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """Without `_total`, which is added."""
    return CounterMetricFamily(name, text, value)


def gauges(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def counters(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def histograms(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, Histogram]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for of, held in values:
        bounds = [*map(floatToGoString, held.bounds), "+Inf"]
        family.add_metric(of, list(zip(bounds, accumulate(held.counts.copy()), strict=True)), held.total)
    return family


def histogram(name: str, text: str, held: Histogram) -> HistogramMetricFamily:
    return histograms(name, text, (), [((), held)])
