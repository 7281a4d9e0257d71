"""Declares the metrics of compaction: how much waits, for how long, what was done, and what failed. None by topic or partition."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.measurements import counter, gauge
from segments.object_store.store_clock import StoreClock


@dataclass(slots=True)
class CompactionCounters:
    """Counts since the process began."""

    units: int = counter("tidelog_compaction_units", "Runs of the compactor that wrote something.")
    segments_read: int = counter("tidelog_compaction_segments_read", "Segments that compaction read.")
    bytes_in: int = counter("tidelog_compaction_read_bytes", "Bytes of batches that were turned into Parquet.")
    bytes_out: int = counter("tidelog_compaction_written_bytes", "Bytes of the Parquet files that compaction wrote.")
    records: int = counter("tidelog_compaction_records", "Records in the Parquet files that compaction wrote.")
    files: int = counter("tidelog_compaction_files", "Parquet files that compaction wrote.")
    # Manifests that compaction created.
    manifests: int = 0
    lost: int = counter("tidelog_compaction_lost", "Manifests that another writer was first to create.")
    failures: int = counter("tidelog_compaction_failures", "Steps that failed, and are tried again.")
    segments_deleted: int = counter("tidelog_compaction_segments_deleted", "Segments deleted after their records were in Parquet.")
    files_expired: int = counter("tidelog_compaction_files_expired", "Parquet files that retention removed.")
    merges: int = counter("tidelog_compaction_merges", "Times that small Parquet files became one.")
    merged_bytes: int = counter("tidelog_compaction_merged_bytes", "Bytes of the Parquet files that merges took in.")
    key_passes: int = counter("tidelog_compaction_key_passes", "Passes of key compaction.")
    records_superseded: int = counter("tidelog_compaction_records_superseded", "Records that key compaction removed.")
    objects_collected: int = counter(
        "tidelog_compaction_objects_collected", "Unreferenced objects below topics/ that were deleted."
    )


@dataclass(slots=True)
class CompactionState:
    """Holds what the compactor found at its last poll of the bucket."""

    bytes_pending: int = gauge("tidelog_compaction_pending_bytes", "Batches in segments that are in no Parquet file yet.")
    # When the oldest batch that waits was written; 0 where none waits.
    oldest_pending_ms: int = 0
    # When the bucket was last read; 0: never yet.
    polled_at_ms: int = 0
    # When reading it failed first, with no success since; 0 while it succeeds.
    failing_since_ms: int = 0
    damaged: int = gauge(
        "tidelog_compaction_damaged", "Partitions and segments that compaction skips, since what is stored is damaged."
    )


@dataclass(frozen=True, slots=True)
class CompactionTimes:
    """Times of a CompactionState at the moment of a scrape."""

    oldest_pending_s: float = gauge(
        "tidelog_compaction_oldest_pending_seconds", "Age of the oldest batch in segments that is in no Parquet file yet."
    )
    polled_at_s: float = gauge(
        "tidelog_compaction_polled_timestamp_seconds", "When the compactor last read the bucket, since 1970."
    )
    clock_difference_s: float = gauge(
        "tidelog_compaction_clock_difference_seconds",
        "How far this clock is ahead of the bucket's, below 0 behind it. Beyond 300 nothing expires or is deleted.",
    )


def times(state: CompactionState, clock: StoreClock) -> CompactionTimes:
    """Returns the times of `state`, by the store's clock where it is known."""
    now = clock.reading()
    age_ms = max(0, now.now_ms - state.oldest_pending_ms) if state.oldest_pending_ms else 0
    return CompactionTimes(age_ms / 1000, state.polled_at_ms / 1000, now.difference_ms / 1000)
