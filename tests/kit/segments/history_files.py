"""Files of history, and checksums of batches, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from segments.history.parquet_file import HistoryWriter, ParquetSettings, WrittenFile
from segments.object_store.interface import Buffer
from segments.records.checksum import checksum_of_opened
from segments.records.columns import open_batches


def write_history(
    columns: Iterable[pa.RecordBatch],
    *,
    name: str,
    topic: str,
    partition: int,
    base_offset: int | None = None,
    last_offset: int | None = None,
    settings: ParquetSettings | None = None,
) -> WrittenFile:
    """Writes one file of these records: see HistoryWriter."""
    writer = HistoryWriter(topic, partition, settings or ParquetSettings())
    for batch in columns:
        writer.append(batch)
    return writer.finish(name, base_offset=base_offset, last_offset=last_offset)


def checksum_of_batches(batches: Sequence[Buffer], *, decompressed_bytes_max: int) -> tuple[int, int]:
    """Returns the number of records and their sum, from whole batches. Control batches are skipped."""
    return checksum_of_opened(open_batches(batches, decompressed_bytes_max=decompressed_bytes_max))
