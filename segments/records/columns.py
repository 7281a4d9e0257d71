"""Record batches to Arrow columns and back, and to and from plain tuples: the assembly around batch_kernel.py. Pure.

Invariant: both ways are lossless. Null and empty keys and values stay apart, headers keep their order and their duplicates,
offsets and timestamps are those of the records. Uncompressed, the bytes are those that Kafka's clients write for the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metadata.errors import InvalidArgument, InvalidRecord, TooLarge
from segments.object_store.interface import Buffer
from segments.records.batch import BATCH_OVERHEAD_BYTES, MAGIC, NO_LEADER_EPOCH, NO_PRODUCER_ID, assemble, parse_header, parse_whole
from segments.records.batch_kernel import (
    ArrowReader,
    BinaryWriter,
    NewRecordTuple,
    RecordColumns,
    RecordSection,
    RecordTuple,
    encode_columns,
    encode_tuples,
)
from segments.records.compression import Codec, Decompressor, compress, decompress
from segments.records.header import LOG_APPEND_TIME_BIT, BatchHeader

Int64Array: TypeAlias = npt.NDArray[np.int64]

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
# Schema of decoded records. `timestamp_type`: 0 as the producer set it, 1 log append time. Without headers the list is empty.
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)

_INT16_MAX = 2**15 - 1
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def decode_batches(batches: Sequence[Buffer], *, decompressed_bytes_max: int) -> pa.RecordBatch:
    """Returns the records of whole batches, in their order, as one Arrow record batch of SCHEMA. Control batches are skipped.

    Pass many batches in one call: the columns' memory is then taken once. `decompressed_bytes_max` bounds each batch.
    InvalidRecord if one is corrupt, its CRC-32C included; TooLarge if a column would pass the 2 GiB of Arrow's int32 offsets.
    """
    return decode_opened(open_batches(batches, decompressed_bytes_max=decompressed_bytes_max))


class OpenBatch(NamedTuple):
    """Holds a batch's header and its decompressed section."""

    header: BatchHeader
    # Not compressed.
    section: Buffer


def open_batches(batches: Sequence[Buffer], *, decompressed_bytes_max: int) -> list[OpenBatch]:
    """Returns the first half of `decode_batches`, for who wants more of the sections than columns. Control batches are skipped."""
    return list(_opened(batches, decompressed_bytes_max))


def open_in_parts(batches: Sequence[Buffer], *, decompressed_bytes_max: int, part_bytes: int) -> Iterator[list[OpenBatch]]:
    """Opens batches in parts: as many as have `part_bytes` together, and at most one more.

    A batch of a few KiB may become `decompressed_bytes_max`, so many at once could exhaust memory, or exceed one Arrow record
    batch.
    """
    part: list[OpenBatch] = []
    opened_bytes = 0
    for opened in _opened(batches, decompressed_bytes_max):
        part.append(opened)
        opened_bytes += len(opened.section)
        if opened_bytes >= part_bytes:
            yield part
            part, opened_bytes = [], 0
        del opened  # or it stays in memory while the next one is opened
    if part:
        yield part


def _opened(batches: Sequence[Buffer], decompressed_bytes_max: int) -> Iterator[OpenBatch]:
    decompressor = Decompressor(sections_bytes=sum(map(len, batches)), bytes_max=decompressed_bytes_max)
    for batch in batches:
        header = _readable_header(batch)
        if not header.is_control:
            yield OpenBatch(header, decompressor.decompress(header.codec, memoryview(batch)[BATCH_OVERHEAD_BYTES:]))


