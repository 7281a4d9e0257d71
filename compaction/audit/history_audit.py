"""Reads manifests and Parquet of a bucket alone, and checks whether they agree with themselves and with each other.

    listing of topics/ ─▶ partitions: versions and files ─▶ newest manifest ─▶ files there, of the right size; offsets without a gap
                                                               │           └─▶ Parquet footers; deep: every byte and every record
                                                               └─▶ unnamed files: for the collector

A cluster may be at work meanwhile: where something of a partition seems wrong, it is read once more before it is reported.
Memory: the partitions of one topic, and with `deep` a few row groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from awscrt.checksums import crc32c

from compaction.audit.findings import Audit, Finding
from compaction.deletion_policy import fate_of_file, is_leftover_version
from compaction.maintenance.history_stream import neighbours_of
from metadata.errors import Corrupt, NotFound
from metadata.model import LeaderEpoch, Offset, TopicId, TopicPartition
from segments.bucket.layout import (
    TOPICS,
    history_file_key,
    history_files_prefix,
    manifest_key,
    manifests_prefix,
    parse_topic_key,
)
from segments.bucket.topic_listing import ListedFile, ListedPartition, TopicListing
from segments.history.manifest import HistoryFile, Manifest, RowGroup, decode_manifest
from segments.history.parquet_file import ParquetFooter, parse_parquet_footer, read_row_group
from segments.object_store.interface import Buffer, ObjectStore, list_all
from segments.records.checksum import as_text, checksum_of_columns

READS_MAX = 8
# Files that are read whole at the same time.
DEEP_READS_MAX = 2
PARQUET_MAGIC = b"PAR1"
PARTITIONS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """The end of a partition's Parquet history, where its segments continue."""

    compacted_to: Offset
    log_start_offset: Offset
    # Leader epoch of its last records; -1 if there are none.
    leader_epoch: LeaderEpoch


class UnnamedFile(NamedTuple):
    """Names a Parquet file that no manifest names."""

    key: str
    last_offset: Offset


class History(NamedTuple):
    """The results of the audit of manifests and Parquet."""

    ends: Mapping[TopicPartition, HistoryEnd]
    # Partitions whose manifest can't be read; they are not checked further.
    damaged: frozenset[TopicPartition]
    deleted: frozenset[TopicId]
    # The file of each partition that reaches furthest beyond its newest manifest: its records have to be in segments.
    ahead: Mapping[TopicPartition, UnnamedFile]


async def audit_history(store: ObjectStore, audit: Audit, *, deep: bool, advance: Callable[[int, int], None]) -> History:
    """Adds what it finds to `audit`, and answers where the segments of each partition have to go on.

    `advance` hears of files that were read, and of how many there are as far as is known. Raises what the store raises.
    """
    reading = _Reading(store, audit, deep, advance)
    ends: dict[TopicPartition, HistoryEnd] = {}
    damaged: set[TopicPartition] = set()
    deleted: set[TopicId] = set()
    waiting: list[ListedPartition] = []

    async def judge() -> None:
        found = await asyncio.gather(*(reading.judge(listed) for listed in waiting))
        for listed, manifest in zip(waiting, found, strict=True):
            if isinstance(manifest, Manifest):
                audit.partitions_compacted += 1
                last_epoch = manifest.epochs[-1].leader_epoch if manifest.epochs else LeaderEpoch(-1)
                ends[listed.partition] = HistoryEnd(manifest.compacted_to, manifest.log_start_offset, last_epoch)
            elif manifest is not None:
                damaged.add(listed.partition)
        waiting.clear()

    async for listed in _partitions(store, audit, deleted):
        waiting.append(listed)
        if len(waiting) >= PARTITIONS_AT_ONCE:
            await judge()
    await judge()
    return History(ends, frozenset(damaged), frozenset(deleted), reading.ahead)


