"""What compaction tells Prometheus: how much waits, for how long, what was done, and what failed. Nothing by topic or partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segments.object_store.store_clock import StoreClock


@dataclass(slots=True)
class CompactionCounters:
    """Since the process began."""

    units: int = 0
    segments_read: int = 0
    bytes_in: int = 0
    """Of batches in segments."""
    bytes_out: int = 0
    """Of Parquet files that a manifest names."""
    records: int = 0
    files: int = 0
    manifests: int = 0
    """Versions that were created by compaction."""
    lost: int = 0
    """Versions that another compactor, or a deletion of records, was first to create."""
    failures: int = 0
    """Steps that were given up for now, and are tried again later."""
    segments_deleted: int = 0
    files_expired: int = 0
    """Parquet files that retention let go."""
    merges: int = 0
    merged_bytes: int = 0
    """Stored bytes of the files that they took in."""
    key_passes: int = 0
    records_superseded: int = 0
    """Records that key compaction removed."""
    objects_collected: int = 0
    """Deleted below topics/."""


@dataclass(slots=True)
class CompactionState:
    """As of the last look at the bucket."""

    bytes_pending: int = 0
    oldest_pending_ms: int = 0
    """When the oldest batch that waits was written; 0 where none waits."""
    looked_at_ms: int = 0
    """When the bucket was last read; 0: never yet."""
    failing_since_ms: int = 0
    """When reading it failed first, with no success since; 0 where it goes on."""
    damaged: int = 0
    """Partitions and segments that are not compacted since something stored is wrong."""


class CompactionCollector(Collector):
    """Answers from memory."""

    def __init__(self, counters: CompactionCounters, state: CompactionState, clock: StoreClock) -> None:
        self._counters = counters
        self._state = state
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        state, counters = self._state, self._counters
        clock = self._clock.reading()
        age_s = (clock.now_ms - state.oldest_pending_ms) / 1000 if state.oldest_pending_ms else 0.0
        for name, text, value in (
            ("tidelog_compaction_pending_bytes", "Batches in segments that are in no Parquet file yet.", state.bytes_pending),
            ("tidelog_compaction_oldest_pending_seconds", "Age of the oldest of them.", max(0.0, age_s)),
            (
                "tidelog_compaction_looked_timestamp_seconds",
                "When the compactor last read the bucket, since 1970.",
                state.looked_at_ms / 1000,
            ),
            ("tidelog_compaction_damaged", "Partitions and segments left alone, since something stored is wrong.", state.damaged),
            (
                "tidelog_compaction_clock_difference_seconds",
                "How far this clock is ahead of the bucket's, below 0 behind it. Beyond 300 nothing expires or is deleted.",
                clock.difference_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(name, text, value)
        for name, text, value in (
            ("tidelog_compaction_units", "Runs of the compactor that wrote something.", counters.units),
            ("tidelog_compaction_segments_read", "Segments read.", counters.segments_read),
            ("tidelog_compaction_read_bytes", "Bytes of batches that were turned into Parquet.", counters.bytes_in),
            ("tidelog_compaction_written_bytes", "Bytes of Parquet files that they became.", counters.bytes_out),
            ("tidelog_compaction_records", "Records in them.", counters.records),
            ("tidelog_compaction_files", "Parquet files.", counters.files),
            ("tidelog_compaction_lost", "Manifests that another writer was first to create.", counters.lost),
            ("tidelog_compaction_failures", "Steps that failed, and are tried again.", counters.failures),
            ("tidelog_compaction_segments_deleted", "Segments deleted when they were in Parquet.", counters.segments_deleted),
            ("tidelog_compaction_files_expired", "Parquet files that retention let go.", counters.files_expired),
            ("tidelog_compaction_merges", "Times that small Parquet files became one.", counters.merges),
            ("tidelog_compaction_merged_bytes", "Bytes of the Parquet files that merges took in.", counters.merged_bytes),
            ("tidelog_compaction_key_passes", "Passes of key compaction.", counters.key_passes),
            ("tidelog_compaction_records_superseded", "Records that key compaction removed.", counters.records_superseded),
            ("tidelog_compaction_objects_collected", "Objects below topics/ that nobody needed.", counters.objects_collected),
        ):
            yield CounterMetricFamily(name, text, value)
