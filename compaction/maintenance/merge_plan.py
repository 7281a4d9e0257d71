"""Plans which small files of a partition are merged: adjacent ones, into files of `bytes_min` to `bytes_max`. Pure.

    [ 130M ][ 4M ][ 4M ]…[ 4M ][ 1M ][ 1M ]      the eight of 4M become one of 32M; later, four of those one of 128M
      done   └──── merged ────┘

Two kinds of merges are worth their writing: one that makes a file large enough never to be merged again, and one of at least
`files_min` files in which no file is more than half of the whole. So a record's new file is at least twice as large as its old
one: rewriting a record costs at most log2(bytes_min / first size) + 1 times its bytes, and few files stay small.

No merge is so wide in time or bytes that it delays retention much (`span_ms_max`, a quarter of
retention.ms; files a quarter of retention.bytes), and none crosses the end of a pass of key compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compaction.maintenance.record_dates import newest_date_ms, oldest_date_ms
from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile, Manifest

_PART_OF_RETENTION = 4


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """Bounds merges in bytes, files and time."""

    # A file of this size is left alone.
    bytes_min: int
    # No merge is larger.
    bytes_max: int
    # Fewest files that become one which is still smaller than `bytes_min`.
    files_min: int
    # Most time between the oldest and the newest record of a merge.
    span_ms_max: int | None = None

    def for_topic(self, settings: TopicSettings) -> MergeBounds:
        """Returns bounds that are narrower where retention deletes whole files."""
        span_ms, bytes_max = self.span_ms_max, self.bytes_max
        if settings.deletes and settings.retention_ms >= 0:
            span_ms = settings.retention_ms // _PART_OF_RETENTION
        if settings.deletes and settings.retention_bytes >= 0:
            bytes_max = min(bytes_max, settings.retention_bytes // _PART_OF_RETENTION)
        return MergeBounds(min(self.bytes_min, bytes_max), bytes_max, self.files_min, span_ms)


def plan_merge(manifest: Manifest, bounds: MergeBounds) -> tuple[HistoryFile, ...]:
    """Returns the oldest adjacent files that are worth merging now; empty where none are."""
    keys_end = manifest.key_passes[-1].end_offset if manifest.key_passes else Offset(0)
    for stretch in _stretches(manifest.files, bounds, keys_end):
        if merge := _large_enough(stretch, bounds) or _doubling(stretch, bounds):
            return merge
    return ()


def _stretches(files: Sequence[HistoryFile], bounds: MergeBounds, keys_end: Offset) -> Iterator[list[HistoryFile]]:
    """Yields runs of adjacent small files that may be merged, apart from the bounds on bytes."""
    stretch: list[HistoryFile] = []
    for file in files:
        crosses = bool(stretch) and stretch[-1].last_offset < keys_end <= file.last_offset
        if crosses or file.size_bytes >= bounds.bytes_min or not _fits_in_time([*stretch, file], bounds.span_ms_max):
            yield stretch
            stretch = []
        if file.size_bytes < bounds.bytes_min:
            stretch.append(file)
    yield stretch


def _fits_in_time(files: Sequence[HistoryFile], span_ms_max: int | None) -> bool:
    if span_ms_max is None or len(files) < 2:
        return True
    newest_ms = newest_date_ms(files)
    oldest_ms = min((date_ms for date_ms in map(oldest_date_ms, files) if date_ms is not None), default=None)
    return newest_ms is None or oldest_ms is None or newest_ms - oldest_ms <= span_ms_max


def _large_enough(stretch: Sequence[HistoryFile], bounds: MergeBounds) -> tuple[HistoryFile, ...]:
    """Returns the first files of the stretch that make one of bytes_min to bytes_max."""
    for at in range(len(stretch)):
        size_bytes = 0
        for end, file in enumerate(stretch[at:], start=at + 1):
            size_bytes += file.size_bytes
            if size_bytes > bounds.bytes_max:
                break
            if size_bytes >= bounds.bytes_min and end - at > 1:
                return tuple(stretch[at:end])
    return ()


def _doubling(stretch: Sequence[HistoryFile], bounds: MergeBounds) -> tuple[HistoryFile, ...]:
    for at in range(len(stretch) - bounds.files_min + 1):
        rest = stretch[at:]
        if 2 * max(file.size_bytes for file in rest) <= sum(file.size_bytes for file in rest) <= bounds.bytes_max:
            return tuple(rest)
    return ()
