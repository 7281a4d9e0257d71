"""Decides how the bytes of a record are shown, and whether a record matches what the reader looks for. Pure.

    bytes ─▶ Payload: null · empty · json (also indented) · text · binary (hex)

Invariant: nothing of a payload is interpreted but JSON, and what is shown of it is bounded. Templates escape it.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

# Characters of a payload in a list, and on the page of one record.
PREVIEW_CHARACTERS: Final = 160
WHOLE_CHARACTERS: Final = 200_000
HEX_BYTES: Final = 64
# Larger payloads are not parsed as JSON in a list.
JSON_BYTES_MAX: Final = 64 << 10
# Control characters of direction could show text in another order than it has.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_KEPT: Final = frozenset("\n\t")

Kind = Literal["null", "empty", "json", "text", "binary", "hidden"]


class Payload(NamedTuple):
    """A key, a value or a header's value as a page shows it."""

    kind: Kind
    size_bytes: int
    text: str
    # Whether more follows than is shown.
    is_cut: bool


class ShownHeader(NamedTuple):
    """A header as a page shows it."""

    name: str
    value: Payload


class ShownRecord(NamedTuple):
    """A record as a page shows it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Payload
    value: Payload
    headers: Sequence[ShownHeader]


class RawRecord(NamedTuple):
    """A record of the API with its bytes."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def raw_record(answer: Mapping[str, Any]) -> RawRecord:
    """Returns the record of an answer whose key and value have the format base64."""
    return RawRecord(
        answer["partition"],
        answer["offset"],
        answer["timestamp"],
        _bytes(answer["key"]),
        _bytes(answer["value"]),
        [(header["key"], _header_bytes(header["value"])) for header in answer["headers"]],
    )


def shown_record(record: RawRecord, *, whole: bool = False, hidden: bool = False) -> ShownRecord:
    """Returns the record as a list shows it, or (`whole`) as its own page does. `hidden`: with sizes in place of payloads."""
    if hidden:
        headers = [ShownHeader(name, _hidden(value)) for name, value in record.headers]
        return ShownRecord(
            record.partition, record.offset, record.timestamp_ms, _hidden(record.key), _hidden(record.value), headers
        )
    limit = WHOLE_CHARACTERS if whole else PREVIEW_CHARACTERS
    return ShownRecord(
        record.partition,
        record.offset,
        record.timestamp_ms,
        shown_payload(record.key, limit=limit, indented=whole),
        shown_payload(record.value, limit=limit, indented=whole),
        [ShownHeader(name, shown_payload(value, limit=limit)) for name, value in record.headers],
    )


def _hidden(data: bytes | None) -> Payload:
    return Payload("null", 0, "", is_cut=False) if data is None else Payload("hidden", len(data), "", is_cut=False)


def shown_payload(data: bytes | None, *, limit: int, indented: bool = False) -> Payload:
    """Returns at most `limit` characters of a payload. `indented`: JSON is laid out over lines."""
    if data is None:
        return Payload("null", 0, "", is_cut=False)
    if not data:
        return Payload("empty", 0, "", is_cut=False)
    text = _text(data, limit=limit)
    if text is None:
        shown = data[: HEX_BYTES if limit <= PREVIEW_CHARACTERS else limit // 3]
        return Payload("binary", len(data), shown.hex(" "), is_cut=len(shown) < len(data))
    is_cut = len(data) > _bytes_of_characters(limit)
    kind: Kind = "text"
    if (indented or len(data) <= JSON_BYTES_MAX) and data[:1] in b'{["-0123456789tfn \n\t' and _is_json(data):
        kind = "json"
        if indented:
            text, is_cut = msgspec.json.format(data, indent=2).decode(), False
    return Payload(kind, len(data), text[:limit], is_cut=is_cut or len(text) > limit)


def _bytes_of_characters(limit: int) -> int:
    """Returns how many bytes `limit` characters may have, and one character more."""
    return 4 * limit + 4


def _text(data: bytes, *, limit: int) -> str | None:
    """Returns the beginning of UTF-8 text, with control characters made visible; None for other bytes."""
    part = data[: _bytes_of_characters(limit)]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # the cut may have split a character
        if len(part) == len(data) or error.start < len(part) - 4:
            return None
        text = part[: error.start].decode()
    if "\0" in text:
        return None
    return "".join(
        f"\\u{ord(each):04x}" if each not in _KEPT and unicodedata.category(each) in _HIDDEN_CATEGORIES else each for each in text
    )


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)


def _header_bytes(value: Any) -> bytes | None:
    """Returns the bytes of a header's value, which comes in the format `auto` (segments/records/json_values.py)."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict) and value.keys() == {"type", "data"} and value["type"] == "binary":
        return base64.b64decode(value["data"])
    return msgspec.json.encode(value)


class RecordFilter(NamedTuple):
    """Holds what the reader looks for. Empty fields match every record."""

    key: str = ""
    value: str = ""
    # NAME or NAME=VALUE.
    header: str = ""
    # PATH=VALUE, or PATH alone for records that have it: customer.id=7, items[0].name.
    json: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(self)

    def matches(self, record: RawRecord) -> bool:
        """Returns whether the record contains the key and the value, and has the header and the JSON field."""
        return (
            _contains(record.key, self.key)
            and _contains(record.value, self.value)
            and (not self.header or _has_header(record, self.header))
            and (not self.json or _has_field(record.value, self.json))
        )


def filter_of(query: Mapping[str, str]) -> RecordFilter:
    """Returns the filter of a form, whose fields have the names of the filter's."""
    return RecordFilter(*(query.get(name, "").strip() for name in RecordFilter._fields))


def _contains(data: bytes | None, text: str) -> bool:
    return not text or (data is not None and text.encode() in data)


def _has_header(record: RawRecord, asked: str) -> bool:
    name, wants_value, expected = asked.partition("=")
    return any(each == name and (not wants_value or _contains(value, expected)) for each, value in record.headers)


def _has_field(value: bytes | None, asked: str) -> bool:
    path, wants_value, expected = asked.partition("=")
    if value is None:
        return False
    try:
        found = msgspec.json.decode(value)
        for step in path.strip().removeprefix("$").replace("[", ".").replace("]", "").split("."):
            if step:
                found = found[int(step)] if isinstance(found, list) else found[step]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, ValueError, TypeError):
        return False
    if not wants_value:
        return True
    return found == expected if isinstance(found, str) else msgspec.json.encode(found).decode() == expected.strip()
