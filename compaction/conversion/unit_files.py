"""Converts a unit's segments to files of history on the bucket, which no manifest names yet.

    segments ─GET─▶ scratch ─▶ partition after partition: batches ─▶ Parquet, read back ─▶ PUT

`convert_unit` commits each file before it makes the next one. `make_history` makes all, and another process commits: Spark's
executors make, and its driver commits (spark/backfill/backfill.py).

Invariant: a file is written under the number of the version that may name it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from compaction.context import CompactionContext
from compaction.conversion.partition_file import NEVER_MS, CompactedRuns, DamagedRun, EncodingSettings, compact_runs
from compaction.conversion.planner import CompactionUnit, UnitPartition, UnitSegment
from compaction.conversion.scratch import ScratchFile, StoredRun, WantedRuns
from compaction.upload import upload
from metadata.errors import Corrupt, NotFound
from metadata.model import Offset, TopicPartition
from metadata.topics.topic import Topic
from segments.bucket.layout import history_file_name, segment_key
from segments.concurrency import gather_all
from segments.history.manifest import EpochStart, HistoryFile, Manifest, RememberedProducer
from segments.history.manifest_edits import with_compacted
from segments.history.parquet_file import ParquetSettings


class MadeHistory(NamedTuple):
    """Holds what runs of a partition became: files on the bucket, and what their manifest will say besides."""

    partition: TopicPartition
    # Version of the manifest that it continues: the next one may name the files.
    version: int
    files: tuple[HistoryFile, ...]
    compacted_to: Offset
    epochs: tuple[EpochStart, ...]
    producers: tuple[RememberedProducer, ...]
    record_count: int
    bytes_in: int


def made_history(manifest: Manifest, made: Sequence[CompactedRuns]) -> MadeHistory:
    """Combines consecutive runs, from `manifest.compacted_to` on. Pure."""
    return MadeHistory(
        manifest.topic_partition,
        manifest.version,
        tuple(one.written.file for one in made if one.written is not None),
        made[-1].compacted_to,
        tuple(epoch for one in made for epoch in one.epochs),
        made[-1].producers,
        sum(one.record_count for one in made),
        sum(one.bytes_in for one in made),
    )


@dataclass(slots=True)
class MadeUnit:
    """Holds what a unit became, for another process to commit."""

    histories: list[MadeHistory] = field(default_factory=list)
    # Why a partition, or the rest of it, stays in segments.
    damaged: dict[TopicPartition, str] = field(default_factory=dict)
    # As in UnitReport.
    gone: list[UnitSegment] = field(default_factory=list)
    segments_read: int = 0


@asynccontextmanager
async def unit_read(
    context: CompactionContext, unit: CompactionUnit, gone: list[UnitSegment], unreadable: dict[UnitSegment, Corrupt]
) -> AsyncIterator[ScratchFile]:
    """Yields the scratch file with the runs of the unit, each segment read once; fills `gone` and `unreadable`.

    Raises what the store raises.
    """
    wanted = {one.partition: WantedRuns(one.base_offset, one.end_offset) for one in unit.partitions}
    scratch = ScratchFile(context.settings.scratch_dir, wanted)
    try:
        segments = iter(unit.segments)
        readers = range(context.settings.compaction_reads_max)
        await gather_all(_read_segments(context, scratch, segments, gone, unreadable) for _ in readers)
        yield scratch
    finally:
        try:
            await asyncio.to_thread(scratch.close)
        finally:
            scratch.close()  # also where that was cancelled


async def make_history(context: CompactionContext, unit: CompactionUnit, manifests: Mapping[TopicPartition, Manifest]) -> MadeUnit:
    """Reads a unit and uploads the files of its partitions, named for the version after that of the given manifest.

    They are history after `commit_history`; files that it never gets are found by the collector.
    Raises what the store raises after `bucket_retry_ms` without an answer.
    """
    made = MadeUnit()
    unreadable: dict[UnitSegment, Corrupt] = {}
    async with unit_read(context, unit, made.gone, unreadable) as scratch:
        for partition in unit.partitions:
            topic, manifest = context.topics.by_id(partition.partition.topic_id), manifests[partition.partition]
            await _make_partition(context, scratch, topic, manifest, partition, made)
            if partition.partition not in made.damaged and unreadable and _reached(made, partition) < partition.end_offset:
                made.damaged[partition.partition] = str(next(iter(unreadable.values())))
    made.segments_read = context.counters.segments_read
    return made


async def _make_partition(
    context: CompactionContext, scratch: ScratchFile, topic: Topic, manifest: Manifest, partition: UnitPartition, made: MadeUnit
) -> None:
    """Makes file after file, as `_compact_partition` does, but one manifest names them all.

    With a manifest each, files behind a lost one could not be committed.
    """
    runs = list(without_gap(scratch.runs(partition.partition), partition.base_offset))
    reached, files = manifest, list[CompactedRuns]()
    while runs:
        try:
            one = await encoded(context, scratch, topic, reached, runs)
        except DamagedRun as found:
            made.damaged[partition.partition] = str(found.error)
            runs = runs[: found.before]
            continue
        except Corrupt as error:  # the file differs from its batches: that of the next partition may be right
            made.damaged[partition.partition] = str(error)
            break
        if one.written is not None:
            await upload(context, topic.name, partition.partition, one.written.file.name, one.written.body)
        version = with_compacted(
            reached,
            files=(),
            compacted_to=one.compacted_to,
            epochs=one.epochs,
            producers=one.producers,
            writer="",
            now_ms=context.clock.stamp_ms(),
        )
        reached = msgspec.structs.replace(version, version=manifest.version)
        files.append(one._replace(written=one.written and one.written._replace(body=None)))
        runs = runs[one.run_count :]
    if files:
        made.histories.append(made_history(manifest, files))


def _reached(made: MadeUnit, partition: UnitPartition) -> Offset:
    if made.histories and made.histories[-1].partition == partition.partition:
        return made.histories[-1].compacted_to
    return partition.base_offset


async def _read_segments(
    context: CompactionContext,
    scratch: ScratchFile,
    segments: Iterator[UnitSegment],
    gone: list[UnitSegment],
    unreadable: dict[UnitSegment, Corrupt],
) -> None:
    """Reads segments until there are none left; several tasks share the iterator. Missing ones also become unreadable."""
    for segment in segments:
        key = segment_key(segment.session, segment.seq)

        async def read(key: str = key, start: int = segment.start) -> bytes:
            return await context.store.get(key, start=start)

        try:
            body = await context.retry(read)
            context.counters.segments_read += 1
            await asyncio.to_thread(scratch.take_in, body, segment.start, segment.session, segment.seq)
        except NotFound:
            gone.append(segment)
            unreadable[segment] = Corrupt(
                f"{key} is gone, and was committed", hint="Restore it from a version or a backup of the bucket.", key=key
            )
        except Corrupt as error:
            unreadable[segment] = error


def without_gap(runs: list[StoredRun], base_offset: Offset) -> Iterator[StoredRun]:
    """Yields the runs that follow each other from this offset on."""
    expected = base_offset
    for run in runs:
        if run.base_offset != expected:
            return
        yield run
        expected = Offset(run.last_offset + 1)


async def encoded(
    context: CompactionContext, scratch: ScratchFile, topic: Topic, manifest: Manifest, runs: list[StoredRun]
) -> CompactedRuns:
    """Returns the next file, in memory, of these runs or of the first of them. Raises DamagedRun, and Corrupt."""
    settings = EncodingSettings(
        ParquetSettings(row_group_bytes=context.settings.row_group_bytes),
        context.settings.history_file_bytes_max,
        context.segments.decompressed_bytes_max,
        context.segments.producers_per_partition_max,
        context.segments.producer_expiry_ms,
    )

    def compact() -> CompactedRuns:
        clock = context.clock.reading()
        return compact_runs(
            manifest,
            runs,
            scratch.read,
            topic=topic.name,
            name=lambda base, last: history_file_name(base, last, manifest.version + 1, context.new_nonce(8)),
            settings=settings,
            now_ms=clock.stamp_ms,
            expiry_ms=clock.now_ms if not clock.is_doubted else NEVER_MS,
        )

    return await asyncio.to_thread(compact)
