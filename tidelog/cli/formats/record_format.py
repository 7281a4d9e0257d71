"""Formats records as text: lines of a table, JSON, or a format in the manner of kcat. Pure.

    %t topic   %p partition   %o offset   %T timestamp in ms   %k key   %s value   %h headers, name=value,…
    %K and %S  length of key and value in bytes, -1 for null   %%  a per cent sign   \\n \\t \\r \\0 \\xNN as in C

Keys and values are written as the bytes that they are; null is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from metadata.errors import InvalidArgument
from tidelog.records import Record, datetime_of

TextOf = Callable[[Record], bytes]

_DIRECTIVES: Final[Mapping[str, TextOf]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "%": lambda record: b"%",
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART: Final = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|([^%\\]+)", re.DOTALL)
_SHOWN_MAX: Final = 200


def parse_format(text: str) -> list[bytes | TextOf]:
    """Parses a format into its parts. Raises InvalidArgument for an unknown directive."""
    parts: list[bytes | TextOf] = []
    for directive, hexadecimal, escape, plain in _PART.findall(text):
        if plain:
            parts.append(plain.encode())
        elif hexadecimal:
            parts.append(bytes([int(hexadecimal, 16)]))
        elif directive in _DIRECTIVES:
            parts.append(_DIRECTIVES[directive])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            shown = f"%{directive}" if directive or not escape else f"\\{escape}"
            raise InvalidArgument(
                f"{shown!r} in the format means nothing",
                hint=f"There are: {' '.join('%' + name for name in _DIRECTIVES)} \\n \\t \\xNN",
            )
    return parts


def apply_format(parts: list[bytes | TextOf], record: Record) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def as_document(record: Record) -> dict[str, Any]:
    """Converts a record to JSON in the form of the HTTP listener. `produce --as envelope` reads it back."""
    from segments.records.json_values import from_bytes

    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": from_bytes(record.key),
        "value": from_bytes(record.value),
        "headers": [{"key": name, "value": from_bytes(value)} for name, value in record.headers],
    }


def as_json_line(record: Record) -> bytes:
    return msgspec.json.encode(as_document(record)) + b"\n"


def table_header(topic_width: int = 0) -> str:
    """`topic_width` 0: without the topic."""
    return f"{_topic('TOPIC', topic_width)}{'PART':>4}  {'OFFSET':>8}  {'TIMESTAMP':<24}  {'KEY':<12}  VALUE"


def as_table_line(record: Record, topic_width: int = 0) -> str:
    prefix = f"{_topic(record.topic, topic_width)}{record.partition:>4}  {record.offset:>8}"
    return f"{prefix}  {_moment(record.timestamp_ms):<24}  {shown(record.key):<12}  {shown(record.value)}"


def _topic(name: str, width: int) -> str:
    return f"{name:<{width}}  " if width else ""


def _moment(timestamp_ms: int) -> str:
    """Formats a timestamp so that `consume --from` accepts it, even beyond dates; "-" for -1, Kafka's value for none."""
    if timestamp_ms == -1:
        return "-"
    try:
        return datetime_of(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"@{timestamp_ms}"


def shown(value: bytes | None) -> str:
    """Returns bytes as text for a terminal: never a control character, never more than a line."""
    if value is None:
        return "-"
    try:
        text = value[: 4 * _SHOWN_MAX].decode() if len(value) <= 4 * _SHOWN_MAX else value[: 4 * _SHOWN_MAX].decode(errors="ignore")
    except UnicodeDecodeError:
        text = "0x" + value[: _SHOWN_MAX // 2].hex()
    text = "".join(character if character.isprintable() else "·" for character in text)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
