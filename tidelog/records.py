"""Defines records and acknowledgements, and converts Python values to bytes. Pure.

    value                          stored
    None                           null (a tombstone, where the topic is compacted)
    bytes, bytearray, memoryview   as they are
    str                            its UTF-8
    anything else                  compact JSON: dict, list, number, bool, datetime, UUID, dataclass, Struct, attrs, pydantic

Keys follow the same rules. The HTTP listener has the same ones, so a value is the same bytes through every listener.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from metadata.errors import InvalidArgument, InvalidRecord

# Names may repeat; the order is kept.
Headers = tuple[tuple[str, bytes | None], ...]
HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    # Milliseconds since 1970-01-01 UTC: when it was made, or when it was appended, as the topic has it.
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def timestamp(self) -> datetime:
        """Returns the timestamp in UTC. Raises InvalidRecord outside of the years 1 to 9999."""
        try:
            return datetime_of(self.timestamp_ms)
        except OverflowError as error:
            raise InvalidRecord(
                f"the timestamp {self.timestamp_ms} ms of {self._location} is no date", hint="Use record.timestamp_ms."
            ) from error

    def text(self) -> str | None:
        """Returns the value as UTF-8 text; None for a null value. Raises InvalidRecord if it isn't text."""
        if self.value is None:
            return None
        try:
            return self.value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"the value of {self._location} is not UTF-8: {error}", hint="Use record.value.") from error

    def json(self) -> Any:
        """Returns the value decoded from JSON; None for a null value. Raises InvalidRecord if it isn't JSON."""
        if self.value is None:
            return None
        try:
            return msgspec.json.decode(self.value)
        except msgspec.DecodeError as error:
            raise InvalidRecord(f"the value of {self._location} is not JSON: {error}", hint="Use record.value.") from error

    @property
    def _location(self) -> str:
        return f"{self.topic}/{self.partition} at offset {self.offset}"


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The position of an acknowledged record."""

    topic: str
    partition: int
    # -1 with acks="none", which is answered without offsets.
    offset: int
    # As the record was sent. A topic with log append time stores the broker's time instead.
    timestamp_ms: int

    @property
    def timestamp(self) -> datetime:
        """Returns the timestamp in UTC. Raises InvalidRecord outside of the years 1 to 9999."""
        try:
            return datetime_of(self.timestamp_ms)
        except OverflowError as error:
            raise InvalidRecord(f"the timestamp {self.timestamp_ms} ms is no date", hint="Use ack.timestamp_ms.") from error


def datetime_of(timestamp_ms: int) -> datetime:
    """Converts milliseconds exactly. Raises OverflowError outside of the years 1 to 9999."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


class Message(msgspec.Struct, frozen=True):
    """A record to send, for `produce_many`: a value with what else belongs to it."""

    value: Any = None
    key: Any = None
    headers: HeadersLike | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


def to_bytes(value: Any) -> bytes | None:
    """Returns the stored form of a key or a value, by the table above. Raises InvalidArgument for a value without one."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the text {value[:40]!r} has no UTF-8 form: {error}", hint="Send bytes instead.") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(
            f"{type(value).__name__} can't be sent: {error}",
            hint="Send bytes, str, None, or what JSON can hold: dict, list, int, float, bool, dataclass, msgspec.Struct.",
        ) from error
    if b"null" in encoded:
        _refuse_no_numbers(value)
    return encoded


def _refuse_no_numbers(value: Any) -> None:
    """Refuses NaN and the infinities: JSON lacks them, and the encoder would write null."""

    def in_parts(part: Any) -> Any:
        return None if isinstance(part, msgspec.Raw) else _enc_hook(part)  # Raw is JSON already

    parts = [msgspec.to_builtins(value, str_keys=True, enc_hook=in_parts)]
    while parts:
        part = parts.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise InvalidArgument(
                f"{type(value).__name__} can't be sent: JSON has no {part}", hint="Send None in its place, or a text."
            )
        if isinstance(part, dict):
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part


def to_headers(headers: HeadersLike | None) -> Headers:
    """Returns pairs in the order given. Raises InvalidArgument where a name is not str, or a value is not bytes, str or None."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((_header_name(name), _header_value(name, value)) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the headers are not pairs of a name and a value: {error}", hint='Use {"trace": b"…"} or [("trace", b"…"), …].'
        ) from error


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"the header name {name!r} is not str")
    to_bytes(name)
    return name


def _header_value(name: object, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes | str):
        return to_bytes(value)
    raise InvalidArgument(f"the value of header {name!r} is {type(value).__name__}", hint="Use bytes, str or None.")


def _enc_hook(value: Any) -> Any:
    """Converts pydantic models to their JSON-ready form, without an import of pydantic."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"no JSON form for {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)
