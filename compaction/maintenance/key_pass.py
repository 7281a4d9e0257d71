"""Runs a pass of key compaction: fills the map from the dirty part, then rewrites files that lose records.

    dirty row groups ─▶ KeyMap, as far as memory goes ─▶ groups of neighbouring files ─▶ one new file each, where anything goes
                                                                                             │
                                       when all are through: the manifest remembers the pass ◀┘

Each group is committed by itself, so that a crash loses one group's work; removed records had newer ones of their key,
which stay. The pass is remembered only when every file was read and no other writer changed them meanwhile: else it begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compaction.context import CompactionContext
from compaction.maintenance.history_stream import HistoryStream
from compaction.maintenance.key_compaction import KeyPassPlan, SortedRecords, passes_after, sort_records
from compaction.maintenance.key_map import KeyMap
from compaction.maintenance.merge import check_conserved
from compaction.maintenance.replace_files import ATTEMPTS_MAX, KeyPasses, replace_files
from metadata.model import Offset, TopicPartition
from segments.bucket.layout import history_file_key
from segments.history.manifest import HistoryFile, Manifest
from segments.history.manifest_edits import with_key_passes
from segments.history.parquet_file import HistoryWriter, ParquetSettings, WrittenFile, verify_history
from segments.records.checksum import checksum_of_columns


class PassOutcome(NamedTuple):
    """Reports a pass."""

    # False: others changed the files meanwhile.
    is_over: bool
    end_offset: Offset
    removed: int
    bytes_read: int


async def run_key_pass(
    context: CompactionContext, topic: str, partition: TopicPartition, manifest: Manifest, plan: KeyPassPlan
) -> PassOutcome:
    """Runs `plan`, which was made of `manifest`. Raises Corrupt, NotFound, and what the store raises; committed groups stay."""
    stream = HistoryStream(context, topic, partition)
    newest = KeyMap(bytes_max=context.settings.key_map_bytes_max, secret=bytes.fromhex(context.new_nonce(16)))
    end = await _fill(newest, stream, manifest, plan)
    if not plan.files(manifest, end):  # retention has removed the tombstones meanwhile
        forgotten = KeyPasses(
            manifest.key_passes, passes_after(manifest.key_passes, plan, end, tombstones=0, now_ms=context.clock.stamp_ms())
        )
        return PassOutcome(await _remember(context, topic, partition, forgotten), end, 0, stream.bytes_read)
    removed = tombstones = 0
    together = list(_together(plan.files(manifest, end), context.settings.merge_bytes_max))
    for files in together:
        sifted = await _sift(context, stream, topic, partition, files, newest, plan, end)
        tombstones += sifted.new_tombstones
        removed += sifted.removed
        over = None
        if files is together[-1]:
            passes = passes_after(manifest.key_passes, plan, end, tombstones=tombstones, now_ms=context.clock.stamp_ms())
            over = KeyPasses(manifest.key_passes, passes)
        if sifted.removed:
            replacing = replace_files(context, topic, partition, files, sifted.written, cause="key-compaction", key_passes=over)
            is_done = await replacing is not None
        else:
            is_done = over is None or await _remember(context, topic, partition, over)
        if not is_done:
            return PassOutcome(False, end, removed, stream.bytes_read)
    return PassOutcome(True, end, removed, stream.bytes_read)


async def _remember(context: CompactionContext, topic: str, partition: TopicPartition, key_passes: KeyPasses) -> bool:
    """Records in the manifest that a pass is over. Returns False where another compactor's pass was first."""
    for _ in range(ATTEMPTS_MAX):
        newest = await context.retry(lambda: context.manifests.read_one(topic, partition))
        if newest.key_passes != key_passes.before:
            return False
        following = with_key_passes(newest, passes=key_passes.after, writer=context.new_nonce(16), now_ms=context.clock.stamp_ms())
        if await context.manifests.commit(topic, following):
            return True
    return False


async def _fill(newest: KeyMap, stream: HistoryStream, manifest: Manifest, plan: KeyPassPlan) -> Offset:
    """Adds the keys of [clean_to, dirty_to), or as many as fit; returns where those end, at best between two files."""
    file_end = plan.clean_to
    if plan.dirty_to <= plan.clean_to:
        return plan.clean_to  # for tombstones alone: what follows is not due, though it may share a row group with what is clean
    for file in manifest.files:
        groups = [group for group in file.row_groups if group.last_offset >= plan.clean_to and group.base_offset < plan.dirty_to]
        if not groups:
            continue
        file_end = max(plan.clean_to, file.base_offset)
        async for group, columns in stream.row_groups(file, groups, columns=("offset", "key")):
            first = max(0, int(columns["offset"].to_numpy().searchsorted(plan.clean_to)))
            part = columns.slice(first)
            if not await asyncio.to_thread(newest.add, part["key"], part["offset"].to_numpy()):
                return file_end if file_end > plan.clean_to else group.base_offset
    return plan.dirty_to


def _together(files: Sequence[HistoryFile], bytes_max: int) -> Iterator[list[HistoryFile]]:
    """Yields neighbours that become one file where they lose records."""
    together: list[HistoryFile] = []
    for file in files:
        if together and sum(one.size_bytes for one in together) + file.size_bytes > bytes_max:
            yield together
            together = []
        together.append(file)
    if together:
        yield together


class _Sifted(NamedTuple):
    written: WrittenFile | None
    removed: int
    new_tombstones: int


async def _sift(
    context: CompactionContext,
    stream: HistoryStream,
    topic: str,
    partition: TopicPartition,
    files: Sequence[HistoryFile],
    newest: KeyMap,
    plan: KeyPassPlan,
    end: Offset,
) -> _Sifted:
    untouched = await _untouched(stream, files, newest, plan, end)
    if untouched is not None:
        return untouched
    writer = HistoryWriter(topic, partition.partition, ParquetSettings(row_group_bytes=context.settings.row_group_bytes))
    kept = removed = removed_checksum = tombstones = 0

    def take(part: SortedRecords) -> int:
        writer.append(part.kept)
        return checksum_of_columns(part.removed)

    for file in files:
        async for _, records in stream.row_groups(file):
            part = await asyncio.to_thread(sort_records, records, newest, plan, end)
            removed_checksum += await asyncio.to_thread(take, part)
            kept += part.kept.num_rows
            removed += part.removed.num_rows
            tombstones += part.new_tombstones
    key = history_file_key(topic, partition, files[0].name)
    if not kept:
        check_conserved(files, None, key=key, removed_records=removed, removed_checksum=removed_checksum)
        return _Sifted(None, removed, tombstones)
    written = await asyncio.to_thread(writer.finish, "kept", base_offset=files[0].base_offset, last_offset=files[-1].last_offset)
    check_conserved(files, written, key=key, removed_records=removed, removed_checksum=removed_checksum)
    await asyncio.to_thread(verify_history, written.body, written.file)
    return _Sifted(written, removed, tombstones)


async def _untouched(
    stream: HistoryStream, files: Sequence[HistoryFile], newest: KeyMap, plan: KeyPassPlan, end: Offset
) -> _Sifted | None:
    """Returns the result where no record of these files goes; None at the first one that does.

    It is often in the first row group: encoding costs several times what reading does.
    """
    tombstones = 0
    for file in files:
        async for _, records in stream.row_groups(file):
            part = await asyncio.to_thread(sort_records, records, newest, plan, end)
            if part.removed.num_rows:
                return None
            tombstones += part.new_tombstones
    return _Sifted(None, 0, tombstones)