async def _partitions(store: ObjectStore, audit: Audit, deleted: set[TopicId]) -> AsyncIterator[ListedPartition]:
    listing = TopicListing()
    async for info in list_all(store, TOPICS):
        audit.objects += 1
        parsed = parse_topic_key(info.key)
        if parsed is None:
            audit.note_one_of(info.key, "it is none of Tidelog's objects")
            continue
        usage = audit.topic(parsed.topic_id)
        usage.name = parsed.name
        usage.objects += 1
        usage.bytes += info.size
        if parsed.deleted is not None and not usage.is_deleted:
            deleted.add(parsed.topic_id)
            usage.is_deleted = True
            audit.collectable(usage.objects - 1, usage.bytes - info.size)  # its manifests, which come first
        elif parsed.deleted is None and usage.is_deleted:
            audit.collectable(1, info.size)
        for complete in listing.take_in(parsed, info.size):
            if isinstance(complete, ListedPartition):
                yield complete
    for complete in listing.end():
        if isinstance(complete, ListedPartition):
            yield complete


class _Reading:
    def __init__(self, store: ObjectStore, audit: Audit, deep: bool, advance: Callable[[int, int], None]) -> None:
        self._store = store
        self._audit = audit
        self._deep = deep
        self._advance = advance
        self._read_slots = asyncio.Semaphore(READS_MAX)
        self._deep_read_slots = asyncio.Semaphore(DEEP_READS_MAX)
        self._files_done = 0
        self._files_known = 0
        self.ahead: dict[TopicPartition, UnnamedFile] = {}

    async def judge(self, listed: ListedPartition) -> Manifest | Corrupt | None:
        """Reports findings of a partition. Returns its newest manifest; Corrupt if it can't be read; None if there is none."""
        self._files_known += len(listed.files)
        manifest, findings = await self._check_partition(listed)
        if findings:  # others may have been at work while we read
            again = await self._list_again(listed)
            manifest, findings = await self._check_partition(again)
            listed = again
        self._audit.findings += findings
        self._files_done += len(listed.files)
        self._advance(self._files_done, max(self._files_done, self._files_known))
        if isinstance(manifest, Manifest):
            self._count(listed, manifest)
        else:
            self._count_orphans(listed, None)
        return manifest

    async def _check_partition(self, listed: ListedPartition) -> tuple[Manifest | Corrupt | None, list[Finding]]:
        if not listed.versions:
            return None, list(check_files(listed, None))
        key = manifest_key(listed.topic, listed.partition, listed.versions[-1])
        try:
            async with self._read_slots:
                manifest = decode_manifest(await self._store.get(key), key=key)
        except Corrupt as error:
            return error, [Finding("damage", key, f"{error.message}; what is in Parquet of {listed.partition} can't be checked")]
        except NotFound as error:
            return None, [Finding("damage", key, f"it was listed, and is gone: {error.message}")]
        findings = [*check_manifest(manifest, listed, key=key), *check_files(listed, manifest)]
        sizes = {found.key.file_name: found.size_bytes for found in listed.files}
        there = [file for file in manifest.files if sizes.get(file.name) == file.size_bytes]  # the others are reported already
        for of_file in await asyncio.gather(*(self._check_file(listed, file) for file in there)):
            findings += of_file
        if self._deep:
            findings += await self._check_older(listed, manifest)
        return manifest, findings

    async def _check_file(self, listed: ListedPartition, file: HistoryFile) -> list[Finding]:
        key = history_file_key(listed.topic, listed.partition, file.name)
        try:
            async with self._read_slots:
                footer = parse_parquet_footer(await self._store.get(key, start=file.footer_start), file, key)
            if self._deep:
                async with self._deep_read_slots:
                    await self._read_all(file, footer)
                self._audit.files_read += 1
        except Corrupt as error:
            return [Finding("damage", key, error.message)]
        except NotFound as error:
            return [Finding("damage", key, f"version {listed.versions[-1]} of the manifest names it: {error.message}")]
        return []

    async def _read_all(self, file: HistoryFile, footer: ParquetFooter) -> None:
        """Reads every byte of the file but the footer, some row groups at a time. Raises Corrupt if it contradicts the manifest."""
        total, earliest, latest = 0, [], []
        for groups in neighbours_of(file.row_groups):
            start = groups[0].start
            body = memoryview(await self._store.get(footer.key, start=start, end=groups[-1].end))
            for group in groups:
                part = body[group.start - start : group.end - start]
                checksum, begin_ms, end_ms = await asyncio.to_thread(_sum_up, part, group, footer)
                total += checksum
                earliest.append(begin_ms)
                latest.append(end_ms)
                if end_ms != group.max_timestamp:
                    fault = (
                        f"records up to {group.last_offset} are of {end_ms} at the latest, the manifest says {group.max_timestamp}"
                    )
                    raise Corrupt(f"{footer.key}: {fault}", key=footer.key)
        found = (as_text(total), min(earliest), max(latest))
        in_manifest = (file.checksum, file.min_timestamp, file.max_timestamp)
        if found != in_manifest:
            what = f"checksum, first and last timestamp are {found}, the manifest says {in_manifest}"
            raise Corrupt(f"{footer.key} holds other records than were written: {what}", key=footer.key)
        end = file.row_groups[-1].end
        rest = await self._store.get(footer.key, start=end, end=file.footer_start) if end < file.footer_start else b""
        first = await self._store.get(footer.key, end=file.row_groups[0].start)
        if crc32c(rest) != file.index_crc32c or first != PARQUET_MAGIC:
            raise Corrupt(
                f"{footer.key}: bytes between its row groups and its footer, or its first, are not as written", key=footer.key
            )

    async def _check_older(self, listed: ListedPartition, newest: Manifest) -> list[Finding]:
        """Checks that values which never decrease from one version to the next do not, over the versions still there."""
        findings = []
        later = newest
        for version in reversed([one for one in listed.versions[:-1] if not is_leftover_version(one, newest)]):
            key = manifest_key(listed.topic, listed.partition, version)
            try:
                async with self._read_slots:
                    earlier = decode_manifest(await self._store.get(key), key=key)
            except NotFound:
                continue  # its grace is over
            except Corrupt as error:
                findings.append(Finding("note", key, f"{error.message}; it is superseded, and not read any more"))
                continue
            for name, before, after in (
                ("log start", earlier.log_start_offset, later.log_start_offset),
                ("end of history", earlier.compacted_to, later.compacted_to),
            ):
                if after < before:
                    findings.append(Finding("damage", key, f"its {name} is {before}; in version {later.version} it is {after}"))
            later = earlier
        return findings

    async def _list_again(self, listed: ListedPartition) -> ListedPartition:
        again = ListedPartition(listed.topic, listed.partition)
        for prefix in (
            history_files_prefix(listed.topic, listed.partition),  # first: what a manifest names was there before it
            manifests_prefix(listed.topic, listed.partition),
        ):
            async for info in list_all(self._store, prefix):
                parsed = parse_topic_key(info.key)
                if parsed is not None and parsed.manifest is not None:
                    again.versions.append(parsed.manifest.version)
                elif parsed is not None and parsed.history is not None:
                    again.files.append(ListedFile(parsed.history, info.size))
        return again

    def _count(self, listed: ListedPartition, manifest: Manifest) -> None:
        usage = self._audit.topic(listed.partition.topic_id)
        usage.partitions.add(listed.partition.partition)
        usage.manifest_versions += manifest.version
        for file in manifest.files:
            usage.files += 1
            usage.file_bytes += file.size_bytes
            usage.file_records += file.record_count
            usage.record_bytes += file.record_bytes
            usage.row_groups += len(file.row_groups)
        self._audit.collectable(len(listed.versions) - 1, 0)
        for version in listed.versions:
            if is_leftover_version(version, manifest):
                where = manifest_key(listed.topic, listed.partition, version)
                self._audit.note_one_of(where, "an old manifest that a crash left: the collector deletes it")
        self._count_orphans(listed, manifest)

    def _count_orphans(self, listed: ListedPartition, manifest: Manifest | None) -> None:
        retired = {one.name for one in manifest.retired} if manifest else set()
        for found, size_bytes in listed.files:
            fate = fate_of_file(found, manifest)
            where = history_file_key(listed.topic, listed.partition, found.file_name)
            if fate == "delete":
                self._audit.note_one_of(
                    where, "a file that no manifest names, of work that was cut short: the collector deletes it"
                )
            elif fate in {"wait", "ahead"}:
                self._audit.note_one_of(
                    where, "a file that no manifest names yet: it is being compacted, or was when a compactor died"
                )
            if fate == "ahead":
                before = self.ahead.get(listed.partition)
                if before is None or before.last_offset < found.last_offset:
                    self.ahead[listed.partition] = UnnamedFile(where, found.last_offset)
            if fate == "delete" or found.file_name in retired:
                self._audit.collectable(1, size_bytes)


