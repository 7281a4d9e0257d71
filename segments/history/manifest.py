"""Defines the manifest: which records of a partition are in Parquet, and from where on its segments count. Pure.

    topics/{topic}/{topic_id}/_log/{partition:05d}/{version:020d}      JSON, create-only: the highest version counts

    log_start_offset      compacted_to
          ▼                    ▼
    [ gone ][ file ][ file  ][ file ]│[ runs in segments … ]──▶ high watermark
            base…last, without overlap;   at or above compacted_to,
            each tells its row groups     found by the footers

A manifest is the one commit point of compaction, merges, retention, key compaction and DeleteRecords. A writer reads the newest
version n, plans from it, and creates n+1: of two writers one loses, and plans again. The files that a version names were written
and verified before it was created, and are deleted only when a later one has retired them and the grace is over.

Invariants: versions of a partition are 1, 2, 3, …; from one to the next neither `log_start_offset` nor `compacted_to` falls; files
are in offset order, do not overlap, and end below `compacted_to`; `log_start_offset` may lie above `compacted_to` (DeleteRecords),
and then compaction goes on from there. `producers` is what the batches below `compacted_to` leave to be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

import msgspec

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, Partition, ProducerId, TopicId, TopicPartition
from segments.bucket.layout import parse_topic_key

FORMAT_VERSION: Final = 1
# The value of `HistoryFile.appended_by_ms` for files that were named before manifests had that field.
UNKNOWN_MS: Final = -1

# Why a version was written: for people.
Cause = Literal["compaction", "merge", "retention", "key-compaction", "delete-records", "collection"]


class RowGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a file that are read together: offsets base_offset … last_offset, bytes [start, end) of the object."""

    base_offset: Offset
    last_offset: Offset
    record_count: int
    start: int
    end: int
    max_timestamp: int
    # CRC-32C of the bytes [start, end): Parquet itself covers its pages, but not the bytes between them.
    crc32c: int


class HistoryFile(msgspec.Struct, frozen=True, gc=False):
    """Describes one Parquet file: the remaining records of offsets base_offset … last_offset."""

    # Within the folder of the partition: see bucket_layout.
    name: str
    base_offset: Offset
    last_offset: Offset
    record_count: int
    size_bytes: int
    # Uncompressed bytes of keys, values and headers.
    record_bytes: int
    # In ms since 1970, -1 and below where a producer said so.
    min_timestamp: int
    max_timestamp: int
    # 16 hex digits: the sum of the records' checksums (records/checksum.py), whatever their order. Conserved by merges.
    checksum: str
    # The bytes from here to the end of the object are the Parquet footer.
    footer_start: int
    # CRC-32C of the footer, which Parquet does not cover at all.
    footer_crc32c: int
    # CRC-32C of the bytes between the last row group and the footer: bloom filters and the page index, which only Spark reads.
    index_crc32c: int
    row_groups: tuple[RowGroup, ...]
    # A time at which all its records had been appended, by the clock of the compactor that took them from segments.
    appended_by_ms: int = UNKNOWN_MS


class EpochStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names a leader epoch and its first offset."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


class RememberedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Describes a batch of a producer that may be repeated."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset


class RememberedProducer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Holds the state of an idempotent producer, or of an Idempotency-Key, as partition/producer_state.py keeps it."""

    producer_id: ProducerId
    epoch: int
    last_active_ms: int
    batches: tuple[RememberedBatch, ...]


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names a file that readers no longer plan with since `at_ms`. It is deleted after the grace period."""

    name: str
    at_ms: int


class Superseded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names an older version of the manifest that may still be on the bucket, and the writer of the version that counted."""

    version: int
    at_ms: int
    writer: str


class KeyPass(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records one pass of key compaction: below `end_offset` no key comes twice (records without a key apart)."""

    end_offset: Offset
    # When the pass first saw the records after the pass before: delete.retention.ms of tombstones counts from here.
    at_ms: int
    # Number of tombstones among those records that were kept.
    tombstones: int


def may_follow(base_offset: int, *, compacted_to: int, log_start_offset: int) -> bool:
    """Returns whether a run from `base_offset` on may come next behind what is compacted.

    Records that are missing below the log start were deleted. After a restore from an older copy of the bucket, a partition begins
    at a log start beyond the records that the copy has.
    """
    return base_offset == compacted_to or compacted_to < base_offset <= log_start_offset


