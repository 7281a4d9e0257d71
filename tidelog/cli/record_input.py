"""From the bytes of a file or a pipe to records: lines, NDJSON, CSV, or all of it as one record. Pure.

    lines    each line is a value; with a key separator, KEY<separator>VALUE
    ndjson   each line is a JSON value; `key_field` names the field of it that is the key
    csv      the first row names the fields; each further row becomes a JSON object of texts
    envelope each line is {"key": …, "value": …, "headers": [{"key": …, "value": …}], "partition": …, "timestamp": …}, as
             `consume -o ndjson` writes it; the headers may be an object, too
    raw      everything is one value

Bytes are fed as they come, so that a pipe is sent on as it flows. Invariant: what was fed in pieces gives the records that it
gives in one piece.
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
from segments.json_values import to_bytes
from tidelog.records import Message


class InputFormat(StrEnum):
    LINES = "lines"
    NDJSON = "ndjson"
    CSV = "csv"
    ENVELOPE = "envelope"
    RAW = "raw"


FORMAT_OF_SUFFIX = {".ndjson": InputFormat.NDJSON, ".jsonl": InputFormat.NDJSON, ".csv": InputFormat.CSV}


class EnvelopeHeader(msgspec.Struct, forbid_unknown_fields=True):
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
    format: InputFormat
    key_field: str = ""
    key_separator: bytes = b""
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    keep_partition: bool = False
    """Envelopes: send each record to the partition that it names."""

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
        self._rest = b""
        self._line = 0
        """Number of the last line that was taken."""
        self._fields: list[str] | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """The records that are whole by now. Raises InvalidArgument."""
        self._rest += data
        if self._options.format is InputFormat.RAW:
            return
        end = self._whole_until()
        whole, self._rest = self._rest[:end], self._rest[end:]
        yield from self._records(whole)

    def end(self) -> Iterator[Message]:
        """What is left when nothing more comes: a last line without its line break, or the one record of `raw`."""
        whole, self._rest = self._rest, b""
        if self._options.format is InputFormat.RAW:
            yield self._message(whole)
        else:
            yield from self._records(whole)

    def _whole_until(self) -> int:
        """Up to the last line break; in CSV to the last one outside of quotes."""
        end = self._rest.rfind(b"\n") + 1
        if self._options.format is InputFormat.CSV:
            while end and self._rest.count(b'"', 0, end) % 2:
                end = self._rest.rfind(b"\n", 0, end - 1) + 1
        return end

    def _records(self, whole: bytes) -> Iterator[Message]:
        if self._options.format is InputFormat.CSV:
            yield from self._csv(whole)
            return
        for line in whole.split(b"\n") if not whole.endswith(b"\n") else whole[:-1].split(b"\n"):
            if not whole:
                return
            self._line += 1
            line = line.removesuffix(b"\r")
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
            raise self._error(f"has no separator {separator.decode(errors='replace')!r} between key and value")
        return self._message(value, key=key)

    def _from_json(self, line: bytes) -> Message:
        try:
            value = to_bytes(_RAW.decode(line))
            key = self._key_of(_OBJECT.decode(line)) if self._options.key_field else None
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
            raise self._error(f"is not JSON as it is needed: {error}") from error
        return self._message(value, key=key)

    def _from_envelope(self, line: bytes) -> Message:
        try:
            envelope = _ENVELOPE.decode(line)
            pairs = envelope.headers
            entries = pairs.items() if isinstance(pairs, dict) else [(entry.key, entry.value) for entry in pairs]
            headers = [(name, to_bytes(value)) for name, value in entries]
            value, key = to_bytes(envelope.value), to_bytes(envelope.key)
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
            raise self._error(f"is no envelope: {error}") from error
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
                    self._fields = row
                elif row:
                    yield self._from_row(self._fields, row)
        except csv.Error as error:
            self._line = before + rows.line_num
            raise self._error(f"is not CSV: {error}") from error

    def _from_row(self, fields: list[str], row: list[str]) -> Message:
        if len(row) != len(fields):
            raise self._error(f"has {len(row)} fields, and the first line names {len(fields)}")
        record = dict(zip(fields, row, strict=True))
        return self._message(msgspec.json.encode(record), key=self._key_of(record) if self._options.key_field else None)

    def _key_of(self, record: dict[str, Any]) -> bytes | None:
        name = self._options.key_field
        if name not in record:
            raise self._error(f"has no field {name!r} for the key")
        key = record[name]
        if isinstance(key, msgspec.Raw):
            return to_bytes(key)
        return str(key).encode()

    def _message(self, value: bytes | None, *, key: bytes | None = None) -> Message:
        return Message(value, key, self._options.headers, self._options.partition)

    def _error(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"line {max(1, self._line)} of the input {what}")


_RAW = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENVELOPE = msgspec.json.Decoder(Envelope)
