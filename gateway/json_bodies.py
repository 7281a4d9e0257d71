"""Records that come as JSON or NDJSON, to the tuples that the encoder takes. Pure.

    {"records": [{"key": any, "value": any, "headers": {name: any}, "partition": 0, "timestamp": 1750000000000}, …]}
    {"key": any, "value": any, …}                                                       one record per line

A key, value or header is any JSON (segments/json_values.py says how it is stored); absent is null. Headers may also be a list of
{"key": name, "value": any}, which keeps their order and their duplicates. Invariant: what is wrong is named by its byte, or by
its line or record; an unknown field is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from metadata.errors import InvalidArgument, TooLarge
from segments.batch_kernel import NewRecordTuple
from segments.json_values import to_bytes

RECORDS_MAX: Final = 200_000
"""Of one request: results are told one by one."""

_NULL: Final = msgspec.Raw(b"null")
_NO_HEADERS: Final[tuple[tuple[str, bytes | None], ...]] = ()


class HeaderBody(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: msgspec.Raw = _NULL


class RecordBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Every record that can be sent."""

    key: msgspec.Raw = _NULL
    value: msgspec.Raw = _NULL
    headers: dict[str, msgspec.Raw] | list[HeaderBody] | None = None
    partition: int | None = None
    timestamp: int | None = None


class PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most records are: a key of text, a value of anything."""

    key: str | None = None
    value: msgspec.Raw = _NULL


class TextRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Text alone, which msgspec decodes faster than we could cut it out."""

    key: str | None = None
    value: str | None = None


_Record = TypeVar("_Record")


class ProduceBody(msgspec.Struct, Generic[_Record], forbid_unknown_fields=True):
    records: list[_Record]


class ParsedRecords(NamedTuple):
    records: list[NewRecordTuple]
    own_partitions: list[int | None] | None
    """What each record asks for; None where none does."""


_text_body = msgspec.json.Decoder(ProduceBody[TextRecord])
_plain_body = msgspec.json.Decoder(ProduceBody[PlainRecord])
_body = msgspec.json.Decoder(ProduceBody[RecordBody])
_text_line = msgspec.json.Decoder(TextRecord)
_plain_line = msgspec.json.Decoder(PlainRecord)
_line = msgspec.json.Decoder(RecordBody)


def parse_json(body: bytes, *, now_ms: int, headers_max: int) -> ParsedRecords:
    """`now_ms` is the timestamp of records without one. InvalidArgument, TooLarge."""
    check_utf8(body)
    try:
        simple = _simple(lambda: _text_body.decode(body).records, lambda: _plain_body.decode(body).records, now_ms)
        if simple is not None:
            return _checked(simple)
        records = _body.decode(body).records
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(error, "the body", size=len(body)) from None
    return _checked(_parsed(records, "records", now_ms=now_ms, headers_max=headers_max))


def parse_lines(body: bytes, *, now_ms: int, headers_max: int) -> ParsedRecords:
    """The same of NDJSON. Empty lines are skipped."""
    check_utf8(body)
    lines = body.split(b"\n")
    if len(lines) > 2 * RECORDS_MAX:
        raise _too_many(len(lines))
    try:
        simple = _simple(lambda: _text_line.decode_lines(body), lambda: _plain_line.decode_lines(body), now_ms)
        if simple is not None and len(simple.records) == len(lines) - lines.count(b""):
            return _checked(simple)
    except (msgspec.DecodeError, RecursionError):
        pass  # found again below, with the number of its line
    records = []
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            try:
                records.append(_line.decode(line))
            except (msgspec.DecodeError, RecursionError) as error:
                raise _not_json(error, f"line {number}", size=len(line)) from None
    return _checked(_parsed(records, "lines", now_ms=now_ms, headers_max=headers_max))


def _simple(
    text_records: Callable[[], list[TextRecord]], plain_records: Callable[[], list[PlainRecord]], now_ms: int
) -> ParsedRecords | None:
    """The records where they are plain, three to ten times faster than through RecordBody; None where they are not.

    That they are not is mostly found out at the first. Raises DecodeError where the body is no JSON.
    """
    try:
        return ParsedRecords([_text_tuple(record, now_ms) for record in text_records()], None)
    except (msgspec.ValidationError, UnicodeEncodeError):
        pass
    try:
        return ParsedRecords([_plain_tuple(record, now_ms) for record in plain_records()], None)
    except (msgspec.ValidationError, UnicodeEncodeError, InvalidArgument):
        return None


def _text_tuple(record: TextRecord, now_ms: int) -> NewRecordTuple:
    key, value = record.key, record.value
    return (None if key is None else key.encode(), None if value is None else value.encode(), _NO_HEADERS, now_ms)


def _plain_tuple(record: PlainRecord, now_ms: int) -> NewRecordTuple:
    key = record.key
    return (None if key is None else key.encode(), to_bytes(record.value), _NO_HEADERS, now_ms)


def _parsed(bodies: list[RecordBody], what: str, *, now_ms: int, headers_max: int) -> ParsedRecords:
    records: list[NewRecordTuple] = []
    partitions: list[int | None] = []
    try:
        for body in bodies:
            headers = _NO_HEADERS if not body.headers else _headers(body.headers, headers_max)
            timestamp_ms = now_ms if body.timestamp is None else body.timestamp
            records.append((to_bytes(body.key), to_bytes(body.value), headers, timestamp_ms))
            partitions.append(body.partition)
    except (InvalidArgument, TooLarge) as error:
        raise type(error)(f"{what}[{len(records)}]: {error.message}", hint=error.hint, record=len(records)) from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:  # a lone surrogate in a string
        raise InvalidArgument(f"{what}[{len(records)}] can't be stored as UTF-8: {error}", record=len(records)) from None
    return ParsedRecords(records, partitions if any(partition is not None for partition in partitions) else None)


def _checked(parsed: ParsedRecords) -> ParsedRecords:
    if not parsed.records:
        raise InvalidArgument("the request has no records")
    if len(parsed.records) > RECORDS_MAX:
        raise _too_many(len(parsed.records))
    return parsed


def _headers(headers: dict[str, msgspec.Raw] | list[HeaderBody], headers_max: int) -> tuple[tuple[str, bytes | None], ...]:
    if len(headers) > headers_max:
        raise TooLarge(f"it has {len(headers)} headers; {headers_max} are taken")
    if isinstance(headers, dict):
        return tuple((name, to_bytes(value)) for name, value in headers.items())
    return tuple((header.key, to_bytes(header.value)) for header in headers)


def check_utf8(body: bytes) -> None:
    """InvalidArgument names the byte. Once for the whole body: raw values are not decoded again."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the body is not UTF-8 (byte {error.start})", byte=error.start) from None


def _not_json(error: Exception, where: str, *, size: int) -> InvalidArgument:
    if isinstance(error, msgspec.ValidationError):
        return InvalidArgument(
            f"{where}: {error}", hint='Send {"records": [{"key": …, "value": …}]}, or such records line by line.'
        )
    if isinstance(error, RecursionError):
        return InvalidArgument(f"{where} is nested too deeply")
    said = str(error) if "(byte" in str(error) else f"{error} (byte {size})"
    return InvalidArgument(f"{where}: {said}")


def _too_many(count: int) -> TooLarge:
    return TooLarge(f"the request has {count} records; {RECORDS_MAX} are taken", hint="Send fewer records per request.")