def _sum_up(data: Buffer, group: RowGroup, footer: ParquetFooter) -> tuple[int, int, int]:
    """Returns the checksum, and the first and last timestamp."""
    records = read_row_group(data, group, footer)
    times = records.column("timestamp").view(pa.int64()).to_numpy()
    return checksum_of_columns(records), int(times.min()), int(times.max())


# ── the decisions ──


def check_manifest(manifest: Manifest, listed: ListedPartition, *, key: str) -> Iterator[Finding]:
    """Checks the newest manifest of a partition against the listing, and the offsets of its files."""
    sizes = {found.key.file_name: found.size_bytes for found in listed.files}
    for file in manifest.files:
        where = history_file_key(listed.topic, listed.partition, file.name)
        if file.name not in sizes:
            yield Finding("damage", where, f"it is gone, and was in use: {key} names it")
        elif sizes[file.name] != file.size_bytes:
            yield Finding("damage", where, f"it has {sizes[file.name]} bytes, and {key} states {file.size_bytes}")
    retired = {one.name for one in manifest.retired}
    if both := retired & {file.name for file in manifest.files}:
        yield Finding("damage", key, f"it names {min(both)}, and calls it retired")
    if not manifest.key_passes:
        yield from _check_dense(manifest, key)
    for file in manifest.files:
        if file.record_count > file.last_offset - file.base_offset + 1:
            yield Finding("damage", key, f"{file.name} has {file.record_count} records of fewer offsets")
    for epoch in manifest.epochs:
        if epoch.start_offset > manifest.compacted_to:
            yield Finding("damage", key, f"leader epoch {epoch.leader_epoch} begins at {epoch.start_offset}, beyond its end")


