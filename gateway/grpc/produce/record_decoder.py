"""Decodes the structured records of a gRPC append from wire bytes to the tuples that the encoder takes. Pure.

    RecordList   1 record, length-delimited, repeated
    Record       1 key · 2 value · 3 header, repeated · 4 timestamp_ms varint · 5 partition varint · 6 offset varint, ignored
    Header       1 key · 2 value

protobuf makes an object of a hundred bytes out of two bytes on the wire, before the broker could count them. So this module reads
records one after the other by hand, in the time that protobuf's own objects would take, and checks the limits before it creates
objects. A record that is not written as encoders write it goes through protobuf, alone. Invariant: both ways return the same
record, or both refuse it (a test compares them over mutated records).

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from gateway.grpc.produce.request_decoder import UnusualError, length, signed, skipped, varint
from gateway.proto import log_pb2
from gateway.records.partitioning import HEADERS_MAX, RECORDS_MAX
from metadata.errors import InvalidArgument, TooLarge
from segments.records.batch_kernel import NewRecordTuple

# Longer lists, or lists of more records, are decoded in a thread, since they would hold the event loop for milliseconds.
THREAD_BYTES: Final = 16 << 10
THREAD_RECORDS: Final = 1_000

# Upper bound of the bytes of a header on the wire beside its key and value.
_HEADER_WIRE_BYTES: Final = 32
_FEWER: Final = "Send fewer records in one message."


class StructuredRecords(NamedTuple):
    """The decoded records of one append, and the partition that each asks for.

    `own_partitions` has one entry for each record: its own partition, else that of its append, else None.
    """

    records: list[NewRecordTuple]
    own_partitions: list[int | None]


class RecordLimits(NamedTuple):
    """The limits of the records of one append.

    `record_bytes_max`: bytes of one record, as its topic limits a batch. `headers_max`: headers of one record. `records_left`:
    records that the message may still have, of RECORDS_MAX.
    """

    record_bytes_max: int
    headers_max: int
    records_left: int = RECORDS_MAX


def takes_long(record_list: memoryview) -> bool:
    """Returns whether decoding these records would hold the event loop for milliseconds."""
    return len(record_list) > THREAD_BYTES or tags_at_most(bytes(record_list)) > THREAD_RECORDS


def tags_at_most(record_list: bytes) -> int:
    """Returns an upper bound of the number of records and headers: it counts the bytes that their tags have."""
    return record_list.count(b"\x0a") + record_list.count(b"\x1a")


def decode_records(
    record_list: memoryview, *, partition: int | None, now_ms: int, limits: RecordLimits, field: str
) -> StructuredRecords:
    """Decodes the records of an append for `partition`, or without one for the partition that each record asks for.

    Records without a timestamp get `now_ms`. Raises InvalidArgument or TooLarge, which name the record by `field` and its index.
    """
    records: list[NewRecordTuple] = []
    own_partitions: list[int | None] = []
    wire_bytes_max = limits.record_bytes_max + _HEADER_WIRE_BYTES * limits.headers_max
    headers_left, at = HEADERS_MAX, 0
    try:
        while at < len(record_list):
            if record_list[at] != 0x0A:
                at = skipped(record_list, at)
                continue
            size, at = length(record_list, at + 1)
            if len(records) == limits.records_left:
                raise TooLarge(f"it is one too many: a message has at most {RECORDS_MAX} records", hint=_FEWER)
            if size > wire_bytes_max:
                raise TooLarge(
                    f"it takes {size} bytes; the topic takes {limits.record_bytes_max}",
                    hint="Send a smaller record.",
                    size=size,
                    bytes_max=limits.record_bytes_max,
                )
            record, own = decode_record(bytes(record_list[at : at + size]), now_ms=now_ms, headers_max=limits.headers_max)
            headers_left -= len(record[2])
            if headers_left < 0:
                raise TooLarge(f"its headers are too many: the records of an append have at most {HEADERS_MAX}", hint=_FEWER)
            if partition is not None and own is not None and own != partition:
                raise InvalidArgument(f"it asks for partition {own}, its append for {partition}")
            records.append(record)
            own_partitions.append(partition if own is None else own)
            at += size
        if at != len(record_list):
            raise UnusualError
    except (InvalidArgument, TooLarge) as error:
        raise _of_record(error, f"{field}[{len(records)}]") from None
    except (UnusualError, IndexError):
        raise InvalidArgument(f"{field} is not a RecordList, behind its record {len(records)}", field=field) from None
    if not records:
        raise InvalidArgument(f"{field} is empty", field=field)
    return StructuredRecords(records, own_partitions)


def decode_record(record: bytes, *, now_ms: int, headers_max: int) -> tuple[NewRecordTuple, int | None]:
    """Returns (key, value, headers, timestamp_ms) of one record, and the partition that it asks for.

    Raises InvalidArgument, TooLarge.
    """
    try:
        return _decode_by_hand(record, now_ms, headers_max)
    except (UnusualError, IndexError, UnicodeDecodeError):
        return _decode_with_protobuf(record, now_ms, headers_max)


def _decode_by_hand(record: bytes, now_ms: int, headers_max: int) -> tuple[NewRecordTuple, int | None]:
    key = value = partition = None
    timestamp_ms = now_ms
    headers: list[tuple[str, bytes | None]] = []
    at, end = 0, len(record)
    while at < end:
        tag, number = record[at], record[at + 1]
        at += 2
        if number > 0x7F:
            number, at = (length if tag & 7 == 2 else varint)(record, at - 1)
        if tag == 0x12:
            value = record[at : at + number]
            at += number
        elif tag == 0x0A:
            key = record[at : at + number]
            at += number
        elif tag == 0x20:
            timestamp_ms = signed(number, 64)
        elif tag == 0x28:
            partition = signed(number, 32)
        elif tag == 0x1A:
            if len(headers) == headers_max:
                raise _too_many_headers(headers_max)
            headers.append(_decode_header(record[at : at + number]))
            at += number
        elif tag != 0x30:
            raise UnusualError
    if at != end:
        raise UnusualError
    return (key, value, headers, timestamp_ms), partition


def _decode_header(header: bytes) -> tuple[str, bytes | None]:
    key, value = "", None
    at, end = 0, len(header)
    while at < end:
        tag, size = header[at], header[at + 1]
        at += 2
        if size > 0x7F:
            size, at = length(header, at - 1)
        if tag == 0x0A:
            key = str(header[at : at + size], "utf-8")
        elif tag == 0x12:
            value = header[at : at + size]
        else:
            raise UnusualError
        at += size
    if at != end:
        raise UnusualError
    return key, value


def _decode_with_protobuf(record: bytes, now_ms: int, headers_max: int) -> tuple[NewRecordTuple, int | None]:
    try:
        read = log_pb2.Record.FromString(record)
    except DecodeError as error:
        raise InvalidArgument(f"it is not a Record: {error}") from None
    if len(read.headers) > headers_max:
        raise _too_many_headers(headers_max)
    headers = [(header.key, header.value if header.HasField("value") else None) for header in read.headers]
    key = read.key if read.HasField("key") else None
    value = read.value if read.HasField("value") else None
    timestamp_ms = read.timestamp_ms if read.HasField("timestamp_ms") else now_ms
    return (key, value, headers, timestamp_ms), read.partition if read.HasField("partition") else None


def _too_many_headers(headers_max: int) -> TooLarge:
    return TooLarge(f"it has more than {headers_max} headers", hint="Send fewer headers, or raise record_headers_max.")


def _of_record(error: InvalidArgument | TooLarge, field: str) -> InvalidArgument | TooLarge:
    return type(error)(f"{field}: {error.message}", hint=error.hint, **(error.details | {"field": field}))
