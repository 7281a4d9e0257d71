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

from collections.abc import Iterator
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
    # The runs from the first one on that the plan has come to.
    following: Iterator[RunLocation] | None = None
    while at < high_watermark and (bytes_left > 0 or not parts):
        if hot_start_offset is not None and at >= hot_start_offset:
            parts.append(FromCache(at))
            break
        if len(parts) == RUNS_MAX:
            break
        if history is not None and at < history.compacted_to:
            group = history.find(at)
            if group is None:
                end_offset = min(history.compacted_to, high_watermark)
                parts.append(Gap(at, end_offset))
                at = end_offset
                continue
            parts.append(FromParquet(at, group))
            bytes_left -= group.size_bytes
            at = group.end_offset
            continue
        if following is None:
            following = runs.following(at, count_max=RUNS_MAX)
        run = next(following, None)
        if run is None:
            raise Corrupt(f"offset {at} is committed (high watermark {high_watermark}), but no segment holds it", offset=at)
        parts.append(FromWal(at, run))
        bytes_left -= run.end - run.start
        at = Offset(run.last_offset + 1)
    return parts
