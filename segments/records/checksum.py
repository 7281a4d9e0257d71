"""Computes one number for any set of records, in any order: batches, their Parquet and merges of it have the same. Pure.

It is the sum, modulo 2^64, of a checksum of each record (checksum_kernel.py), so that of a whole is the sum of those
of its parts. It changes with every field of a record, and distinguishes null from empty and the order of headers. It finds
mistakes of software and machines, not attacks: records with the same sum can be made up.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from segments.records.checksum_kernel import ColumnReader, SectionReader, checksum_of_rows
from segments.records.columns import OpenBatch, bytes_of, int32s_of, timestamps_of

# Sums are taken modulo this.
SUMS = 2**64


def checksum_of_opened(opened: Sequence[OpenBatch]) -> tuple[int, int]:
    """Returns count and checksum of the records in opened batches. Raises InvalidRecord where a section is malformed."""
    total = 0
    for header, section in opened:
        total += SectionReader(section).checksum(
            header.record_count, header.base_offset, header.base_timestamp, header.max_timestamp, header.log_append_time
        )
    return sum(batch.header.record_count for batch in opened), total % SUMS


def checksum_of_columns(columns: pa.RecordBatch) -> int:
    """Returns the same sum for the records as columns of record_columns.SCHEMA."""
    if columns.num_rows == 0:
        return 0
    headers = columns.column("headers")
    structs = headers.values
    return checksum_of_rows(
        columns.column("offset").to_numpy().data,
        timestamps_of(columns).data,
        columns.column("timestamp_type").to_numpy().data,
        _reader(columns.column("key")),
        _reader(columns.column("value")),
        _reader(headers, child_rows=len(structs)),
        _reader(structs.field("key")),
        _reader(structs.field("value")),
    )


def as_text(checksum: int) -> str:
    """Returns the checksum in the manifest's form: 16 hex digits."""
    return f"{checksum % SUMS:016x}"


def _reader(array: pa.Array, *, child_rows: int | None = None) -> ColumnReader:
    validity, offsets = array.buffers()[:2]
    data = bytes_of(array.buffers()[2]) if child_rows is None else memoryview(b"")
    size = len(data) if child_rows is None else child_rows
    return ColumnReader(len(array), array.offset, int32s_of(offsets), bytes_of(validity), data, size)
