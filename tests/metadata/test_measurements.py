from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from metadata.measurements import SECONDS, CallMeter, Histogram, counter, histograms


@dataclass(slots=True)
class Meter(CallMeter):
    seconds: dict[str, Histogram] = histograms("call_seconds", "Durations.", "operation", ("get", "put"))
    errors: Counter[tuple[str, str]] = counter("call_errors", "Errors.", labels=("operation", "code"))


def test_a_value_counts_up_to_its_bound_which_is_included() -> None:
    held = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        held.observe(value)
    assert held.counts == [2, 2, 1]
    assert (held.count, held.total) == (5, 7.5)


@given(st.lists(st.floats(0, 1_000)))
def test_a_value_that_is_observed_is_counted_once(values: list[float]) -> None:
    held = Histogram()
    for value in values:
        held.observe(value)
    assert held.count == len(values)
    assert sum(held.counts[: SECONDS.index(1.0) + 1]) == sum(value <= 1.0 for value in values)


def test_calls_are_timed_whether_they_succeed_or_not_and_errors_are_counted_by_code() -> None:
    meter = Meter()
    meter.ended("get", 0.1)
    meter.ended("get", 0.1, "UNAVAILABLE")
    assert meter.seconds["get"].count == 2
    assert meter.seconds["put"].count == 0
    assert meter.errors == {("get", "UNAVAILABLE"): 1}
