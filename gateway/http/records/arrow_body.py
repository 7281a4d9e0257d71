"""Decodes Arrow IPC streams of records into record batches: whole columns, without a loop over records. Pure.

    value      binary or string                    required
    key        binary or string                    absent: no keys
    partition  any integer, null: by key           absent: by key
    timestamp  timestamp, or int64 milliseconds    absent or null: now
    headers    list<struct<key: string, value: binary>>

Invariant: everything is validated before it is used: buffers by their announced size before decompression, offsets and UTF-8 after
it. Types whose values may share bytes (dictionaries, views) are refused, so that a small body stays small.
Source: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gateway.records.partitioning import (
    RECORDS_MAX,
    CheckedBatch,
    Plan,
    Routing,
    check_producer_fits,
    cut_batches,
    no_such_partition,
)
from metadata.errors import InvalidArgument, TooLarge
from segments.records.columns import HEADERS_TYPE, encode_batch
from segments.records.partitioner import NO_PARTITION, partitions_of

CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
# About the size of a record beside its key, value and headers.
RECORD_BYTES_EXTRA: Final = 12
# The partition of a record that names none.
BY_KEY: Final = -(2**63)

_COLUMNS: Final = ("key", "value", "partition", "timestamp", "headers")
_BYTES_TYPES: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


class ArrowRecords(NamedTuple):
    """Holds the columns of a request, one row a record."""

    # pa.BinaryArray
    keys: Any
    values: Any
    # BY_KEY for a record that names none; None if no record names one.
    partitions: npt.NDArray[np.int64] | None
    timestamps_ms: npt.NDArray[np.int64]
    headers: Any | None
    size_bytes: int


def parse_arrow(body: bytes, *, now_ms: int, decompressed_bytes_max: int) -> ArrowRecords:
    """Returns the columns of all batches of the stream. Raises InvalidArgument, TooLarge."""
    try:
        table = pa.Table.from_batches(_batches(body, decompressed_bytes_max)).combine_chunks()
        table.validate(full=True)
        _check_count(table.num_rows)
        return ArrowRecords(
            _bytes_column(table, "key"),
            _bytes_column(table, "value"),
            _partitions(table),
            _timestamps(table, now_ms),
            _headers(table),
            table.nbytes + RECORD_BYTES_EXTRA * table.num_rows,
        )
    except (pa.ArrowException, OSError, struct.error, OverflowError, ValueError) as error:
        raise InvalidArgument(f"the body is not an Arrow stream: {str(error)[:200]}", hint=f"Its type is {CONTENT_TYPE}.") from None


def plan_arrow(records: ArrowRecords, routing: Routing, *, default_partition: int | None) -> Plan:
    """Routes and encodes the records, as records/partitioning.py does for tuples. Raises UnknownPartition, TooLarge."""
    partitions = _routes(records, routing.partition_count, routing.keyless_partition, default_partition)
    counts = np.bincount(partitions, minlength=routing.partition_count)
    if (counts > 0).sum() > 1:
        records = _in_order_of(np.argsort(partitions, kind="stable"), records)
    batches: list[CheckedBatch] = []
    first = 0
    for partition in np.flatnonzero(counts).tolist():
        count = int(counts[partition])

        def encode(start: int, end: int, first: int = first) -> bytes:
            return encode_batch(
                records.keys.slice(first + start, end - start),
                records.values.slice(first + start, end - start),
                timestamps_ms=records.timestamps_ms[first + start : first + end],
                headers=None if records.headers is None else records.headers.slice(first + start, end - start),
                **routing.producer._asdict(),
            )

        expected_bytes = records.size_bytes * count // len(partitions)
        batches += cut_batches(partition, count, encode, routing, expected_bytes=expected_bytes)
        first += count
    check_producer_fits(routing.producer, batches)
    return Plan(partitions, batches)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _batches(body: bytes, decompressed_bytes_max: int) -> list[Any]:
    messages = iter(pa.ipc.MessageReader.open_stream(pa.py_buffer(body)))
    first = next(messages, None)
    if first is None:
        raise InvalidArgument("the body is not an Arrow stream: it is empty")
    if first.type != "schema":  # pyarrow 26 crashes on other messages
        raise InvalidArgument(f"the Arrow stream begins with a {first.type} message instead of its schema")
    schema = pa.ipc.read_schema(first)
    _check_schema(schema)
    batches = [pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)]
    bytes_left = decompressed_bytes_max
    for message in messages:
        if message.type != "record batch":
            raise InvalidArgument(f"the Arrow stream has a {message.type} message; only record batches are accepted")
        bytes_left -= _bytes_decompressed(message)
        if bytes_left < 0:
            raise TooLarge(f"the Arrow buffers take more than {decompressed_bytes_max} bytes without their compression")
        batches.append(pa.ipc.read_record_batch(message, schema))
    return batches


def _check_schema(schema: Any) -> None:
    if len(set(schema.names)) < len(schema.names):
        raise InvalidArgument("two columns of the Arrow stream have the same name")
    if "value" not in schema.names:
        raise InvalidArgument("the Arrow stream has no column `value`", hint=f"Columns are {', '.join(_COLUMNS)}.")
    for field in schema:
        if field.name not in _COLUMNS:
            raise InvalidArgument(f"the Arrow column {field.name[:60]!r} is not known", hint=f"Columns are {', '.join(_COLUMNS)}.")
        fits, wanted = {
            "key": (field.type in _BYTES_TYPES, "binary or string"),
            "value": (field.type in _BYTES_TYPES, "binary or string"),
            "partition": (pa.types.is_integer(field.type), "an integer"),
            "timestamp": (pa.types.is_timestamp(field.type) or field.type == pa.int64(), "a timestamp, or int64 milliseconds"),
            "headers": (_is_headers(field.type), "list<struct<key: string, value: binary>>"),
        }[field.name]
        if not fits:
            raise InvalidArgument(f"the Arrow column {field.name} is {field.type}; it must be {wanted}")


def _is_headers(kind: Any) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return list(fields) == ["key", "value"] and fields["key"] in _BYTES_TYPES[:2] and fields["value"] in _BYTES_TYPES[:2]


def _bytes_decompressed(message: Any) -> int:
    """Returns the decompressed size of a record batch: each compressed buffer begins with its size (int64; -1: not compressed).

    The flatbuffer, which Arrow has verified:  Message.header (2) ─▶ RecordBatch.buffers (2), RecordBatch.compression (3)
    """
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _table_field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    if batch is None or _table_field(metadata, batch, 3) is None:
        return len(body)
    buffers = _table_field(metadata, batch, 2)
    assert buffers is not None, "a record batch without its buffers was verified"
    total = 0
    for at in range(struct.unpack_from("<I", metadata, buffers)[0]):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * at)
        size = struct.unpack_from("<q", body, offset)[0] if length >= 8 else 0
        total += length if size == -1 else abs(size)
    return total


def _table_field(buffer: memoryview, table: int, field: int) -> int | None:
    """Follows the offset in a field of the table at `table`; returns None if the field is absent."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    if 4 + 2 * field >= struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    at = struct.unpack_from("<H", buffer, vtable + 4 + 2 * field)[0]
    return None if at == 0 else int(table + at + struct.unpack_from("<I", buffer, table + at)[0])


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidArgument("the request has no records")
    if count > RECORDS_MAX:
        raise TooLarge(
            f"the request has {count} records; at most {RECORDS_MAX} are accepted", hint="Send fewer records per request."
        )


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bytes_column(table: Any, name: str) -> Any:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.binary())
    return _array(table, name).cast(pa.binary())


