"""Holds the settings of background work: when it is due, its size, how long replaced objects stay. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.errors import InvalidArgument
from metadata.setting_fields import check_numbers, fixed
from segments.settings import MIB


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Holds the settings of background work: compaction to Parquet, merges, key compaction, deletion."""

    # Whether this broker compacts as well. `tidelog dev` does; in a cluster, run `tidelog compact` beside the brokers instead.
    compact: bool = False
    # A partition is compacted at the latest when its oldest batch in a segment is this old. `tidelog dev`: one minute.
    compaction_due_age_ms: float = 900_000.0
    # A partition is compacted at the latest when so many bytes of its batches wait in segments.
    compaction_due_bytes: int = 64 * MIB
    # Pause between two checks of what is due.
    compaction_interval_ms: float = 10_000.0
    # Partitions converted to Parquet at the same time. Each needs memory for one file of history_file_bytes_max and for a few row
    # groups.
    compaction_threads: int = 2
    # Segments read at the same time.
    compaction_reads_max: int = fixed(8)
    # Runs of batches that a compactor keeps in memory, 50 bytes each. Segments beyond that wait on the bucket.
    pending_runs_max: int = fixed(4_000_000)
    # Directory for segments while they are compacted. It should be on a disk. Empty: the system's directory for temporary files.
    scratch_dir: str = ""
    # Bytes in scratch_dir at most. When so much is pending, it is compacted whatever its age; less room makes smaller files.
    scratch_bytes_max: int = 16 << 30
    # Stored bytes after which compaction ends a Parquet file and begins the next.
    history_file_bytes_max: int = 256 * MIB
    # Uncompressed bytes of keys, values and headers in one row group. A read of one record reads a row group.
    row_group_bytes: int = 16 * MIB
    # How long replaced segments and files stay on the bucket for readers that planned to read them.
    delete_grace_ms: float = 3_600_000.0
    # Adjacent Parquet files below this size are merged into one.
    merge_bytes_min: int = 128 * MIB
    # Stored bytes of a merged file at most. A merge needs this much memory and one row group more.
    merge_bytes_max: int = 512 * MIB
    # This many adjacent files are merged even though the result is still below merge_bytes_min.
    merge_files_min: int = 8
    # Memory for the newest offset of each key, 100 bytes a key, where cleanup.policy is compact. More keys take more passes.
    key_map_bytes_max: int = 128 * MIB
    # Keys are compacted when this share of a partition's bytes is new since the last time. Kafka's min.cleanable.dirty.ratio.
    dirty_ratio_min: float = 0.5
    # Pause between two listings of all topics on the bucket, which find what a crash left or another compactor replaced.
    bucket_listing_interval_ms: float = 86_400_000.0
    # How long a step is retried while the bucket does not answer. Then it counts as failed, and a later tick begins it again.
    bucket_retry_ms: float = 300_000.0
    # A compactor that has not renewed its registration for this long is taken for dead, and others take over its share.
    compactor_ttl_ms: float = fixed(15_000.0)

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero={"delete_grace_ms", "bucket_retry_ms"})
        if self.merge_bytes_max < self.merge_bytes_min:
            raise InvalidArgument(
                f"merge_bytes_max ({self.merge_bytes_max}) is below merge_bytes_min ({self.merge_bytes_min})",
                hint="Twice merge_bytes_min, or more, leaves room for merges to meet it.",
            )
        if self.row_group_bytes > self.history_file_bytes_max:
            raise InvalidArgument(
                f"row_group_bytes ({self.row_group_bytes}) is above history_file_bytes_max ({self.history_file_bytes_max})",
                hint="A file holds at least one row group.",
            )

    @property
    def files_bytes(self) -> int:
        """Returns the memory for the files that are made at the same time: one in each thread, and a merged one."""
        return self.compaction_threads * self.history_file_bytes_max + self.merge_bytes_max
