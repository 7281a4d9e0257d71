"""Compacts one unit: reads each of its segments once, and makes history of each of its partitions.

    segments ─GET─▶ scratch ─▶ partition after partition:  batches ─▶ Parquet, read back ─▶ PUT ─▶ is the topic still there?
                                                               ▲                                      │
                                                               └── next file ◀── committed ◀── create manifest n+1
                                                                                                      │ lost
                                                                          the newest one is read, and planning begins again

Damage is logged with its object and range and stays where it is, and so do the runs behind it; all others go on. Work on a
partition may end at any await, by a crash or by being cancelled: it leaves at most a file that no manifest names, which the
collector deletes.

Invariants: a manifest names only files that were read back and are on the bucket; a file is written under the number of the version
that is to name it first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from compaction.context import CompactionContext
from compaction.conversion.partition_file import CompactedRuns, DamagedRun
from compaction.conversion.planner import CompactionUnit, UnitPartition, UnitSegment
from compaction.conversion.scratch import ScratchFile
from compaction.conversion.unit_files import MadeHistory, encoded, made_history, unit_read, without_gap
from compaction.upload import discard, take_back_unnamed, upload
from compaction.wal.state import WalState
from metadata.errors import Corrupt, TidelogError
from metadata.model import TopicPartition
from metadata.topics.topic import Topic
from segments.concurrency import gather_all
from segments.history.manifest import Manifest, may_follow
from segments.history.manifest_edits import with_compacted

# Attempts to create the next version of a manifest. Each begins with the newest.
ATTEMPTS_MAX: Final = 4

log = logging.getLogger(__name__)


@dataclass(slots=True)
class UnitReport:
    """Reports the outcome of a unit."""

    manifests: int = 0
    damaged: dict[TopicPartition, Corrupt] = field(default_factory=dict)
    # Bugs that concern one partition each, which counts as damaged. The others went on.
    unforeseen: list[Exception] = field(default_factory=list)
    # Missing segments: another compactor was faster, or they were deleted by hand.
    gone: list[UnitSegment] = field(default_factory=list)


async def convert_unit(context: CompactionContext, state: WalState, unit: CompactionUnit) -> UnitReport:
    """Compacts the unit. Raises what the store raises after `bucket_retry_ms` without an answer; committed work stays."""
    report = UnitReport()
    unreadable: dict[UnitSegment, Corrupt] = {}
    async with unit_read(context, unit, report.gone, unreadable) as scratch:
        partitions = iter(unit.partitions)
        encoders = range(context.settings.compaction_threads)
        await gather_all(_compact_partitions(context, state, scratch, partitions, report, unreadable) for _ in encoders)
    context.counters.units += bool(report.manifests)
    return report


async def _compact_partitions(
    context: CompactionContext,
    state: WalState,
    scratch: ScratchFile,
    partitions: Iterator[UnitPartition],
    report: UnitReport,
    unreadable: dict[UnitSegment, Corrupt],
) -> None:
    for partition in partitions:
        topic = context.topic(partition.partition.topic_id)
        if topic is None:
            continue
        try:
            report.manifests += await _compact_partition(context, state, scratch, topic, partition)
        except Corrupt as error:
            report.damaged[partition.partition] = error
            continue
        except TidelogError:
            raise  # of the bucket: the next partition would fail as well
        except Exception as error:  # noqa: BLE001  # a bug with one partition must not keep all others in segments
            what = f"{partition.partition} of {topic.name} failed with an unexpected error: {type(error).__name__}: {error}"
            report.damaged[partition.partition] = Corrupt(
                what, hint="Its records stay in segments. Report this to the makers of Tidelog."
            )
            report.unforeseen.append(error)
            continue
        missing = _missing(state, partition)
        if missing is not None:
            damage = next((error for segment, error in unreadable.items() if segment[:2] == missing), None)
            if damage is not None:
                report.damaged[partition.partition] = damage


def _missing(state: WalState, partition: UnitPartition) -> tuple[int, int] | None:
    """Returns the segment of the first run of the unit that still waits."""
    runs = state.pending.get(partition.partition)
    if not runs or runs.first.base_offset >= partition.end_offset:
        return None
    return runs.first.session, runs.first.seq


async def _compact_partition(
    context: CompactionContext, state: WalState, scratch: ScratchFile, topic: Topic, partition: UnitPartition
) -> int:
    """Makes file after file, each committed by a manifest of its own; returns their number.

    Raises Corrupt where something is damaged, after what lies before it was committed.
    """
    where = partition.partition
    runs = list(without_gap(scratch.runs(where), partition.base_offset))
    committed = 0
    damage: Corrupt | None = None
    attempts = 0
    while runs and attempts < ATTEMPTS_MAX:
        manifest = await context.retry(lambda: context.manifests.newest(topic.name, where))
        state.advance(manifest)
        runs = [run for run in runs if run.base_offset >= manifest.compacted_to]
        reached, log_start = manifest.compacted_to, manifest.log_start_offset
        if not runs or not may_follow(runs[0].base_offset, compacted_to=reached, log_start_offset=log_start):
            break  # another compactor has gone on with it
        try:
            made = await encoded(context, scratch, topic, manifest, runs)
        except DamagedRun as found:
            damage = found.error
            log.error(
                "partition stays in segments partition=%s topic=%s from=%s: %s", where, topic.name, runs[found.before][0], damage
            )
            runs = runs[: found.before]
            continue
        attempts += 1
        if await _commit(context, state, topic, manifest, made):
            runs = runs[made.run_count :]
            committed += 1
            attempts = 0
        elif context.topic(where.topic_id) is None:
            break
    if damage is not None:
        raise damage
    return committed


async def _commit(context: CompactionContext, state: WalState, topic: Topic, manifest: Manifest, made: CompactedRuns) -> bool:
    """Returns whether the file is history now. Otherwise deletes it, as no manifest can name it any more."""
    if made.written is not None:
        await upload(context, topic.name, manifest.topic_partition, made.written.file.name, made.written.body)
    return await commit_history(context, state, topic, manifest, made_history(manifest, [made]))


async def commit_history(context: CompactionContext, state: WalState, topic: Topic, manifest: Manifest, made: MadeHistory) -> bool:
    """Returns whether what was made from `manifest` is history now. Otherwise deletes its files, which can't be named any more."""
    if context.topic(manifest.topic_id) is None:
        log.info("compaction stopped topic=%s: the topic was deleted meanwhile", topic.name)
        for file in made.files:
            await discard(context, topic.name, manifest.topic_partition, file.name)
        return False
    version = with_compacted(
        manifest,
        files=made.files,
        compacted_to=made.compacted_to,
        epochs=made.epochs,
        producers=made.producers,
        writer=context.new_nonce(16),
        now_ms=context.clock.stamp_ms(),
    )
    if await context.manifests.commit(topic.name, version):
        state.advance(version)
        _count(context, made)
        return True
    context.counters.lost += 1
    for file in made.files:
        await take_back_unnamed(context, topic.name, manifest.topic_partition, file.name, version.version)
    return False


def _count(context: CompactionContext, made: MadeHistory) -> None:
    counters = context.counters
    counters.manifests += 1
    counters.records += made.record_count
    counters.bytes_in += made.bytes_in
    counters.files += len(made.files)
    counters.bytes_out += sum(file.size_bytes for file in made.files)
