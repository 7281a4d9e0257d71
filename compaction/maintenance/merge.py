"""Merges several small files of history into one, a row group at a time.

Conserved: records, their checksum, and the range of offsets. The new file is read back before it is named (`verify_history`),
and counted against the manifest's data of the files that it replaces. Memory: the new file as Parquet, what one GET brings, and
one row group as columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from compaction.context import CompactionContext
from compaction.maintenance.history_stream import HistoryStream
from compaction.maintenance.replace_files import replace_files
from metadata.errors import Corrupt
from metadata.model import TopicPartition
from segments.bucket.layout import history_file_key
from segments.history.manifest import HistoryFile, Manifest
from segments.history.parquet_file import HistoryWriter, ParquetSettings, WrittenFile, verify_history
from segments.records.checksum import SUMS


async def merge_files(
    context: CompactionContext, topic: str, partition: TopicPartition, files: Sequence[HistoryFile]
) -> Manifest | None:
    """Returns the manifest that names the merged file; None where another writer has changed these files meanwhile.

    Raises Corrupt where a file can't be read: then nothing is merged. Raises NotFound where one is gone: see the newest manifest.
    """
    stream = HistoryStream(context, topic, partition)
    writer = HistoryWriter(topic, partition.partition, ParquetSettings(row_group_bytes=context.settings.row_group_bytes))
    for file in files:
        async for _, records in stream.row_groups(file):
            await asyncio.to_thread(writer.append, records)
    written = await asyncio.to_thread(writer.finish, "merged", base_offset=files[0].base_offset, last_offset=files[-1].last_offset)
    check_conserved(files, written, key=history_file_key(topic, partition, files[0].name))
    await asyncio.to_thread(verify_history, written.body, written.file)
    return await replace_files(context, topic, partition, files, written, cause="merge")


def check_conserved(
    old: Sequence[HistoryFile], written: WrittenFile | None, *, key: str, removed_records: int = 0, removed_checksum: int = 0
) -> None:
    """Raises Corrupt where the new file and the removed records together are not the records of the old files."""
    records = removed_records + (written.file.record_count if written else 0)
    checksum = (removed_checksum + (int(written.file.checksum, 16) if written else 0)) % SUMS
    expected_records = sum(file.record_count for file in old)
    expected_checksum = sum(int(file.checksum, 16) for file in old) % SUMS
    if (records, checksum) != (expected_records, expected_checksum):
        raise Corrupt(
            f"{len(old)} files from {key} on hold {records} records with the checksum {checksum:016x}; the manifest says "
            f"{expected_records} and {expected_checksum:016x}. They stay as they are",
            hint="Run `tidelog bucket verify --deep` to find which one.",
            key=key,
        )
