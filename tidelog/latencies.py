"""Percentiles of many latencies in little memory: a histogram whose buckets grow by 2 %. Pure.

Invariant: a percentile is never below the true one, and at most 2 % above it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

GROWTH: Final = 1.02
_LOG_GROWTH: Final = math.log(GROWTH)
MICROSECOND: Final = 1e-6


class Latencies:
    """A histogram of latencies in seconds, from a microsecond up."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.max_s = max(self.max_s, seconds)
        self._buckets[math.ceil(math.log(max(seconds, MICROSECOND) / MICROSECOND) / _LOG_GROWTH)] += 1

    def percentile_ms(self, percent: float) -> float:
        """Returns a percentile in milliseconds; 0 if nothing was measured."""
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(MICROSECOND * GROWTH**bucket, max(self.max_s, MICROSECOND)) * 1000
        return 0.0

    def summary_ms(self) -> dict[str, float]:
        return {
            **{f"p{percent:g}".replace(".", "") + "_ms": round(self.percentile_ms(percent), 3) for percent in (50, 95, 99, 99.9)},
            "max_ms": round(self.max_s * 1000, 3),
        }
