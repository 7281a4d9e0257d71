"""Percentiles from a histogram."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tidelog.latencies import GROWTH, Latencies


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=200), st.floats(1, 100))
def test_a_percentile_is_at_most_two_per_cent_above_the_true_one(seconds: list[float], percent: float) -> None:
    latencies = Latencies()
    for each in seconds:
        latencies.add(each)
    true_ms = 1000 * sorted(seconds)[math.ceil(len(seconds) * percent / 100) - 1]
    assert true_ms * 0.999999 <= latencies.percentile_ms(percent) <= true_ms * GROWTH * 1.000001


def test_nothing_measured_is_zero_and_nothing_takes_less_than_a_microsecond() -> None:
    latencies = Latencies()
    assert latencies.summary_ms() == {"p50_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0, "p999_ms": 0.0, "max_ms": 0.0}
    latencies.add(0.0)
    assert latencies.percentile_ms(50) == 0.001
