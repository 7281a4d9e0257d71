"""Describes the locations of committed records instead of the records, for a broker that reads them from the bucket itself. Pure.

    leader   offset ─▶ plan of a fetch ─▶ Located: runs in segments · version of the manifest, where part of it is in Parquet
    asker    Located, and that manifest or a newer one ─▶ the partition as a LogReader needs it ─▶ the same plan, the same bytes

Invariant: the asker reads only below the high watermark that the leader named, and at or above its log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metadata.model import LeaderEpoch, Offset, TopicPartition
from segments.history.index import HistoryIndex
from segments.partition.leader_partitions import LeaderPartition
from segments.partition.partition_log import PartitionLog
from segments.partition.producer_state import ProducerStates
from segments.read.fetch_plan import FetchPart, FromParquet, FromWal, Gap
from segments.wal.run_index import RunIndex, RunLocation
from segments.wal.segment_file import Run


class RecordLocations(NamedTuple):
    """Holds the locations of records in segments, and the version of the manifest for those in Parquet."""

    # Version of the manifest that has the records below its `compacted_to`. 0: none are in Parquet.
    manifest_version: int
    # Runs in segments, from the requested offset or `compacted_to` on.
    runs: tuple[RunLocation, ...]


class ByteExtent(NamedTuple):
    """Holds the size of the located records."""

    # About.
    size_bytes: int
    # The offset behind them.
    next_offset: Offset


class LeaderSnapshot(NamedTuple):
    """Holds what the leader said of a partition, with the locations."""

    located: RecordLocations
    high_watermark: Offset
    log_start_offset: Offset
    leader_epoch: LeaderEpoch


def located(
    parts: Sequence[FetchPart], history: HistoryIndex | None, *, part_bytes_min: int
) -> tuple[RecordLocations, ByteExtent] | None:
    """Returns the locations of these parts, and their size; None where they have less than `part_bytes_min` each on average.

    Each is a request to the bucket, which is worth it only for so many bytes.
    """
    locations = [part.location for part in parts if isinstance(part, FromWal | FromParquet)]
    size_bytes = sum(location.size_bytes for location in locations)
    if not locations or size_bytes < part_bytes_min * len(locations):
        return None
    is_in_history = any(isinstance(part, FromParquet | Gap) for part in parts)
    version = history.version if history is not None and is_in_history else 0
    last = parts[-1]
    next_offset = last.next_offset if isinstance(last, Gap) else locations[-1].end_offset
    return RecordLocations(version, tuple(part.location for part in parts if isinstance(part, FromWal))), ByteExtent(
        size_bytes, next_offset
    )


def partition_of_snapshot(partition: TopicPartition, snapshot: LeaderSnapshot, history: HistoryIndex | None) -> LeaderPartition:
    """Returns the partition as far as the leader described it. Raises Corrupt where the runs do not follow each other.

    `history` has the version that the leader described, or a newer one. A newer one may reach further than the leader knows, so it
    counts up to the high watermark, and its log start counts as well.
    """
    runs = RunIndex()
    for location in snapshot.located.runs:
        runs.add(_run(partition, location), session=location.session, seq=location.seq)
    ends_at = runs.end_offset or Offset(0)
    log_start_offset = snapshot.log_start_offset
    if history is not None:
        runs.drop_below(history.compacted_to)
        ends_at = max(ends_at, history.compacted_to)
        log_start_offset = max(log_start_offset, min(history.manifest.log_start_offset, snapshot.high_watermark))
    log = PartitionLog(
        partition,
        leader_epoch=snapshot.leader_epoch,
        log_start_offset=log_start_offset,
        end_offset=max(log_start_offset, min(ends_at, snapshot.high_watermark)),
        producers=ProducerStates(producers_max=1, expiry_ms=1),
    )
    return LeaderPartition(log, runs, history)


def _run(partition: TopicPartition, location: RunLocation) -> Run:
    return Run(
        partition,
        location.leader_epoch,
        location.base_offset,
        location.last_offset,
        record_count=0,
        start=location.start,
        end=location.end,
        min_timestamp=location.max_timestamp,
        max_timestamp=location.max_timestamp,
        first_batch=0,
        batch_count=0,
    )
