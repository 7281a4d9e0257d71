"""Settings of background work: when it is due, how much it takes at once, how long what is replaced stays. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from metadata.errors import InvalidArgument
from segments.settings import MIB


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    compact: bool = False
    """Whether this broker compacts as well. `tidelog dev` does; in a cluster, run `tidelog compact` beside the brokers instead."""
    compaction_interval_ms: float = 10_000.0
    """Pause between looks for what is due."""
    compaction_due_bytes: int = 64 * MIB
    """A partition is compacted at the latest when so many bytes of its batches wait in segments."""
    compaction_due_age_ms: float = 900_000.0
    """A partition is compacted at the latest when its oldest batch in a segment is this old. `tidelog dev`: one minute."""
    compaction_threads: int = 2
    """Partitions turned into Parquet at the same time. Each needs memory for one file of history_file_bytes_max, and for a few row
    groups."""
    compaction_reads_max: int = 8
    """Segments read at the same time."""
    pending_runs_max: int = 4_000_000
    """Runs of batches in segments that a compactor keeps in mind, some 50 bytes each. What is beyond waits on the bucket."""
    scratch_dir: str = ""
    """Where segments lie while they are compacted. Empty: where the system keeps temporary files. It should not be in memory."""
    scratch_bytes_max: int = 16 << 30
    """Bytes there at most. When so much is pending, it is compacted whatever its age; less room makes smaller files."""
    history_file_bytes_max: int = 256 * MIB
    """Stored bytes after which compaction ends a Parquet file, and begins the next."""
    row_group_bytes: int = 16 * MIB
    """Keys, values and headers, uncompressed, in one row group: what is read for one record at least."""
    delete_grace_ms: float = 3_600_000.0
    """How long segments that are in Parquet, and files that were replaced, stay for readers that planned with them."""
    merge_bytes_min: int = 128 * MIB
    """Stored bytes of a Parquet file that is large enough to be left alone; smaller ones beside each other become one."""
    merge_bytes_max: int = 512 * MIB
    """Stored bytes of a merged file at most. A merge needs memory for that, and for one row group."""
    merge_files_min: int = 8
    """Files that are merged even though the result is still below merge_bytes_min."""
    key_map_bytes_max: int = 128 * MIB
    """Memory for the newest offset of each key, 100 bytes a key, where cleanup.policy is compact. More keys take more passes."""
    dirty_ratio_min: float = 0.5
    """Keys are compacted when so large a part of a partition's files is new since the last time (min.cleanable.dirty.ratio)."""
    bucket_listing_interval_ms: float = 86_400_000.0
    """Pause between listings of all topics on the bucket, which find what crashes left and other compactors did."""
    bucket_retry_ms: float = 300_000.0
    """How long a step is tried again while the bucket does not answer; then it is told, and begun anew later."""
    compactor_ttl_ms: float = 15_000.0
    """A compactor that the metadata have not heard of for this long is taken for gone: the others take over its share."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool | str):
                continue
            if not isfinite(value) or value < 0 or (value == 0 and field.name not in {"delete_grace_ms", "bucket_retry_ms"}):
                raise InvalidArgument(
                    f"{field.name} is {value}; it must be a number above 0", hint=f"Leave {field.name} out for its default."
                )
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
