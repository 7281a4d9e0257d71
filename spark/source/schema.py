"""Defines the columns of Spark's Kafka source, and converts decoded records to them. Pure.

    key, value             binary, null where the record has none
    topic, partition       the same in every row of a batch
    offset, timestamp      bigint; microseconds since 1970, UTC
                           a record's milliseconds may be more than that holds, as nanoseconds by mistake are: then it is the latest
    timestampType          0 as the producer set it, 1 log append time
    headers                array of (key, value), with includeHeaders only

Arrow batches must be of exactly this schema: Spark checks the first one only, and reads the rest as it believes them to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from metadata.errors import InvalidArgument

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", _HEADER))
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
COLUMNS: Final = tuple(name for name in ARROW_TYPES if name != "headers")
DDL: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS_DDL: Final = ", headers array<struct<key: string, value: binary>>"
# The latest that fits 64 bits of microseconds.
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
# Names in record_columns.SCHEMA that differ.
_DECODED: Final = {"timestampType": "timestamp_type"}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Raises InvalidArgument for a column that the source does not have."""
    for name in columns:
        if name not in ARROW_TYPES:
            raise InvalidArgument(f"there is no column {name!r}", hint=f"There are: {', '.join(ARROW_TYPES)}.")
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


def decoded_columns(columns: Sequence[str]) -> list[str]:
    """Returns the columns of record_columns.SCHEMA that these need, and the offset, which identifies rows."""
    wanted = [_DECODED.get(name, name) for name in columns if name not in {"topic", "partition"}]
    return wanted if "offset" in wanted else [*wanted, "offset"]


def as_source_rows(records: pa.RecordBatch, columns: Sequence[str], *, topic: str, partition: int) -> pa.RecordBatch:
    """Converts columns of record_columns.SCHEMA to `arrow_schema(columns)`. Copies neither keys nor values."""
    constants: dict[str, Callable[[int], pa.Array]] = {
        "topic": lambda rows: pa.repeat(pa.scalar(topic), rows),
        "partition": lambda rows: pa.array(np.full(rows, partition, np.int32)),
    }
    made = []
    for name in columns:
        if name in constants:
            made.append(constants[name](records.num_rows))
            continue
        found = records.column(_DECODED.get(name, name))
        retype = _RETYPED.get(name)
        made.append(found.cast(ARROW_TYPES[name]) if retype is None else retype(found))
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(columns))


def _retyped(headers: pa.ListArray) -> pa.ListArray:
    """Gives the header lists the field names and nullability of Spark's type, without a copy."""
    pairs = headers.values
    fields = [_HEADER.field(at) for at in range(2)]
    struct = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=fields)
    return pa.Array.from_buffers(HEADERS_TYPE, len(headers), headers.buffers()[:2], offset=headers.offset, children=[struct])


def _microseconds(times: pa.TimestampArray) -> pa.TimestampArray:
    """Converts milliseconds to microseconds. Clamps them, since one bad record must not fail queries of all others."""
    times_ms = times.view(pa.int64()).to_numpy()
    return pa.array(np.minimum(times_ms, TIMESTAMP_MS_MAX) * 1000).view(ARROW_TYPES["timestamp"])


_RETYPED: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {"headers": _retyped, "timestamp": _microseconds}
