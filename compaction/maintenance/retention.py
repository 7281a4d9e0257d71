"""Plans which files of history are too old or too many: retention.ms and retention.bytes. Pure.

    [ expired ][ expired ][ young ][ expired ][ … ]│ pending in segments …
                          ▲ the log start goes here, and no further: offsets are removed from the front alone

Only where cleanup.policy includes delete, by whole files, and never beyond `compacted_to`: records in segments stay until they are
compacted, minutes later. A file is as old as its newest record. So one record that is dated too late keeps its file, and all
behind it; this is reported (`held_back`), since nothing else would explain why a bucket grows. A record without a timestamp counts
as dated by its append (record_dates.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from compaction.maintenance.record_dates import retention_date_ms
from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile, Manifest


class HeldBack(NamedTuple):
    """Names a file whose newest record keeps it, though it delays others that are due, or is dated in the future."""

    file: HistoryFile
    # Later files that are past retention.ms, and stay with it.
    due_behind: int


class RetentionPlan(NamedTuple):
    """Plans what retention removes."""

    # The new log start; None where nothing is due.
    log_start_offset: Offset | None
    files: int
    size_bytes: int
    held_back: HeldBack | None


def plan_retention(manifest: Manifest, settings: TopicSettings, *, pending_bytes: int, now_ms: int) -> RetentionPlan:
    """Plans retention. `pending_bytes`: the partition's runs in segments, which count for retention.bytes but stay."""
    files = manifest.files
    if not settings.deletes:
        return RetentionPlan(None, 0, 0, None)
    by_time = _expired(files, settings.retention_ms, now_ms) if settings.retention_ms >= 0 else [False] * len(files)
    gone = _too_many(files, settings.retention_bytes, pending_bytes)
    gone = next((at for at in range(gone, len(files)) if not by_time[at]), len(files))
    held_back = _held_back(files[gone:], by_time[gone:], now_ms) if settings.retention_ms >= 0 else None
    if not gone:
        return RetentionPlan(None, 0, 0, held_back)
    log_start = files[gone].base_offset if gone < len(files) else manifest.compacted_to
    return RetentionPlan(log_start, gone, sum(file.size_bytes for file in files[:gone]), held_back)


def next_retention_ms(manifest: Manifest, settings: TopicSettings) -> int | None:
    """Returns when the oldest dated file expires; None where none does."""
    if not settings.deletes or settings.retention_ms < 0:
        return None
    dates = map(retention_date_ms, manifest.files)
    oldest = next((date_ms for date_ms in dates if date_ms is not None), None)
    return None if oldest is None else oldest + settings.retention_ms + 1


def _expired(files: Sequence[HistoryFile], retention_ms: int, now_ms: int) -> list[bool]:
    """Returns whether each file is past its time. A file that nothing dates goes when a later one does."""
    oldest_kept = now_ms - retention_ms
    expired = []
    later = False
    for file in reversed(files):
        date_ms = retention_date_ms(file)
        if date_ms is not None:
            later = date_ms < oldest_kept
        expired.append(later)
    return expired[::-1]


def _too_many(files: Sequence[HistoryFile], retention_bytes: int, pending_bytes: int) -> int:
    """Returns how many of the oldest files can go while at least `retention_bytes` stay, as Kafka counts segments."""
    if retention_bytes < 0:
        return 0
    spare = sum(file.size_bytes for file in files) + pending_bytes - retention_bytes
    return sum(1 for total in accumulate(file.size_bytes for file in files) if total <= spare)


def _held_back(kept: Sequence[HistoryFile], expired: Sequence[bool], now_ms: int) -> HeldBack | None:
    if not kept:
        return None
    due_behind = sum(expired[1:])
    return HeldBack(kept[0], due_behind) if due_behind or kept[0].max_timestamp > now_ms else None
