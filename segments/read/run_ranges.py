"""Decides which runs of one segment are read with one GET. Pure.

    segment    [ run of A ][ run of B ][ run of C ][ … far … ][ run of D ]
    wanted         A            –           C                      D
    GETs       └──────────── one ─────────────┘               └── one ───┘

A GET costs more CPU than a few runs more: readers of several partitions want all the runs of a segment at about the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from segments.wal.run_index import RunLocation

# Bytes between two wanted runs that are read and thrown away, rather than a second GET sent.
SKIPPED_BYTES_MAX: Final = 64 << 10
RANGE_BYTES_MAX: Final = 8 << 20


def ranges_of(locations: Iterable[RunLocation], *, bytes_max: int) -> list[list[RunLocation]]:
    """Returns the runs of one segment by the range that they are read with, in the order of their bytes.

    A range of several runs has `bytes_max` bytes at most, and RANGE_BYTES_MAX.
    """
    bytes_max = min(bytes_max, RANGE_BYTES_MAX)
    ranges: list[list[RunLocation]] = []
    start = end = 0
    for location in sorted(locations, key=_start):
        if ranges and location.start - end <= SKIPPED_BYTES_MAX and location.end - start <= bytes_max:
            ranges[-1].append(location)
        else:
            ranges.append([location])
            start = location.start
        end = location.end
    return ranges


def _start(location: RunLocation) -> int:
    return location.start
