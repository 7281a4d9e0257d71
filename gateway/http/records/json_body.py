"""Decodes JSON and NDJSON bodies of records into the tuples that the batch encoder takes. Pure.

    {"records": [{"key": any, "value": any, "headers": {name: any}, "partition": 0, "timestamp": 1750000000000}, …]}
    {"key": any, "value": any, …}                                                       one record per line

Keys, values and headers are any JSON (segments/records/json_values.py defines what is stored); absent is null. Headers may also be
a list of {"key": name, "value": any}, which keeps their order and duplicates.

Invariants: an error names the byte, or the line or record. An unknown field is an error. Records and headers are counted before
objects are made of them, so that no body takes more than a few times its own size, or the size of 200,000 records.

The count of members comes before decoding, because an object takes twenty times the two bytes of `{}`:

    drop escapes ─▶ keep only the marks " [ ] { } , ─▶ inside strings? (parity of ") ─▶ level (sum of brackets) ─▶ commas

It works on whole arrays: 16 MiB take about a tenth of a second, and three times their size. Invariant: if a text is JSON up to some
byte, the count is right up to that byte, so a decoder that stops there has made no more members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from gateway.http.validation_errors import FieldError, describe_malformed_json, field_error
from gateway.records.partitioning import HEADERS_MAX, RECORDS_MAX, check_utf8
from metadata.errors import InvalidArgument, TooLarge, did_you_mean
from segments.records.batch_kernel import NewRecordTuple
from segments.records.json_values import to_bytes

# Lines of NDJSON, including empty ones.
LINES_MAX: Final = 2 * RECORDS_MAX

# `{}`, and a comma or line break.
_RECORD_BYTES_MIN: Final = 3
_RECORDS_LEVEL: Final = 2

_NULL: Final = msgspec.Raw(b"null")
_NO_HEADERS: Final[tuple[tuple[str, bytes | None], ...]] = ()


class HeaderBody(msgspec.Struct, forbid_unknown_fields=True):
    """Decodes a header in a list."""

    key: str
    value: msgspec.Raw = _NULL


class RecordBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Decodes any record."""

    key: msgspec.Raw = _NULL
    value: msgspec.Raw = _NULL
    # dict[str, Raw] | list[HeaderBody] | None, decoded after they were counted.
    headers: msgspec.Raw = _NULL
    partition: int | None = None
    timestamp: int | None = None


class PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Decodes a record with a text key and any value, which most records are."""

    key: str | None = None
    value: msgspec.Raw = _NULL


class TextRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Decodes a record of text alone, which is faster than copying a raw value."""

    key: str | None = None
    value: str | None = None


_Record = TypeVar("_Record")


class ProduceBody(msgspec.Struct, Generic[_Record], forbid_unknown_fields=True):
    """Decodes a whole JSON body."""

    records: list[_Record]


class ParsedRecords(NamedTuple):
    """Holds the records of a request."""

    records: list[NewRecordTuple]
    # The partition that each record names; None if no record names one.
    own_partitions: list[int | None] | None


_FIELDS: Final = RecordBody.__struct_fields__
_text_body = msgspec.json.Decoder(ProduceBody[TextRecord])
_plain_body = msgspec.json.Decoder(ProduceBody[PlainRecord])
_body = msgspec.json.Decoder(ProduceBody[RecordBody])
_text_line = msgspec.json.Decoder(TextRecord)
_plain_line = msgspec.json.Decoder(PlainRecord)
_line = msgspec.json.Decoder(RecordBody)
_headers = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[HeaderBody] | None)


def parse_json(body: bytes, *, now_ms: int, headers_max: int) -> ParsedRecords:
    """Decodes a JSON body. `now_ms` is the timestamp of records without one. Raises InvalidArgument, TooLarge."""
    check_utf8(body)
    if _may_hold_too_many(body):
        _check_count(members_at_most(body, level=_RECORDS_LEVEL))
    try:
        simple = _simple(lambda: _text_body.decode(body).records, lambda: _plain_body.decode(body).records, now_ms)
        if simple is not None:
            return simple
        records = _body.decode(body).records
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(error, "the body", body) from None
    return _parsed(enumerate(records), "records[{}]", now_ms=now_ms, headers_max=headers_max)


