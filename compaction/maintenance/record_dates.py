"""Decides which time counts for the newest record of a file of history: for retention, and for min.compaction.lag.ms. Pure.

    the record says             retention counts                 min.compaction.lag.ms counts
    a time before its append    that time                        that time
    a later time                that time (Kafka's as well)      the append
    no time (below 0)           the append                       the append

The manifest holds no time of append for each record. It holds one for each file (`HistoryFile.appended_by_ms`), at which all its
records had been appended; it stands for the append here. It is at most as late as the compaction of the newest of them, so a record
may stay longer than its topic says, and never shorter. Kafka uses the time at which a segment was last modified in the same way
(LogSegment.largestTimestamp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segments.history.manifest import UNKNOWN_MS, HistoryFile

# Timestamps below it are no times: producers may send records without one.
TIMESTAMP_MIN: Final = 0


def retention_date_ms(file: HistoryFile) -> int | None:
    """Returns the time from which retention.ms counts for the whole file; None where nothing tells it."""
    return newest_date_ms([file])


def lag_date_ms(file: HistoryFile) -> int | None:
    """Returns the time from which min.compaction.lag.ms counts for the whole file; None where nothing tells it."""
    newest_ms = newest_date_ms([file])
    if newest_ms is None or file.appended_by_ms == UNKNOWN_MS:
        return newest_ms
    return min(newest_ms, file.appended_by_ms)


def newest_date_ms(files: Sequence[HistoryFile]) -> int | None:
    """Returns what `retention_date_ms` is of one file that holds the records of all of these."""
    times = [file.max_timestamp for file in files]
    if any(has_undated(file) for file in files):
        times += [file.appended_by_ms for file in files]
    newest_ms = max(times, default=UNKNOWN_MS)
    return newest_ms if newest_ms >= TIMESTAMP_MIN else None


def oldest_date_ms(file: HistoryFile) -> int | None:
    """Returns a time before which no record of the file is dated; None where nothing tells it."""
    if file.max_timestamp < TIMESTAMP_MIN:
        return retention_date_ms(file)
    return max(file.min_timestamp, TIMESTAMP_MIN)


def has_undated(file: HistoryFile) -> bool:
    return file.min_timestamp < TIMESTAMP_MIN


def appended_by_ms(files: Sequence[HistoryFile], *, now_ms: int) -> int:
    """Returns `HistoryFile.appended_by_ms` of a file that replaces these. `now_ms` stands for what is not known of one of them."""
    known = [file.appended_by_ms for file in files]
    return now_ms if UNKNOWN_MS in known else max(known)