def decode_opened(opened: Sequence[OpenBatch]) -> pa.RecordBatch:
    """Returns the second half of `decode_batches`."""
    sections = [RecordSection(batch.section, batch.header) for batch in opened]
    sizes = [(0, 0, 0, 0, 0), *(section.measure() for section in sections)]
    rows = sum(batch.header.record_count for batch in opened)
    key_bytes, value_bytes, header_count, header_key_bytes, header_value_bytes = map(sum, zip(*sizes, strict=True))
    if max(rows, key_bytes, value_bytes, header_count, header_key_bytes, header_value_bytes) > _INT32_MAX:
        raise TooLarge(
            f"{rows} records with {key_bytes} bytes of keys and {value_bytes} of values do not fit into one Arrow record batch",
            hint="Decode fewer batches in one call.",
        )
    offsets = np.empty(rows, np.int64)
    timestamps = np.empty(rows, np.int64)
    timestamp_types = np.empty(rows, np.int32)
    header_offsets = np.empty(rows + 1, np.int32)
    keys = _BinaryColumn(rows, key_bytes)
    values = _BinaryColumn(rows, value_bytes)
    header_keys = _BinaryColumn(header_count, header_key_bytes)
    header_values = _BinaryColumn(header_count, header_value_bytes)
    columns = RecordColumns(
        offsets.data,
        timestamps.data,
        timestamp_types.data,
        header_offsets.data,
        keys.writer,
        values.writer,
        header_keys.writer,
        header_values.writer,
    )
    for section in sections:
        section.fill(columns)
    header_fields = [header_keys.to_arrow(pa.string()), header_values.to_arrow(pa.binary())]
    header_structs = pa.StructArray.from_arrays(header_fields, fields=list(HEADERS_TYPE.value_type))
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
            pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), rows, [None, pa.py_buffer(timestamps)]),
            pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(timestamp_types)]),
            keys.to_arrow(pa.binary()),
            values.to_arrow(pa.binary()),
            pa.Array.from_buffers(HEADERS_TYPE, rows, [None, pa.py_buffer(header_offsets)], children=[header_structs]),
        ],
        schema=SCHEMA,
    )


def record_ends(columns: pa.RecordBatch) -> Int64Array:
    """Returns where each record of SCHEMA ends, counted in bytes of keys, values and headers; 0 first."""
    headers = columns.column("headers")
    lists = value_offsets(headers)
    structs = headers.values.slice(lists[0], lists[-1] - lists[0])
    of_headers = value_offsets(structs.field("key")).astype(np.int64) + value_offsets(structs.field("value"))
    ends: Int64Array = of_headers[lists - lists[0]]
    for name in ("key", "value"):
        ends += value_offsets(columns.column(name))
    ends -= int(ends[0])
    return ends


def timestamps_of(columns: pa.RecordBatch) -> Int64Array:
    """Returns the timestamps in ms since 1970."""
    times: Int64Array = columns.column("timestamp").view(pa.int64()).to_numpy()
    return times


def value_offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Returns where the values of a binary, string or list array begin in its data, and where the last one ends."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def iterate_records(batch: Buffer, *, decompressed_bytes_max: int) -> list[RecordTuple]:
    """Yields (offset, timestamp_ms, key, value, headers) of every record of one whole batch; of a control batch, none.

    InvalidRecord, TooLarge.
    """
    header = _readable_header(batch)
    if header.is_control:
        return []
    section = decompress(header.codec, memoryview(batch)[BATCH_OVERHEAD_BYTES:], bytes_max=decompressed_bytes_max)
    return RecordSection(section, header).tuples()


def encode_batch(
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    *,
    timestamps_ms: Int64Array,
    headers: pa.ListArray | None = None,
    offset_deltas: Int64Array | None = None,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: bool = False,
) -> bytes:
    """Encodes columns of equal length, at least 1, as one batch. Null keys and values stay null; a null list of headers is an empty
    one.

    keys, values: binary (string, large and view types are taken too) · timestamps_ms: int64, at least -1 · headers: HEADERS_TYPE ·
    offset_deltas: int64, ascending, to `base_offset`, for what key compaction has thinned out; 0, 1, 2, … where not given ·
    log_append_time: the one timestamp of all records is when they were appended.

    As in Kafka's clients, `base_timestamp` is that of the first record, and a codec that saves nothing is left away. Without
    a producer id, aiokafka writes leader epoch -1 and base sequence 0, librdkafka leader epoch 0 and base sequence -1.
    InvalidArgument, TooLarge (2 GiB).
    """
    count = len(keys)
    if count == 0:
        raise InvalidArgument("a record batch needs at least one record")
    for name, column in (("values", values), ("timestamps", timestamps_ms), ("headers", headers), ("offset deltas", offset_deltas)):
        if column is not None and len(column) != count:
            raise InvalidArgument(f"{len(column)} {name} do not match {count} keys")
    if log_append_time and (timestamps_ms != timestamps_ms[0]).any():
        raise InvalidArgument("the records of one batch with log append time have one timestamp")
    header = _new_header(base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, log_append_time)
    lists, header_keys, header_values = (None, None, None) if headers is None else _header_readers(headers)
    batch = encode_columns(
        header,
        binary_reader(keys, "keys"),
        binary_reader(values, "values"),
        _int64s(timestamps_ms, "timestamps"),
        None if offset_deltas is None else _int64s(offset_deltas, "offset deltas"),
        lists,
        header_keys,
        header_values,
    )
    return _compressed(batch, codec)


