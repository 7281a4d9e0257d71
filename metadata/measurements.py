"""Defines measurements as plain numbers, and declares the metrics that they form. Pure.

    @dataclass(slots=True)
    class Counts:
        segments: int = counter("tidelog_segments", "Segments that were committed.")
        errors: Counter[str] = counter("tidelog_errors", "Errors by code.", labels=("code",))

A field is counted like any other (`counts.segments += 1`); gateway/telemetry/registry.py makes the families of /metrics from the
declarations when it is scraped. One loop counts and a thread may read: each number is as it was at some moment of the scrape, so
the sum of a histogram may be a measurement ahead of its counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple

# From a PUT on a local disk to the deadline of one on S3.
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES: Final = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20)


class Histogram:
    """Counts observations by bounds; `observe` takes a third of a microsecond."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        # Observations up to each bound and above the one before; the last entry: above all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


# The key of a declaration in the metadata of a dataclass field.
DECLARED: Final = "metric"


class Declaration(NamedTuple):
    """Declares the metric that a field of a dataclass is, or is a part of."""

    kind: Literal["counter", "gauge", "histogram"]
    # As Prometheus names the family: a counter without `_total`.
    name: str
    # Empty where another field of the same metric has it.
    help: str
    # The names of the labels.
    labels: tuple[str, ...]
    # The values of the labels, where the field is one series; else the field maps values of the labels to numbers.
    values: tuple[str, ...] | None


class ByLabel(NamedTuple):
    """Holds several dataclasses of one type, whose series a label tells apart."""

    label: str
    measured: Mapping[str, object]


def counter(name: str, help_text: str = "", *, labels: tuple[str, ...] = (), known: Iterable[Hashable] = (), **values: str) -> Any:
    """Declares a field to be a counter. `name` is without `_total`, which is added.

    `labels`: the field is a Counter by the values of these labels; the series of those that are `known` exist before their first
    event, so that they have a rate for it. `values`: the field is the one series with these labels. Of the fields of one metric the
    first has its help text.
    """
    if labels:
        declaration = Declaration("counter", name, help_text, labels, None)
        return field(default_factory=lambda: Counter(dict.fromkeys(known, 0)), metadata={DECLARED: declaration})
    return _series(Declaration("counter", name, help_text, tuple(values), tuple(values.values())))


def gauge(name: str, help_text: str = "", *, labels: tuple[str, ...] = (), **values: str) -> Any:
    """Declares a field to be a gauge, as `counter` does: with `labels` a mapping, else a number, or None for no series."""
    if labels:
        return field(default_factory=dict, metadata={DECLARED: Declaration("gauge", name, help_text, labels, None)})
    return _series(Declaration("gauge", name, help_text, tuple(values), tuple(values.values())))


def histogram(name: str, help_text: str, *, bounds: tuple[float, ...] = SECONDS) -> Any:
    """Declares a field to be a Histogram."""
    declaration = Declaration("histogram", name, help_text, (), ())
    return field(default_factory=lambda: Histogram(bounds), metadata={DECLARED: declaration})


def histograms(name: str, help_text: str, label: str, values: Iterable[str]) -> Any:
    """Declares a field to be a dict of Histogram by the values of one label."""
    declaration = Declaration("histogram", name, help_text, (label,), None)
    return field(default_factory=lambda: {value: Histogram() for value in values}, metadata={DECLARED: declaration})


def _series(declaration: Declaration) -> Any:
    return field(default=0, metadata={DECLARED: declaration})


class CallMeter:
    """Counts the calls of a remote service by operation: their durations, and their errors by code.

    A subclass is a dataclass that declares both metrics. The codes are those of the tree of errors (errors.py), so that there are
    never more series than operations times codes.
    """

    __slots__ = ()

    # Of calls that were answered or failed, by operation; their counts are the requests.
    seconds: dict[str, Histogram]
    # By operation and code.
    errors: Counter[tuple[str, str]]

    def ended(self, operation: str, seconds: float, error_code: str | None = None) -> None:
        """Counts a call that was answered, or failed with `error_code`."""
        self.seconds[operation].observe(seconds)
        if error_code is not None:
            self.errors[operation, error_code] += 1
