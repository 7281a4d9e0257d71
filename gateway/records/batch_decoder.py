"""Decodes fetched batches to the records of an answer, one slice at a time, for listeners that answer with records. Pure.

    batches ─▶ records from the wanted offset on ─▶ slices ─▶ encoded ─▶ until the answer is full ─▶ next offset

Invariants: the result begins at the wanted offset, even if the first batch begins before it. However well batches were compressed,
an answer takes `bytes_max` and one slice, beside one open batch. An answer may end in the middle of a batch; the reader continues
from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from metadata.errors import Corrupt, InvalidRecord
from segments.object_store.interface import Buffer
from segments.read.log_reader import FetchResult
from segments.records.batch import parse_header, split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import decode_batches, iterate_records
from segments.records.compression import Codec

# More than this, or any compressed batch, is decoded in a thread, since it would hold the event loop for milliseconds.
THREAD_BYTES: Final = 64 << 10
THREAD_RECORDS: Final = 1_000

# Most bytes of an answer with decoded records.
OPENED_BYTES_MAX: Final = 16 << 20
# Most records of such an answer.
RECORDS_MAX: Final = 100_000

# A slice ends at this number of records, or after the record that reaches this number of bytes of keys, values and headers.
SLICE_RECORDS: Final = 500
SLICE_BYTES: Final = 64 << 10
# A batch of more records is decoded to columns first: as tuples, its records would take 170 bytes each.
TUPLES_MAX: Final = 50_000


# Encodes at least one record.
Encode = Callable[[list[RecordTuple]], bytes]


class DecodedRecords(NamedTuple):
    """Encoded records of an answer in pieces, their size and number, and the offset to continue from."""

    pieces: list[bytes]
    size_bytes: int
    record_count: int
    next_offset: int


def room_for(batch_bytes: int) -> int:
    """Returns the bytes that an answer may take for records of `batch_bytes`, since they grow when decompressed and encoded."""
    return min(OPENED_BYTES_MAX, 4 * batch_bytes)


def takes_long(fetched: Sequence[FetchResult]) -> bool:
    """Returns whether decoding these batches would hold the event loop for milliseconds."""
    if sum(answer.size_bytes for answer in fetched) > THREAD_BYTES:
        return True
    try:
        headers = [parse_header(batch) for answer in fetched for batch in _batches(answer)]
    except InvalidRecord:
        return False  # decoding it fails at once
    return any(header.codec is not Codec.NONE for header in headers) or sum(h.record_count for h in headers) > THREAD_RECORDS


def decode_records(
    fetched: FetchResult,
    offset: int,
    encode: Encode,
    *,
    records_max: int,
    bytes_max: int,
    decompressed_bytes_max: int,
) -> DecodedRecords:
    """Encodes the records from `offset` on: up to `records_max`, and until they take `bytes_max`, but at least one.

    Raises Corrupt for a stored batch that cannot be decoded, and what `encode` raises.
    """
    pieces: list[bytes] = []
    size_bytes = record_count = 0
    try:
        for batch in _batches(fetched):
            if record_count == records_max or size_bytes >= bytes_max:
                return DecodedRecords(pieces, size_bytes, record_count, parse_header(batch).base_offset)
            for records in _slices(batch, offset, decompressed_bytes_max):
                if record_count == records_max or size_bytes >= bytes_max:
                    return DecodedRecords(pieces, size_bytes, record_count, records[0][0])
                room = records_max - record_count
                pieces.append(encode(records[:room]))
                size_bytes += len(pieces[-1])
                record_count += min(len(records), room)
                if room < len(records):
                    return DecodedRecords(pieces, size_bytes, record_count, records[room][0])
    except InvalidRecord as error:
        raise corrupt(offset, error) from error
    return DecodedRecords(pieces, size_bytes, record_count, fetched.next_offset)


def corrupt(offset: int, error: InvalidRecord) -> Corrupt:
    """Returns the error for a stored batch that cannot be decoded."""
    return Corrupt(f"a committed batch from offset {offset} on can't be opened: {error.message}", offset=offset)


def _batches(fetched: FetchResult) -> list[memoryview]:
    return split_batches(b"".join(fetched.batches))


def _slices(batch: Buffer, offset: int, decompressed_bytes_max: int) -> Iterator[list[RecordTuple]]:
    """Yields the batch's records from `offset` on in slices of at least one."""
    for records in _tuples(batch, offset, decompressed_bytes_max):
        first, bytes_count = 0, 0
        for at, (record_offset, _, key, value, headers) in enumerate(records):
            if record_offset < offset:
                first = at + 1
                continue
            bytes_count += len(key or b"") + len(value or b"")
            if headers:
                bytes_count += sum(len(name) + len(content or b"") for name, content in headers)
            if bytes_count >= SLICE_BYTES or at - first >= SLICE_RECORDS - 1:
                yield records[first : at + 1]
                first, bytes_count = at + 1, 0
        if first < len(records):
            yield records[first:]


def _tuples(batch: Buffer, offset: int, decompressed_bytes_max: int) -> Iterator[list[RecordTuple]]:
    """Yields the records of a batch: all at once, or SLICE_RECORDS at a time if the batch has more than TUPLES_MAX."""
    if parse_header(batch).record_count <= TUPLES_MAX:
        yield iterate_records(batch, decompressed_bytes_max=decompressed_bytes_max)
        return
    columns = decode_batches([batch], decompressed_bytes_max=decompressed_bytes_max)
    first = int(np.searchsorted(columns.column("offset").to_numpy(), offset))
    for start in range(first, columns.num_rows, SLICE_RECORDS):
        yield _rows(columns.slice(start, SLICE_RECORDS))


def _rows(columns: pa.RecordBatch) -> list[RecordTuple]:
    headers = [tuple((header["key"], header["value"]) for header in of_one) for of_one in columns.column("headers").to_pylist()]
    return list(
        zip(
            columns.column("offset").to_pylist(),
            columns.column("timestamp").cast(pa.int64()).to_pylist(),
            columns.column("key").to_pylist(),
            columns.column("value").to_pylist(),
            headers,
            strict=True,
        )
    )