class ColumnsEncoder:
    """Encodes many batches from ranges of the same columns, of SCHEMA, as `encode_batch` does, but checks the columns only once.

    This reduces the time of a batch of one record to a fifth.
    """

    def __init__(self, columns: pa.RecordBatch) -> None:
        headers = columns.column("headers")
        self._offsets: Int64Array = columns.column("offset").to_numpy()
        self._times = timestamps_of(columns).data
        self._keys = _Views.of(columns.column("key"))
        self._values = _Views.of(columns.column("value"))
        self._lists = _Views.of(headers)
        self._has_headers = len(headers.values) > 0
        _, self._header_keys, self._header_values = _header_readers(headers)

    def encode(self, start: int, end: int, *, end_offset: int, leader_epoch: int, log_append_time: bool) -> bytes:
        """Encodes one batch, not compressed, of rows [start, end), which covers the offsets up to before `end_offset`.

        The rows are at least one, and have one timestamp where `log_append_time` is set. The batch covers at most 2^31 offsets. It
        has no producer. Raises InvalidArgument, TooLarge (2 GiB).
        """
        count = end - start
        base = int(self._offsets[start])
        dense = int(self._offsets[end - 1]) - base == count - 1
        return encode_columns(
            _new_header(base, leader_epoch, NO_PRODUCER_ID, -1, -1, log_append_time),
            self._keys.reader(start, count),
            self._values.reader(start, count),
            self._times[start:end],
            None if dense else (self._offsets[start:end] - base).data,
            self._lists.reader(start, count) if self._has_headers else None,
            self._header_keys,
            self._header_values,
            end_offset - 1 - base,
        )


def encode_records(
    records: Sequence[NewRecordTuple],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Encodes (key, value, headers, timestamp_ms) tuples, at least one, as `encode_batch` does, without Arrow.

    Keys and values are bytes or None, headers (key, value) tuples in a sequence. InvalidArgument, TooLarge (2 GiB).
    """
    header = _new_header(base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, False)
    return _compressed(encode_tuples(header, records), codec)


def binary_reader(array: pa.Array, name: str) -> ArrowReader:
    """Returns the kernel's view of a binary or string array. Raises InvalidArgument for another type or contradicting buffers."""
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = _cast_to_binary(array, name)
    validity, offsets, data = array.buffers()
    view = bytes_of(data)
    return ArrowReader(len(array), array.offset, int32s_of(offsets), bytes_of(validity), view, len(view))


_CASTABLE = (pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.null())


def _cast_to_binary(array: pa.Array, name: str) -> pa.Array:
    if array.type not in _CASTABLE and not pa.types.is_fixed_size_binary(array.type):
        raise InvalidArgument(f"the column of {name} is of type {array.type}; binary or string is needed")
    try:
        array.validate(full=True)  # a cast trusts what it reads
        return array.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"the column of {name} can't be read as binary: {error}") from None


class _Views(NamedTuple):
    """The buffers of a binary or list array, for readers of parts of it."""

    first: int
    offsets: memoryview
    validity: memoryview
    data: memoryview
    size: int

    @classmethod
    def of(cls, array: pa.Array) -> _Views:
        is_list = pa.types.is_list(array.type)
        validity, offsets = array.buffers()[:2]
        data = memoryview(b"") if is_list else bytes_of(array.buffers()[2])
        return cls(array.offset, int32s_of(offsets), bytes_of(validity), data, len(array.values) if is_list else len(data))

    def reader(self, start: int, count: int) -> ArrowReader:
        return ArrowReader(count, self.first + start, self.offsets, self.validity, self.data, self.size)


