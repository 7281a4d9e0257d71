"""Plans key compaction of a partition: which files, up to where, which tombstones go, and which records stay. Pure.

    ◀──────── clean: no key twice ────────▶◀──────── dirty ────────▶◀─ too young ─▶│ compacted_to
    [ file ][ file ][ file ][ file ][ file ][ file ][ file ][ file ][ file ][ file ]
                                            └─ newest offset of each key: KeyMap ─┘ as far as memory goes
    └──────────── a record stays where no newer one of its key is in the map ──────┘

As in Kafka: a pass is due when the dirty part is large enough (min.cleanable.dirty.ratio), or when tombstones may go; a file that
is younger than min.compaction.lag.ms ends the dirty part; offsets stay what they are. Unlike in Kafka, a record that is dated later
than its append counts as young only since its append (record_dates.py): one that is dated in the year 2100 holds up nothing.

A record without a key is kept forever: HTTP and gRPC accept them, and the Kafka listener refuses them. A tombstone stays for
delete.retention.ms from the pass that first saw it; the manifest remembers the passes, so this holds for any compactor. By that
time no older record of its key is left: that pass removed them.

Invariant: for every key the newest record below the end of the pass stays, unless it is a tombstone whose time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.maintenance.key_map import ABSENT, KeyMap
from compaction.maintenance.record_dates import lag_date_ms
from metadata.model import Offset
from metadata.topics.settings import TopicSettings
from segments.history.manifest import HistoryFile, KeyPass, Manifest

# Passes that a manifest remembers. Beyond, two become one, and the tombstones of the older one wait for the younger's time.
PASSES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class KeyPassPlan:
    """Plans a pass: records of [clean_to, dirty_to) go into the map; tombstones below `tombstones_to` go."""

    clean_to: Offset
    # Upper bound of the pass, which ends before it where the map is full.
    dirty_to: Offset
    tombstones_from: Offset
    tombstones_to: Offset

    def files(self, manifest: Manifest, end: Offset) -> tuple[HistoryFile, ...]:
        """Returns the files that a pass up to `end` reads: all below it, or only those whose tombstones may go."""
        first, end = (Offset(0), end) if end > self.clean_to else (self.tombstones_from, self.tombstones_to)
        return tuple(file for file in manifest.files if file.last_offset >= first and file.base_offset < end)


def plan_key_pass(manifest: Manifest, settings: TopicSettings, *, dirty_ratio_min: float, now_ms: int) -> KeyPassPlan | None:
    """Returns the pass that is due; None where none is."""
    if not settings.compacts or not manifest.files:
        return None
    clean_to = manifest.key_passes[-1].end_offset if manifest.key_passes else Offset(0)
    dirty_to = _dirty_end(manifest, clean_to, settings.min_compaction_lag_ms, now_ms)
    dirty_bytes = sum(_bytes_within(file, clean_to, dirty_to) for file in manifest.files)
    clean_bytes = sum(_bytes_within(file, Offset(0), clean_to) for file in manifest.files)
    over = _over(manifest.key_passes, settings, now_ms)
    tombstones_from, tombstones_to = _tombstone_range(manifest.key_passes, over)
    is_dirty = dirty_bytes > 0 and dirty_bytes >= dirty_ratio_min * (dirty_bytes + clean_bytes)
    if not is_dirty and tombstones_from == tombstones_to:
        return None
    ended = manifest.key_passes[over - 1].end_offset if over else Offset(0)
    return KeyPassPlan(clean_to, dirty_to if is_dirty else clean_to, tombstones_from, ended)


def next_key_pass_ms(manifest: Manifest, settings: TopicSettings, *, now_ms: int) -> int | None:
    """Returns when this manifest may need a pass: the lag of a file, or the time of tombstones, is over. None for never."""
    if not settings.compacts:
        return None
    times = [kept.at_ms + settings.delete_retention_ms for kept in manifest.key_passes if kept.tombstones]
    lag_ms = settings.min_compaction_lag_ms
    times += [lag_over_ms for file in manifest.files if (lag_over_ms := _lag_over_ms(file, lag_ms)) > now_ms]
    return min(times, default=None)


def passes_after(before: Sequence[KeyPass], plan: KeyPassPlan, end: Offset, *, tombstones: int, now_ms: int) -> tuple[KeyPass, ...]:
    """Returns the passes to remember after a pass up to `end` that kept so many tombstones of [clean_to, end)."""
    passes = [KeyPass(one.end_offset, one.at_ms, 0 if one.end_offset <= plan.tombstones_to else one.tombstones) for one in before]
    if end > plan.clean_to:
        passes.append(KeyPass(end, now_ms, tombstones))
    last = len(passes) - 1
    passes = [one for at, one in enumerate(passes) if one.tombstones or at == last]
    while len(passes) > PASSES_MAX:
        first, second, *rest = passes
        passes = [KeyPass(second.end_offset, second.at_ms, first.tombstones + second.tombstones), *rest]
    return tuple(passes)


@dataclass(frozen=True, slots=True)
class SortedRecords:
    """Splits the records of a row group: those that stay, those that go, and the new tombstones among those that stay."""

    kept: pa.RecordBatch
    removed: pa.RecordBatch
    new_tombstones: int


def sort_records(columns: pa.RecordBatch, newest: KeyMap, plan: KeyPassPlan, end: Offset) -> SortedRecords:
    """Splits `columns` of record_columns.SCHEMA. `newest` knows the keys of [plan.clean_to, end): later records stay."""
    offsets: npt.NDArray[np.int64] = columns.column("offset").to_numpy()
    keys, values = columns.column("key"), columns.column("value")
    known = newest.newest(keys)
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    is_tombstone = has_key & values.is_null().to_numpy(zero_copy_only=False)
    goes = (known != ABSENT) & (known > offsets)
    goes |= is_tombstone & (offsets < plan.tombstones_to)
    new_tombstones = int((is_tombstone & ~goes & (offsets >= plan.clean_to) & (offsets < end)).sum())
    if not goes.any():
        return SortedRecords(columns, columns.slice(0, 0), new_tombstones)
    mask = pa.array(goes)
    return SortedRecords(columns.filter(pa.array(~goes)), columns.filter(mask), new_tombstones)


def _dirty_end(manifest: Manifest, clean_to: Offset, lag_ms: int, now_ms: int) -> Offset:
    for file in manifest.files:
        if file.last_offset >= clean_to and _lag_over_ms(file, lag_ms) > now_ms:
            return max(clean_to, file.base_offset)
    return max(clean_to, manifest.files[-1].last_offset + 1)  # type: ignore[return-value]  # an offset after an offset


def _lag_over_ms(file: HistoryFile, lag_ms: int) -> int:
    """Returns when all records of the file are older than the lag; 0 where there is no lag, or nothing dates the file."""
    date_ms = lag_date_ms(file)
    return date_ms + lag_ms if lag_ms and date_ms is not None else 0


def _bytes_within(file: HistoryFile, start: Offset, end: Offset) -> int:
    """Returns the stored bytes of the row groups that have offsets of [start, end)."""
    if file.base_offset >= start and file.last_offset < end:
        return file.size_bytes
    return sum(group.end - group.start for group in file.row_groups if group.last_offset >= start and group.last_offset < end)


def _over(passes: Sequence[KeyPass], settings: TopicSettings, now_ms: int) -> int:
    """Returns how many of the oldest passes are old enough for their tombstones to go."""
    over = 0
    while over < len(passes) and passes[over].at_ms + settings.delete_retention_ms <= now_ms:
        over += 1
    return over


def _tombstone_range(passes: Sequence[KeyPass], over: int) -> tuple[Offset, Offset]:
    """Returns the offsets between which tombstones may go; an empty range where none are known."""
    starts = [Offset(0), *(one.end_offset for one in passes)]
    ranges = [(start, one.end_offset) for start, one in zip(starts, passes[:over], strict=False) if one.tombstones]
    return (ranges[0][0], ranges[-1][1]) if ranges else (Offset(0), Offset(0))
