"""Reads files of history from the bucket a few row groups at a time, each checked against its CRC-32C.

    footer: one GET    row groups: one GET for neighbours of up to READ_BYTES together    a small file: one GET for all of it

Memory: what one GET brings, and one row group as columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import pyarrow as pa

from compaction.context import CompactionContext
from metadata.model import TopicPartition
from segments.bucket.layout import history_file_key
from segments.history.manifest import HistoryFile, RowGroup
from segments.history.parquet_file import ParquetFooter, parse_parquet_footer, read_row_group
from segments.object_store.interface import Buffer

READ_BYTES: Final = 16 << 20


class HistoryStream:
    """Reads the files of one partition of `topic`."""

    def __init__(self, context: CompactionContext, topic: str, partition: TopicPartition) -> None:
        self._context = context
        self._topic = topic
        self._partition = partition
        self.bytes_read = 0

    async def row_groups(
        self, file: HistoryFile, groups: Sequence[RowGroup] | None = None, *, columns: Sequence[str] | None = None
    ) -> AsyncIterator[tuple[RowGroup, pa.RecordBatch]]:
        """Yields these row groups of the file, or all, as columns of record_columns.SCHEMA, or these of them.

        Raises Corrupt, NotFound, and what the store raises when it is away for too long.
        """
        wanted = file.row_groups if groups is None else groups
        key = history_file_key(self._topic, self._partition, file.name)
        if file.size_bytes <= READ_BYTES:
            body = memoryview(await self._get(key, 0, file.size_bytes))
            footer = parse_parquet_footer(body[file.footer_start :], file, key)
            for group in wanted:
                yield group, await _decoded(body[group.start : group.end], group, footer, columns)
            return
        footer = parse_parquet_footer(await self._get(key, file.footer_start, file.size_bytes), file, key)
        for neighbours in neighbours_of(wanted):
            start = neighbours[0].start
            body = memoryview(await self._get(key, start, neighbours[-1].end))
            for group in neighbours:
                yield group, await _decoded(body[group.start - start : group.end - start], group, footer, columns)

    async def _get(self, key: str, start: int, end: int) -> bytes:
        body = await self._context.retry(lambda: self._context.store.get(key, start=start, end=end))
        self.bytes_read += len(body)
        return body


async def _decoded(data: Buffer, group: RowGroup, footer: ParquetFooter, columns: Sequence[str] | None) -> pa.RecordBatch:
    return await asyncio.to_thread(read_row_group, data, group, footer, columns=columns)


def neighbours_of(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yields the row groups that one GET brings together."""
    together: list[RowGroup] = []
    for group in groups:
        if together and (group.end - together[0].start > READ_BYTES or group.start < together[-1].end):
            yield together
            together = []
        together.append(group)
    if together:
        yield together