def parse_ndjson(body: bytes, *, now_ms: int, headers_max: int) -> ParsedRecords:
    """Decodes NDJSON as parse_json does JSON. Skips empty lines."""
    check_utf8(body)
    line_count = 1 + body.count(b"\n")
    if line_count > LINES_MAX:
        raise TooLarge(f"the request has {line_count} lines; at most {RECORDS_MAX} are accepted", hint=_FEWER)
    lines = body.split(b"\n")
    if not _may_hold_too_many(body):  # else one line may hold several records, which _decoded_lines decodes one by one
        try:
            simple = _simple(lambda: _text_line.decode_lines(body), lambda: _plain_line.decode_lines(body), now_ms)
            if simple is not None and len(simple.records) == len(lines) - lines.count(b""):
                return simple
        except (msgspec.DecodeError, RecursionError):
            pass  # raised again below, with the number of its line
    return _parsed(_decoded_lines(lines), "line {}", now_ms=now_ms, headers_max=headers_max)


def _may_hold_too_many(body: bytes) -> bool:
    """Returns whether the body may have too many records: each has a bracket, but objects and text within one may as well."""
    return len(body) > _RECORD_BYTES_MIN * RECORDS_MAX and body.count(b"{") > RECORDS_MAX


def _simple(
    text_records: Callable[[], list[TextRecord]], plain_records: Callable[[], list[PlainRecord]], now_ms: int
) -> ParsedRecords | None:
    """Returns the records if all are simple, three to ten times faster than through RecordBody; else None.

    Mostly the first record shows that they are not simple. Raises DecodeError if the body is not JSON.
    """
    try:
        texts = text_records()
        _check_count(len(texts))
        return ParsedRecords([_text_tuple(record, now_ms) for record in texts], None)
    except (msgspec.ValidationError, UnicodeEncodeError):
        pass
    try:
        plain = plain_records()
        _check_count(len(plain))
        return ParsedRecords([_plain_tuple(record, now_ms) for record in plain], None)
    except (msgspec.ValidationError, UnicodeEncodeError, InvalidArgument):
        return None


def _text_tuple(record: TextRecord, now_ms: int) -> NewRecordTuple:
    key, value = record.key, record.value
    return (None if key is None else key.encode(), None if value is None else value.encode(), _NO_HEADERS, now_ms)


def _plain_tuple(record: PlainRecord, now_ms: int) -> NewRecordTuple:
    key = record.key
    return (None if key is None else key.encode(), to_bytes(record.value), _NO_HEADERS, now_ms)


def _decoded_lines(lines: list[bytes]) -> Iterable[tuple[int, RecordBody]]:
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            try:
                yield number, _line.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _refusal(error, f"line {number}", line) from None


def _parsed(bodies: Iterable[tuple[int, RecordBody]], label: str, *, now_ms: int, headers_max: int) -> ParsedRecords:
    """Encodes numbered records. Errors name a record by its number in the format `label`."""
    records: list[NewRecordTuple] = []
    partitions: list[int | None] = []
    header_count = 0
    for number, body in bodies:
        if len(records) == RECORDS_MAX:
            raise TooLarge(f"the request has more than {RECORDS_MAX} records", hint=_FEWER)
        try:
            headers = _NO_HEADERS if body.headers is _NULL else _header_tuples(body.headers, headers_max)
            if headers and (header_count := header_count + len(headers)) > HEADERS_MAX:
                raise TooLarge(
                    f"the request has {header_count} headers up to this record; at most {HEADERS_MAX} are accepted", hint=_FEWER
                )
            timestamp_ms = now_ms if body.timestamp is None else body.timestamp
            records.append((to_bytes(body.key), to_bytes(body.value), headers, timestamp_ms))
            partitions.append(body.partition)
        except (InvalidArgument, TooLarge) as error:
            where = label.format(number)
            raise type(error)(f"{where}: {error.message}", hint=error.hint, record=len(records)) from None
        except (msgspec.DecodeError, UnicodeEncodeError) as error:  # a lone surrogate in a string
            where = label.format(number)
            raise InvalidArgument(f"{where} can't be stored as UTF-8: {error}", record=len(records)) from None
    _check_count(len(records))
    return ParsedRecords(records, partitions if any(partition is not None for partition in partitions) else None)


