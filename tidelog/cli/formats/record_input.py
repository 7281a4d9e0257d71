"""Parses the bytes of a file or a pipe to records: lines, NDJSON, CSV, or all of it as one record. Pure.

    lines    each line is a value; with a key separator, KEY<separator>VALUE
    ndjson   each line is a JSON value; `key_field` names the field of it that is the key
    csv      the first row names the fields; each further row becomes a JSON object of texts
    envelope each line is {"key": …, "value": …, "headers": [{"key": …, "value": …}], "partition": …, "timestamp": …}, as
             `consume -o ndjson` writes it; the headers may be an object, too
    raw      everything is one value

Bytes are fed as they come, so that a pipe is sent on as it flows. Invariants: what was fed in pieces gives the records that it
gives in one piece; no more than RECORD_BYTES_MAX and one piece is held, and each byte is looked at a bounded number of times.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from metadata.errors import InvalidArgument
from segments.records.json_values import to_bytes
from tidelog.records import Message


class InputFormat(StrEnum):
    """The format of the input."""

    LINES = "lines"
    NDJSON = "ndjson"
    CSV = "csv"
    ENVELOPE = "envelope"
    RAW = "raw"


# No broker accepts a record of this size: such input never ends, for example after an unclosed quote.
RECORD_BYTES_MAX = 64 << 20
EXCERPT_CHARS = 60
_BOM = b"\xef\xbb\xbf"
csv.field_size_limit(RECORD_BYTES_MAX)

FORMAT_OF_SUFFIX = {".ndjson": InputFormat.NDJSON, ".jsonl": InputFormat.NDJSON, ".csv": InputFormat.CSV}


class EnvelopeHeader(msgspec.Struct, forbid_unknown_fields=True):
    """A header in an envelope."""

    key: str
    value: msgspec.Raw = msgspec.Raw(b"null")


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A record with all that belongs to it. Where it was read from (topic, offset) is taken and left out."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    key: msgspec.Raw = msgspec.Raw(b"null")
    headers: dict[str, msgspec.Raw] | list[EnvelopeHeader] = msgspec.field(default_factory=dict)
    partition: int | None = None
    timestamp: int | None = None
    topic: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The options that decide how input becomes records."""

    format: InputFormat
    key_field: str = ""
    key_separator: bytes = b""
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    # Envelopes: send each record to the partition that it names.
    keep_partition: bool = False

    def __post_init__(self) -> None:
        if self.key_field and self.format not in {InputFormat.NDJSON, InputFormat.CSV}:
            raise InvalidArgument(
                f"--key names a field, and {self.format} has none", hint="Use --as ndjson or csv, or -K for lines."
            )
        if self.key_separator and self.format is not InputFormat.LINES:
            raise InvalidArgument("--key-separator is for lines", hint="Use --key FIELD for ndjson and csv.")


