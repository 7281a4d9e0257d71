"""Whether a fetch is served from the cache or from the bucket. Pure.

    offset ──▶ [ runs in segments on the bucket ][ hot pool: newest committed ]◀── high watermark
               FromWal FromWal FromWal …          FromCache

Invariant: the parts continue each other without a gap from the run or batch that holds the asked offset, and end at or below
the high watermark; there is at least one part unless the reader stands at the high watermark.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import Offset
from segments.run_index import RunIndex, RunPlace

RUNS_MAX: Final = 64
"""Runs that one fetch reads at most: a history of tiny runs must not begin thousands of reads at once."""


class FromCache(NamedTuple):
    """Batches of the hot pool, from the one that holds `offset` on."""

    offset: Offset


class FromWal(NamedTuple):
    """Batches of one run of a segment on the bucket, from the one that holds `offset` on."""

    offset: Offset
    place: RunPlace


FetchPart = FromCache | FromWal


def plan_fetch(
    offset: int, *, high_watermark: Offset, hot_start_offset: Offset | None, runs: RunIndex, bytes_max: int
) -> list[FetchPart]:
    """Where to read the batches from `offset` on, up to about `bytes_max` bytes and RUNS_MAX runs, but at least one batch.

    Raises Corrupt when neither the hot pool nor any segment holds an offset below the high watermark.
    """
    parts: list[FetchPart] = []
    at, bytes_left = Offset(offset), bytes_max
    while at < high_watermark and (bytes_left > 0 or not parts):
        if hot_start_offset is not None and at >= hot_start_offset:
            parts.append(FromCache(at))
            break
        if len(parts) == RUNS_MAX:
            break
        place = runs.find(at)
        if place is None:
            raise Corrupt(f"offset {at} is committed (high watermark {high_watermark}), but no segment holds it", offset=at)
        parts.append(FromWal(at, place))
        bytes_left -= place.end - place.start
        at = Offset(place.last_offset + 1)
    return parts
