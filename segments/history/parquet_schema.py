"""Defines the columns of a file of history, those of Spark's Kafka source, and converts decoded records both ways. Pure.

    record_columns.SCHEMA        PARQUET_SCHEMA       stored
    key, value                   key, value           BYTE_ARRAY, null where the record has none
                                 topic, partition     the same in every row
    offset                       offset               INT64, ascending; key compaction leaves gaps
    timestamp                    timestamp            INT64, ms since 1970, UTC
    timestamp_type               timestampType        INT32: 0 as the producer set it, 1 log append time
    headers                      headers              a list of three levels, of key (never null) and value

Invariant: both ways are lossless, and copy neither keys nor values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from segments.records.columns import HEADERS_TYPE, SCHEMA

_HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADERS_TYPE.value_type, nullable=False))
# The schema that Arrow reads. Spark's Kafka source has the same names and order, and timestamps in microseconds.
PARQUET_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("headers", _HEADERS_TYPE, nullable=False),
    ]
)

_TOPIC_AT = PARQUET_SCHEMA.get_field_index("topic")
# The schema for Parquet's writer: the name of the topic is in memory once.
WRITTEN_SCHEMA: Final = PARQUET_SCHEMA.set(_TOPIC_AT, pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False))

_STORED_NAMES: Final = {"timestamp_type": "timestampType"}


def stored_names(columns: Sequence[str] | None) -> list[str]:
    """Returns the columns of a file that hold the given columns of record_columns.SCHEMA, or all of them."""
    return [_STORED_NAMES.get(name, name) for name in (SCHEMA.names if columns is None else columns)]


def to_stored(columns: pa.RecordBatch, *, topic: str, partition: int) -> pa.RecordBatch:
    """Converts record_columns.SCHEMA to WRITTEN_SCHEMA."""
    rows = columns.num_rows
    topics = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([topic], pa.string()))
    return pa.RecordBatch.from_arrays(
        [
            columns.column("key"),
            columns.column("value"),
            topics,
            pa.array(np.full(rows, partition, np.int32)),
            columns.column("offset"),
            columns.column("timestamp"),
            columns.column("timestamp_type"),
            _retyped(columns.column("headers"), _HEADERS_TYPE),
        ],
        schema=WRITTEN_SCHEMA,
    )


def from_stored(table: pa.Table, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Converts what was read of a file to record_columns.SCHEMA, or to these columns of it."""
    fields = [SCHEMA.field(name) for name in (SCHEMA.names if columns is None else columns)]
    arrays = [_whole(table.column(_STORED_NAMES.get(field.name, field.name))) for field in fields]
    retyped = [
        _retyped(array, HEADERS_TYPE) if field.name == "headers" else array for field, array in zip(fields, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(retyped, schema=pa.schema(fields))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _retyped(headers: pa.ListArray, type_: pa.DataType) -> pa.ListArray:
    """Returns the same lists under a type whose elements have another name."""
    return pa.Array.from_buffers(type_, len(headers), headers.buffers()[:2], offset=headers.offset, children=[headers.values])