class RecordInput:
    """Feed it, and take what has become whole. Errors name the line; what stood before it was given already."""

    def __init__(self, options: InputOptions) -> None:
        self._options = options
        # Pieces of a record that is not whole yet.
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        # Whether the rest ends within a quoted field of CSV.
        self._in_quotes = False
        self._line = 0
        self._fields: list[str] | None = None

    @property
    def line(self) -> int:
        """Returns the number of the line that ends the last record; 0 if the input has no lines."""
        return self._line

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yields the records that are complete. Raises InvalidArgument."""
        end = self._whole_until(data)
        if end:
            whole = b"".join([*self._rest, data[:end]])
            self._rest.clear()
            self._rest_bytes = 0
            yield from self._records(whole)
        self._rest.append(data[end:])
        self._rest_bytes += len(data) - end
        if self._rest_bytes > RECORD_BYTES_MAX:
            self._line += 1
            raise self._error(f"begins a record of more than {RECORD_BYTES_MAX >> 20} MiB", hint=self._why_endless())

    def end(self) -> Iterator[Message]:
        """Returns the rest at the end of input: a last line without its line break, or the one record of `raw`."""
        whole = b"".join(self._rest)
        self._rest.clear()
        if self._options.format is InputFormat.RAW:
            yield self._message(whole)
        else:
            yield from self._records(whole)

    def _whole_until(self, data: bytes) -> int:
        """Returns the end of the last line of `data`, in CSV outside of quotes; 0 if there is none."""
        match self._options.format:
            case InputFormat.RAW:
                return 0
            case InputFormat.CSV:
                return self._rows_until(data)
        return data.rfind(b"\n") + 1

    def _rows_until(self, data: bytes) -> int:
        end, start = 0, 0
        for number, part in enumerate(data.split(b'"')):
            if number:
                self._in_quotes = not self._in_quotes
            if not self._in_quotes and (found := part.rfind(b"\n")) >= 0:
                end = start + found + 1
            start += len(part) + 1
        return end

    def _why_endless(self) -> str:
        if self._in_quotes:
            return "Look for a quote that is not closed."
        return "Records end with a line break; --as raw takes the whole input as one record."

    def _records(self, whole: bytes) -> Iterator[Message]:
        if self._options.format is InputFormat.CSV:
            yield from self._csv(whole)
            return
        for line in whole.split(b"\n") if not whole.endswith(b"\n") else whole[:-1].split(b"\n"):
            if not whole:
                return
            self._line += 1
            line = line.removesuffix(b"\r")
            if self._line == 1 and self._options.format is not InputFormat.LINES:
                line = line.removeprefix(_BOM)
            match self._options.format:
                case InputFormat.LINES:
                    yield self._from_line(line)
                case _ if not line.strip():
                    continue
                case InputFormat.NDJSON:
                    yield self._from_json(line)
                case InputFormat.ENVELOPE:
                    yield self._from_envelope(line)

    def _from_line(self, line: bytes) -> Message:
        separator = self._options.key_separator
        if not separator:
            return self._message(line)
        key, found, value = line.partition(separator)
        if not found:
            raise self._error(f"has no separator {separator.decode(errors='replace')!r} between key and value", line)
        return self._message(value, key=key)

    def _from_json(self, line: bytes) -> Message:
        try:
            value = to_bytes(_RAW.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
            raise self._error(f"is not JSON ({error})", line) from error
        if not self._options.key_field:
            return self._message(value)
        try:
            key = self._key_of(_OBJECT.decode(line), line)
        except msgspec.DecodeError as error:
            raise self._error("is no JSON object, and --key names a field of one", line) from error
        return self._message(value, key=key)

    def _from_envelope(self, line: bytes) -> Message:
        try:
            envelope = _ENVELOPE.decode(line)
            pairs = envelope.headers
            entries = pairs.items() if isinstance(pairs, dict) else [(entry.key, entry.value) for entry in pairs]
            headers = [(name, to_bytes(value)) for name, value in entries]
            value, key = to_bytes(envelope.value), to_bytes(envelope.key)
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
            raise self._error(f"is no envelope ({error})", line) from error
        partition = envelope.partition if self._options.keep_partition else self._options.partition
        return Message(value, key, [*headers, *self._options.headers], partition, envelope.timestamp)

    def _csv(self, whole: bytes) -> Iterator[Message]:
        try:
            text = whole.decode("utf-8-sig" if self._fields is None else "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"or one soon after it is not UTF-8: {error}") from error
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        before = self._line
        try:
            for row in rows:
                self._line = before + rows.line_num
                if self._fields is None:
                    self._fields = self._checked_fields(row)
                elif row:
                    yield self._from_row(self._fields, row)
        except csv.Error as error:
            if self._in_quotes:
                self._line += 1  # the first one behind the last whole row
                raise self._error("opens a quote that is not closed") from error
            self._line = before + rows.line_num
            raise self._error(f"is not CSV: {error}") from error

    def _checked_fields(self, row: list[str]) -> list[str]:
        doubled = sorted({name for name in row if row.count(name) > 1})
        if doubled:
            raise self._error(f"names the field {doubled[0]!r} twice")
        if self._options.key_field and self._options.key_field not in row:
            raise self._error(f"names no field {self._options.key_field!r} for the key; it names {', '.join(row)}")
        return row

    def _from_row(self, fields: list[str], row: list[str]) -> Message:
        if len(row) != len(fields):
            raise self._error(f"has {len(row)} fields, and the first line names {len(fields)}", ",".join(row).encode())
        record = dict(zip(fields, row, strict=True))
        return self._message(msgspec.json.encode(record), key=self._key_of(record, b"") if self._options.key_field else None)

    def _key_of(self, record: dict[str, Any], line: bytes) -> bytes | None:
        name = self._options.key_field
        if name not in record:
            raise self._error(f"has no field {name!r} for the key", line)
        key = record[name]
        if isinstance(key, msgspec.Raw):
            return to_bytes(key)
        return str(key).encode()

    def _message(self, value: bytes | None, *, key: bytes | None = None) -> Message:
        return Message(value, key, self._options.headers, self._options.partition)

    def _error(self, what: str, line: bytes = b"", *, hint: str = "") -> InvalidArgument:
        number = max(1, self._line)
        excerpt = f": {_excerpt(line)}" if line else ""
        return InvalidArgument(f"line {number} of the input {what}{excerpt}", hint=hint, line=number)


def _excerpt(line: bytes) -> str:
    """Returns the start of a line, without characters that would move a terminal's cursor."""
    text = line[: 4 * EXCERPT_CHARS].decode(errors="replace")
    shown = "".join(character if character.isprintable() else "·" for character in text[:EXCERPT_CHARS])
    return shown if len(text) <= EXCERPT_CHARS else f"{shown}…"


_RAW = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENVELOPE = msgspec.json.Decoder(Envelope)