def _header_readers(headers: pa.Array) -> tuple[ArrowReader, ArrowReader, ArrowReader]:
    """Returns the kernel's views of the lists, and of all keys and all values in them."""
    if not (pa.types.is_list(headers.type) and pa.types.is_struct(headers.type.value_type)):
        raise InvalidArgument(f"the column of headers is of type {headers.type}; {HEADERS_TYPE} is needed")
    structs = headers.values
    if [field.name for field in structs.type] != ["key", "value"]:
        raise InvalidArgument(f"the column of headers is of type {headers.type}; {HEADERS_TYPE} is needed")
    if structs.null_count:
        raise InvalidArgument("a header is null; only its value may be")
    validity, offsets = headers.buffers()[:2]
    lists = ArrowReader(len(headers), headers.offset, int32s_of(offsets), bytes_of(validity), memoryview(b""), len(structs))
    return lists, binary_reader(structs.field(0), "header keys"), binary_reader(structs.field(1), "header values")


def _int64s(numbers: npt.NDArray[np.integer[Any]], name: str) -> memoryview:
    if not np.can_cast(numbers.dtype, np.int64):
        raise InvalidArgument(f"the {name} are of type {numbers.dtype}; int64 is needed")
    return np.ascontiguousarray(numbers, np.int64).data


def bytes_of(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")


def int32s_of(buffer: pa.Buffer | None) -> memoryview:
    view = bytes_of(buffer)
    return view[: len(view) // 4 * 4].cast("i")


class _BinaryColumn:
    """The memory of a binary column of known size, which `writer` fills."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._validity = np.zeros((rows + 7) // 8, np.uint8)
        self._offsets = np.empty(rows + 1, np.int32)
        self._data = np.empty(size, np.uint8)
        self.writer = BinaryWriter(self._offsets.data, self._validity.data, self._data.data)

    def to_arrow(self, type_: pa.DataType) -> pa.Array:
        buffers = [pa.py_buffer(self._validity), pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        return pa.Array.from_buffers(type_, self._rows, buffers)


def _readable_header(batch: Buffer) -> BatchHeader:
    header = parse_whole(batch)
    if header.base_offset < 0 or header.last_offset > _INT64_MAX:
        raise InvalidRecord(f"the batch says base offset {header.base_offset} and last offset delta {header.last_offset_delta}")
    return header


def _new_header(
    base_offset: int, leader_epoch: int, producer_id: int, producer_epoch: int, base_sequence: int, log_append_time: bool
) -> BatchHeader:
    """Returns a header that the kernel completes."""
    if not (
        0 <= base_offset <= _INT64_MAX
        and -1 <= leader_epoch <= _INT32_MAX
        and -1 <= producer_id <= _INT64_MAX
        and -1 <= producer_epoch <= _INT16_MAX
        and -1 <= base_sequence <= _INT32_MAX
    ):
        raise InvalidArgument(
            f"a batch can't have base offset {base_offset}, leader epoch {leader_epoch}, "
            f"producer id {producer_id}, producer epoch {producer_epoch}, base sequence {base_sequence}"
        )
    attributes = LOG_APPEND_TIME_BIT if log_append_time else 0
    return BatchHeader(base_offset, 0, leader_epoch, MAGIC, 0, attributes, 0, 0, 0, producer_id, producer_epoch, base_sequence, 0)


def _compressed(batch: bytes, codec: Codec) -> bytes:
    """Returns the batch with its section under the codec, or as it is where that is not smaller."""
    if codec is Codec.NONE:
        return batch
    section = compress(codec, memoryview(batch)[BATCH_OVERHEAD_BYTES:])
    if len(section) >= len(batch) - BATCH_OVERHEAD_BYTES:
        return batch
    header = parse_header(batch)
    return assemble(msgspec.structs.replace(header, attributes=header.attributes | codec), section)