def _header_tuples(raw: msgspec.Raw, headers_max: int) -> tuple[tuple[str, bytes | None], ...]:
    text = bytes(raw)
    if len(text) > headers_max and text.count(b",") >= headers_max and (count := members_at_most(text, level=1)) > headers_max:
        raise _too_many_headers(count, headers_max)
    try:
        headers = _headers.decode(text)
    except msgspec.ValidationError as error:
        fault = field_error(error, "headers")
        raise InvalidArgument(fault.sentence("the record"), hint=_HINTS["headers"]) from None
    if headers is None:
        return _NO_HEADERS
    if len(headers) > headers_max:
        raise _too_many_headers(len(headers), headers_max)
    if isinstance(headers, dict):
        return tuple((name, to_bytes(value)) for name, value in headers.items())
    return tuple((header.key, to_bytes(header.value)) for header in headers)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_FEWER: Final = "Send fewer records per request."
_EXAMPLE: Final = '{"records": [{"key": "7", "value": {"id": 7}}]}'
_HINTS: Final = {
    "": f"Send {_EXAMPLE}; one record per line goes with Content-Type: application/x-ndjson.",
    "line": 'Write one record per line, as {"key": "7", "value": {"id": 7}}.',
    "record": 'A record is an object: {"key": "7", "value": {"id": 7}}.',
    "headers": 'Write "headers": {"trace": "a1"}, or [{"key": "trace", "value": "a1"}] where order or duplicates matter.',
    "partition": 'Write "partition": 0, or leave it out: then the key decides.',
    "timestamp": 'Write milliseconds since 1970, "timestamp": 1750000000000, or leave it out for now.',
}


def _check_count(count: int) -> None:
    if count == 0:
        raise InvalidArgument("the request has no records", hint=_HINTS[""])
    if count > RECORDS_MAX:
        raise TooLarge(f"the request has {count} records; at most {RECORDS_MAX} are accepted", hint=_FEWER)


def _too_many_headers(count: int, headers_max: int) -> TooLarge:
    return TooLarge(
        f"it has {count} headers; at most {headers_max} are accepted",
        hint="Send fewer headers, or raise the broker's record_headers_max.",
    )


def _refusal(error: Exception, whole: str, text: bytes) -> InvalidArgument:
    """Translates a decoder's error. `whole` names the text: the body, line 3."""
    if isinstance(error, RecursionError):
        return InvalidArgument(f"{whole} is nested too deeply", hint="Nest less than 900 levels, or send the value as a string.")
    if not isinstance(error, msgspec.ValidationError):
        assert isinstance(error, msgspec.DecodeError)
        return InvalidArgument(
            f"{whole} {describe_malformed_json(error, text)}", hint=_HINTS["" if whole == "the body" else "line"]
        )
    fault = field_error(error)
    prefix = f"{whole}: " if whole != "the body" and fault.path else ""
    return InvalidArgument(f"{prefix}{fault.sentence(whole)}", hint=_hint(fault, of_record=whole != "the body"))


def _hint(fault: FieldError, *, of_record: bool) -> str:
    """Returns a hint. `of_record` is True if a single record was decoded."""
    if not of_record and not fault.path.startswith("records["):
        return _HINTS[""]
    if fault.unknown_field == "records":
        return "Send a list of records with Content-Type: application/json."
    if fault.unknown_field is not None:
        return did_you_mean(fault.unknown_field, _FIELDS) or f"A record has the fields {', '.join(_FIELDS)}."
    return _HINTS.get(fault.path.rpartition(".")[2], _HINTS["record"])


_QUOTE, _COMMA = b'",'
_NO_MARKS: Final = bytes(set(range(256)) - set(b'"[]{},'))
# Marks that are counted at a time; their levels take four bytes each.
_CHUNK_BYTES: Final = 1 << 20

_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def members_at_most(text: bytes, *, level: int) -> int:
    """Returns an upper bound for the members of the first array or object that begins within `level` brackets, its own included.

    The members of a text that is one array or object are at level 1; the records in `{"records": […]}` are at level 2. An empty one
    counts as one. If several stand at this level, which no valid body has, their members are added.
    """
    if b"\\" in text:  # escapes occur only within strings; from the left, each includes the next byte
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, delete=_NO_MARKS)
    commas = present_level = 0
    within_string = False
    for start in range(0, len(marks), _CHUNK_BYTES):
        chunk = np.frombuffer(marks, np.uint8, min(_CHUNK_BYTES, len(marks) - start), start)
        within = np.logical_xor.accumulate(chunk == _QUOTE) ^ within_string
        within_string = bool(within[-1])
        steps = _STEPS[chunk]
        steps[within] = 0
        levels = np.cumsum(steps, dtype=np.int32) + present_level
        present_level = int(levels[-1])
        commas += int(np.count_nonzero((chunk == _COMMA) & ~within & (levels == level)))
    return 1 + commas