def _partitions(table: Any) -> npt.NDArray[np.int64] | None:
    if "partition" not in table.column_names:
        return None
    partitions: npt.NDArray[np.int64] = _array(table, "partition").cast(pa.int64()).fill_null(BY_KEY).to_numpy()
    return partitions


def _timestamps(table: Any, now_ms: int) -> npt.NDArray[np.int64]:
    if "timestamp" not in table.column_names:
        return np.full(table.num_rows, now_ms, np.int64)
    column = _array(table, "timestamp")
    if pa.types.is_timestamp(column.type):
        from pyarrow.compute import CastOptions  # loaded only here, as Arrow does for casts: the import takes long

        column = column.cast(options=CastOptions(pa.timestamp("ms", column.type.tz), allow_time_truncate=True))
    timestamps: npt.NDArray[np.int64] = column.cast(pa.int64()).fill_null(now_ms).to_numpy()
    return timestamps


def _headers(table: Any) -> Any | None:
    return _array(table, "headers").cast(HEADERS_TYPE) if "headers" in table.column_names else None


def _array(table: Any, name: str) -> Any:
    return table.column(name).chunk(0)


def _routes(
    records: ArrowRecords, partition_count: int, keyless_partition: int, default_partition: int | None
) -> npt.NDArray[np.int64]:
    if default_partition is not None:
        routed = np.full(len(records.keys), default_partition, np.int64)
    else:
        routed = partitions_of(records.keys, partition_count).astype(np.int64)
        routed[routed == NO_PARTITION] = keyless_partition
    if records.partitions is not None:
        asked = records.partitions != BY_KEY
        routed[asked] = records.partitions[asked]
        wrong = np.flatnonzero((routed < 0) | (routed >= partition_count))
        if len(wrong):
            raise no_such_partition(int(routed[wrong[0]]), partition_count, record=int(wrong[0]))
    return routed


def _in_order_of(order: npt.NDArray[np.int64], records: ArrowRecords) -> ArrowRecords:
    rows = pa.array(order)
    return records._replace(
        keys=records.keys.take(rows),
        values=records.values.take(rows),
        timestamps_ms=records.timestamps_ms[order],
        headers=None if records.headers is None else records.headers.take(rows),
    )
