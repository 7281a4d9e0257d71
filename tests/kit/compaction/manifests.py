"""Manifests made by hand: files of given offsets, sizes and times, with nothing on a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from metadata.model import Offset, Partition, TopicId, TopicPartition
from segments.history.manifest import UNKNOWN_MS, HistoryFile, KeyPass, Manifest, RowGroup, contradiction

ORDERS = TopicPartition(TopicId("a" * 32), Partition(0))
TOPIC = "orders"
MIB = 1 << 20


def file_of(
    base: int,
    last: int,
    *,
    size: int = 1000,
    times: tuple[int, int] = (0, 0),
    name: str = "",
    groups: int = 1,
    appended_by: int = UNKNOWN_MS,
) -> HistoryFile:
    """Of one record for each offset; with several row groups of equal size."""
    step = (last - base + 1) // groups
    bounds = [base + step * n for n in range(groups)] + [last + 1]
    body = max(groups, (size - 10) * 9 // 10)
    rows = tuple(
        RowGroup(
            Offset(start),
            Offset(end - 1),
            end - start,
            4 + body * n // groups,
            4 + body * (n + 1) // groups,
            times[1],
            0,
        )
        for n, (start, end) in enumerate(pairwise(bounds))
    )
    return HistoryFile(
        name=name or f"{base}-{last}",
        base_offset=Offset(base),
        last_offset=Offset(last),
        record_count=last - base + 1,
        size_bytes=size,
        record_bytes=size,
        min_timestamp=times[0],
        max_timestamp=times[1],
        checksum=f"{0:016x}",
        footer_start=4 + body,
        footer_crc32c=0,
        index_crc32c=0,
        row_groups=rows,
        appended_by_ms=appended_by,
    )


def manifest_of(
    files: Sequence[HistoryFile], *, log_start: int = 0, compacted_to: int | None = None, key_passes: Sequence[KeyPass] = ()
) -> Manifest:
    end = compacted_to if compacted_to is not None else files[-1].last_offset + 1 if files else 0
    manifest = Manifest(
        topic_id=ORDERS.topic_id,
        partition=ORDERS.partition,
        version=1,
        writer="w",
        written_at_ms=0,
        cause="compaction",
        log_start_offset=Offset(log_start),
        compacted_to=Offset(end),
        files=tuple(files),
        key_passes=tuple(key_passes),
    )
    assert not contradiction(manifest), contradiction(manifest)
    return manifest


def files_side_by_side(sizes: Sequence[int], times: Sequence[int] | None = None, *, records: int = 10) -> list[HistoryFile]:
    """Each of so many records, and of the time that stands at its place."""
    return [
        file_of(n * records, (n + 1) * records - 1, size=size, times=(times[n], times[n]) if times else (0, 0))
        for n, size in enumerate(sizes)
    ]
