"""Rules of retention, key compaction, DeleteRecords and collection that a run breaks on purpose: see broken_rules.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from compaction.maintenance.key_compaction import KeyPassPlan, SortedRecords
from compaction.maintenance.key_map import ABSENT, KeyMap
from metadata.model import LeaderEpoch, Offset, TopicPartition
from segments.history.manifest import HistoryFile, Manifest
from segments.log.manifest_follower import HIGH_WATERMARK, ManifestFollower
from segments.partition.partition_log import PartitionLog
from segments.recovery.recovered_partition import RecoveredPartition


def by_oldest(expired: Callable[..., list[bool]]) -> Callable[..., list[bool]]:
    """A file is as old as its oldest record."""

    def reported(files: Sequence[HistoryFile], retention_ms: int, now_ms: int) -> list[bool]:
        dated = [msgspec.structs.replace(file, max_timestamp=file.min_timestamp) for file in files]
        return expired(dated, retention_ms, now_ms)

    return reported


def from_zero(log: Callable[..., PartitionLog]) -> Callable[..., PartitionLog]:
    """A leader that takes over does not know where the log starts."""

    def begun(self: RecoveredPartition, leader_epoch: LeaderEpoch) -> PartitionLog:
        partition = log(self, leader_epoch)
        partition.log_start_offset = Offset(0)
        return partition

    return begun


def answered_at_once(delete_records: Callable[..., Any]) -> Callable[..., Any]:
    async def answered(
        self: ManifestFollower, partition: TopicPartition, before_offset: int, *, validate_only: bool = False
    ) -> Offset:
        offset = await delete_records(self, partition, before_offset, validate_only=True)
        log = self._partitions.at(partition).log
        log.raise_log_start(log.high_watermark if before_offset == HIGH_WATERMARK else Offset(offset))
        return log.log_start_offset

    return answered


def without_the_last(columns: Any, newest: KeyMap, plan: KeyPassPlan, end: Offset) -> SortedRecords:
    """Each record goes whose key is in the map, the newest as well."""
    known = newest.newest(columns.column("key")) != ABSENT
    return _split(columns, known)


def without_newer_ones(columns: Any, newest: KeyMap, plan: KeyPassPlan, end: Offset) -> SortedRecords:
    """Of each key only the record stays that the map tells of, though newer ones may follow behind the end of the pass."""
    known = newest.newest(columns.column("key"))
    goes = (known != ABSENT) & (known != columns.column("offset").to_numpy())
    return _split(columns, goes)


def all_files(self: KeyPassPlan, manifest: Manifest, end: Offset) -> tuple[HistoryFile, ...]:
    return manifest.files


def without_lag(plan: Callable[..., KeyPassPlan | None]) -> Callable[..., KeyPassPlan | None]:
    def planned(manifest: Manifest, settings: Any, **how: Any) -> KeyPassPlan | None:
        return plan(manifest, dataclasses.replace(settings, min_compaction_lag_ms=0), **how)

    return planned


def all_over(passes: Sequence[Any], settings: Any, now_ms: int) -> int:
    return len(passes)


def at_once(due: Callable[..., Any]) -> Callable[..., Any]:
    def reported(manifest: Manifest, *, grace_ms: float, now_ms: int) -> Any:
        return due(manifest, grace_ms=0, now_ms=now_ms)

    return reported


def without_producers(compacted: Callable[..., Manifest]) -> Callable[..., Manifest]:
    def made(manifest: Manifest, *, producers: Any, **how: Any) -> Manifest:
        return compacted(manifest, producers=(), **how)

    return made


def _split(columns: pa.RecordBatch, goes: Any) -> SortedRecords:
    return SortedRecords(columns.filter(pa.array(~goes)), columns.filter(pa.array(goes)), 0)
