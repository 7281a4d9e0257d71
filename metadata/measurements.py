"""Counts of what was measured, by size: a histogram as Prometheus has it, without its locks. Pure.

One loop observes, a thread may read at a scrape: it sees each count as it was at some moment of its look, so that a sum may be a
measurement ahead of its counts, and never more than those that came meanwhile.

What calls of a remote service took and came to, by operation: of the object store, and of the metadata store. Pure.

Plain numbers, that who serves /metrics reads when it is asked. The operations are named at the start, and errors by their code in
the tree (errors.py), so that there are never more series than operations times codes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From a PUT on a local disk to the deadline of one on S3."""
BYTES: Final = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20)


class Histogram:
    """`observe` costs a third of a microsecond."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of those up to each bound, and above that before it; the last: of those above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class CallMeter:
    def __init__(self, operations: Iterable[str]) -> None:
        self.seconds = {operation: Histogram() for operation in operations}
        """Of calls that were answered, or failed; their counts are the requests."""
        self.errors = Counter[tuple[str, str]]()
        """By operation and code."""

    def ended(self, operation: str, seconds: float, error_code: str | None = None) -> None:
        self.seconds[operation].observe(seconds)
        if error_code is not None:
            self.errors[operation, error_code] += 1