class Manifest(msgspec.Struct, frozen=True):
    """Holds one version of a partition's manifest."""

    topic_id: TopicId
    partition: Partition
    version: int
    # 32 hex digits, drawn for each try to create a version: tells one's own from another's when an answer was lost.
    writer: str
    written_at_ms: int
    cause: Cause
    log_start_offset: Offset
    compacted_to: Offset
    files: tuple[HistoryFile, ...] = ()
    # Each leader epoch that has records below `compacted_to`, and where it begins.
    epochs: tuple[EpochStart, ...] = ()
    # By the time of their last batch, ascending.
    producers: tuple[RememberedProducer, ...] = ()
    retired: tuple[Retired, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    # In the order of their ends; none where keys were never compacted, and then the offsets of the files are dense.
    key_passes: tuple[KeyPass, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


def no_manifest(partition: TopicPartition) -> Manifest:
    """Returns version 0, which is never written: a partition that nothing was compacted of yet."""
    return Manifest(partition.topic_id, partition.partition, 0, "", 0, "compaction", Offset(0), Offset(0))


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(body: bytes, *, key: str) -> Manifest:
    """Decodes a manifest. Raises Corrupt where it is cut short, another's, of a later format, or contradicts itself."""
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{key} is no manifest: {error}", key=key) from None
    if manifest.format_version > FORMAT_VERSION:
        raise Corrupt(
            f"{key} was written in format {manifest.format_version}; this version reads up to {FORMAT_VERSION}",
            hint="Read it with the version of Tidelog that wrote it, or a later one.",
            key=key,
        )
    wrong = contradiction(manifest) or _strayed(manifest, key)
    if wrong:
        raise Corrupt(f"{key} contradicts itself: {wrong}", key=key)
    return manifest


def contradiction(manifest: Manifest) -> str:
    """Returns what contradicts itself in the manifest; empty where nothing does."""
    if manifest.version < 1 or manifest.log_start_offset < 0 or manifest.compacted_to < 0:
        return f"version {manifest.version}, log start {manifest.log_start_offset}, compacted to {manifest.compacted_to}"
    for file in manifest.files:
        if file.base_offset > file.last_offset or file.last_offset >= manifest.compacted_to:
            return f"{file.name} holds offsets {file.base_offset} to {file.last_offset} of {manifest.compacted_to}"
        if _are_disordered(file.row_groups) or not _spans(file):
            return f"the row groups of {file.name} are out of order, or not those of its offsets"
    if _are_disordered(manifest.files):
        return "its files overlap, or are out of order"
    if any(a.leader_epoch >= b.leader_epoch or a.start_offset >= b.start_offset for a, b in pairwise(manifest.epochs)):
        return "its leader epochs are out of order"
    if any(a.end_offset >= b.end_offset for a, b in pairwise(manifest.key_passes)):
        return "its passes of key compaction are out of order"
    if manifest.key_passes and manifest.key_passes[-1].end_offset > manifest.compacted_to:
        return f"its keys were compacted to {manifest.key_passes[-1].end_offset} of {manifest.compacted_to}"
    return ""


def _strayed(manifest: Manifest, key: str) -> str:
    parsed = parse_topic_key(key)
    if parsed is None or parsed.manifest is None:
        return "its key is not that of a manifest"
    if (parsed.topic_id, *parsed.manifest) != (manifest.topic_id, manifest.partition, manifest.version):
        return f"it is version {manifest.version} of {manifest.topic_partition}"
    return ""


def _are_disordered(parts: Sequence[HistoryFile | RowGroup]) -> bool:
    return any(a.last_offset >= b.base_offset for a, b in pairwise(parts))


def _spans(file: HistoryFile) -> bool:
    """Returns whether the row groups cover the range of the file."""
    groups = file.row_groups
    return (
        bool(groups)
        and groups[0].base_offset >= file.base_offset
        and groups[-1].last_offset <= file.last_offset
        and sum(group.record_count for group in groups) == file.record_count
        and all(0 < group.start < group.end <= file.footer_start < file.size_bytes for group in groups)
    )
