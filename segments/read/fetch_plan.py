"""Decides which parts of a fetch come from the tail cache, from segments and from Parquet files. Pure.

    offset ──▶ [ row groups of Parquet ]│[ runs in segments on the bucket ][ tail cache: newest batches ]◀── high watermark
               FromParquet, Gap         │ FromWal FromWal FromWal …         FromCache
                                   compacted_to

Invariant: each part ends where the next one begins, from the asked offset on, and the last one at or below the high watermark;
there is at least one part unless the reader stands at the high watermark. A gap that key compaction left belongs to the row group
before it, up to the end of that group's leader epoch, and else to the part behind it. It is a part of its own where a fetch begins
in it, or an epoch ends in it, and no records follow below `compacted_to`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metadata.errors import Corrupt
from metadata.model import Offset
from segments.history.index import HistoryIndex, RowGroupLocation
from segments.wal.run_index import RunIndex, RunLocation

# Most runs that one fetch reads, since many tiny runs must not begin thousands of reads at once.
RUNS_MAX: Final = 64


class FromCache(NamedTuple):
    """Reads batches from the tail cache, starting with the one that holds `offset`."""

    offset: Offset


class FromWal(NamedTuple):
    """Reads batches of one run of a segment, starting with the one that holds `offset`."""

    offset: Offset
    location: RunLocation


class FromParquet(NamedTuple):
    """Records of one row group of a Parquet file, from the first at or after `offset` on."""

    offset: Offset
    location: RowGroupLocation


class Gap(NamedTuple):
    """Marks offsets [offset, next_offset) without records, now and later."""

    offset: Offset
    next_offset: Offset


FetchPart = FromCache | FromWal | FromParquet | Gap


def plan_fetch(
    offset: int,
    *,
    high_watermark: Offset,
    hot_start_offset: Offset | None,
    runs: RunIndex,
    history: HistoryIndex | None = None,
    bytes_max: int,
) -> list[FetchPart]:
    """Returns the parts to read from `offset` on, up to about `bytes_max` bytes and RUNS_MAX parts, but at least one.

    Raises Corrupt if neither the tail cache nor any object holds an offset below the high watermark.
    """
    parts: list[FetchPart] = []
    at, bytes_left = Offset(offset), bytes_max
    while at < high_watermark and (bytes_left > 0 or not parts):
        if hot_start_offset is not None and at >= hot_start_offset:
            parts.append(FromCache(at))
            break
        if len(parts) == RUNS_MAX:
            break
        part = _from_bucket(at, high_watermark, runs, history)
        if part is None:
            raise Corrupt(f"offset {at} is committed (high watermark {high_watermark}), but no segment holds it", offset=at)
        parts.append(part)
        if isinstance(part, Gap):
            at = part.next_offset
        else:
            bytes_left -= part.location.size_bytes
            at = part.location.end_offset
    return parts


def _from_bucket(
    at: Offset, high_watermark: Offset, runs: RunIndex, history: HistoryIndex | None
) -> FromParquet | FromWal | Gap | None:
    if history is not None and at < history.compacted_to:
        group = history.find(at)
        return Gap(at, min(history.compacted_to, high_watermark)) if group is None else FromParquet(at, group)
    run = runs.find(at)
    return None if run is None else FromWal(at, run)
