"""Encodes records for HTTP clients: JSON, NDJSON, server-sent events, Arrow. Pure.

    {"partition":0,"offset":17,"timestamp":1750000000000,"key":"c-7","value":{"id":7},"headers":[{"key":"trace","value":"ab"}]}

Keys and values have the requested format (segments/records/json_values.py). Headers always have the format `auto`, in a list, which
keeps their order and duplicates. A server-sent event has such a record as its data, and the position after it as its id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from gateway.records.batch_decoder import corrupt
from metadata.errors import InvalidArgument, InvalidRecord
from segments.read.log_reader import FetchResult
from segments.records.batch import parse_header, split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import SCHEMA, decode_batches
from segments.records.compression import Codec
from segments.records.json_values import JsonFormat, from_bytes

ARROW_SCHEMA: Final = pa.schema([pa.field("partition", pa.int32(), nullable=False), *SCHEMA])
PING: Final = b": ping\n\n"


class Formats(NamedTuple):
    """Holds the requested formats of keys and values."""

    key: JsonFormat
    value: JsonFormat


class HeaderAnswer(msgspec.Struct, gc=False):
    """Encodes one header of a record."""

    key: str
    value: msgspec.Raw


class RecordAnswer(msgspec.Struct, gc=False):
    """Encodes one record."""

    partition: int
    offset: int
    # Milliseconds since 1970.
    timestamp: int
    key: msgspec.Raw
    value: msgspec.Raw
    headers: list[HeaderAnswer]


class TopicRecordAnswer(msgspec.Struct, gc=False):
    """Encodes one record in an answer over several topics."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: msgspec.Raw
    value: msgspec.Raw
    headers: list[HeaderAnswer]


_encoder = msgspec.json.Encoder()


def as_objects(records: Iterable[RecordTuple], partition: int, formats: Formats) -> bytes:
    """Encodes at least one record as the elements of a JSON array, without its brackets."""
    return _encoder.encode(_answers(records, partition, formats))[1:-1]


def as_objects_of_topics(records: Iterable[RecordTuple], topic: str, partition: int, formats: Formats) -> bytes:
    """Encodes records as as_objects does, with the topic in each."""
    answers = [
        TopicRecordAnswer(topic, of.partition, of.offset, of.timestamp, of.key, of.value, of.headers)
        for of in _answers(records, partition, formats)
    ]
    return _encoder.encode(answers)[1:-1]


def as_page(objects: Sequence[bytes], fetched: FetchResult, next_offset: int) -> bytes:
    """Returns the body of an answer with the pieces that `as_objects` returned."""
    ends = next_offset, fetched.high_watermark, fetched.log_start_offset
    return b'{"records":[%b],"next_offset":%d,"high_watermark":%d,"log_start_offset":%d}' % (b",".join(objects), *ends)


def as_lines(records: Iterable[RecordTuple], partition: int, formats: Formats) -> bytes:
    """Encodes records as NDJSON."""
    return _encoder.encode_lines(_answers(records, partition, formats))


def as_events(records: Sequence[RecordTuple], partition: int, formats: Formats, event_id: Callable[[int], str]) -> bytes:
    """Encodes records as server-sent events. `event_id` returns the id of the position after a record, from its offset."""
    pieces = []
    for record, answers in zip(records, _answers(records, partition, formats), strict=True):
        pieces.append(b"id: %b\ndata: %b\n\n" % (event_id(record[0]).encode(), _encoder.encode(answers)))
    return b"".join(pieces)


def position_event(event_id: str) -> bytes:
    """Encodes an event without data: clients do not dispatch it, but reconnect with its id (HTML standard, 9.2.6)."""
    return b"id: %b\n\n" % event_id.encode()


def error_event(members: dict[str, Any]) -> bytes:
    """Encodes the error that ends a stream of events."""
    return b"event: error\ndata: %b\n\n" % _encoder.encode(members)


def error_line(members: dict[str, Any]) -> bytes:
    """Encodes the error that ends a stream of lines."""
    return b'{"error":%b}\n' % _encoder.encode(members)


def as_arrow(
    fetched: FetchResult, partition: int, *, offset: int, records_max: int, bytes_max: int, decompressed_bytes_max: int
) -> tuple[bytes, int]:
    """Encodes records as an Arrow stream of ARROW_SCHEMA, and returns it with the next offset to read.

    It has at most `records_max` records from `offset` on, and about as many as fit `bytes_max`, at least one.
    """
    try:
        columns, fetched_to = _columns(fetched, bytes_max, decompressed_bytes_max)
    except InvalidRecord as error:
        raise corrupt(offset, error) from error
    offsets = columns.column(0).to_numpy()
    first = int(np.searchsorted(offsets, offset))
    columns = _fitting(columns.slice(first, records_max), bytes_max)
    cut = first + columns.num_rows < len(offsets)
    next_offset = int(offsets[first + columns.num_rows]) if cut else fetched_to
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW_SCHEMA) as writer:
        partitions = pa.array(np.full(columns.num_rows, partition, np.int32))
        writer.write_batch(pa.RecordBatch.from_arrays([partitions, *columns.columns], schema=ARROW_SCHEMA))
    del columns, offsets  # releases two of three copies
    return sink.getvalue().to_pybytes(), next_offset


def _columns(fetched: FetchResult, bytes_max: int, decompressed_bytes_max: int) -> tuple[pa.RecordBatch, int]:
    """Decodes uncompressed batches at once, else one by one up to `bytes_max`. Returns columns and the next offset to read."""
    batches = split_batches(b"".join(fetched.batches))
    if all(parse_header(batch).codec is Codec.NONE for batch in batches):
        return decode_batches(batches, decompressed_bytes_max=decompressed_bytes_max), fetched.next_offset
    opened: list[pa.RecordBatch] = []
    bytes_left = bytes_max
    for batch in batches:
        if bytes_left <= 0:
            return pa.concat_batches(opened), parse_header(batch).base_offset
        opened.append(decode_batches([batch], decompressed_bytes_max=decompressed_bytes_max))
        bytes_left -= opened[-1].nbytes
    return pa.concat_batches(opened), fetched.next_offset


def _fitting(columns: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Returns as many first rows as fit `bytes_max`, at least one."""
    if columns.nbytes <= bytes_max:
        return columns
    rows = range(1, columns.num_rows)
    return columns.slice(0, max(1, bisect_right(rows, bytes_max, key=lambda count: columns.slice(0, count).nbytes)))


def _answers(records: Iterable[RecordTuple], partition: int, formats: Formats) -> list[RecordAnswer]:
    answers: list[RecordAnswer] = []
    offset = -1
    try:
        for offset, timestamp_ms, key, value, headers in records:
            answers.append(
                RecordAnswer(
                    partition,
                    offset,
                    timestamp_ms,
                    from_bytes(key, formats.key),
                    from_bytes(value, formats.value),
                    [HeaderAnswer(name, from_bytes(content)) for name, content in headers] if headers else [],
                )
            )
    except InvalidArgument as error:
        raise InvalidArgument(f"offset {offset}: {error.message}", hint=error.hint, offset=offset) from None
    return answers