def _check_dense(manifest: Manifest, key: str) -> Iterator[Finding]:
    """Checks that no offset is missing from the log start on, unless keys were compacted."""
    expected = manifest.log_start_offset
    for file in manifest.files:
        if file.base_offset > expected:
            yield Finding("damage", key, f"offsets {expected} to {file.base_offset - 1} are in no file")
        if file.base_offset >= manifest.log_start_offset and file.record_count != file.last_offset - file.base_offset + 1:
            held = f"{file.record_count} records of offsets {file.base_offset} to {file.last_offset}"
            yield Finding("damage", key, f"{file.name} has {held}, though keys were never compacted")
        expected = max(expected, Offset(file.last_offset + 1))
    if expected < manifest.compacted_to:
        yield Finding("damage", key, f"offsets {expected} to {manifest.compacted_to - 1} are in no file")


def check_files(listed: ListedPartition, manifest: Manifest | None) -> Iterator[Finding]:
    """Finds files of manifests that are not there."""
    for found, _ in listed.files:
        if fate_of_file(found, manifest) == "odd":
            where = history_file_key(listed.topic, listed.partition, found.file_name)
            version = manifest.version if manifest else 0
            yield Finding(
                "damage", where, f"it was written for version {found.version} of its manifest, and the newest is {version}"
            )
