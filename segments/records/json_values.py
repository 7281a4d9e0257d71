"""Converts keys and values between JSON and bytes, as the HTTP listener takes and gives them. Pure.

    JSON that is produced                          bytes that are stored
    "text"                                         its UTF-8
    {"type": "binary", "data": "<base64>"}         the decoded bytes
    null                                           none: a null key; a null value is a tombstone
    anything else                                  its own text without white space: 1.10 stays 1.10, big integers stay whole

    bytes that are read, as `auto`                 JSON that is given
    none                                           null
    JSON text                                      that JSON, without white space: 7 is read as a number, from any producer
    other UTF-8                                    a string of it
    anything else                                  {"type":"binary","data":"<base64>"}

Invariant: what `auto` gives can be produced again, and then stores the same bytes, save for white space, and for what only
foreign producers store: a JSON string in quotation marks (read as the string) and JSON text of the binary form (read as it is).
The bytes `null` are read as the string "null", so that null in an answer always means that there is no value.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Literal

import msgspec

from metadata.errors import InvalidArgument
from segments.records.batch_kernel import compact_json


class JsonFormat(StrEnum):
    """Chooses how bytes are given as JSON. None is null in all of them."""

    AUTO = "auto"
    # The JSON that they are; InvalidArgument if they are none.
    JSON = "json"
    # A string; InvalidArgument if they are not UTF-8.
    TEXT = "text"
    # A string of their base64, without regard to what they are.
    BASE64 = "base64"


class _Binary(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["binary"]
    data: str


_NULL = msgspec.Raw(b"null")
_STRING_BEGINS, _OBJECT_BEGINS, _NULL_BEGINS = b'"{n'
_JSON_BEGINS = frozenset(bytes([first]) for first in b' \t\r\n"-0123456789[{tf')
_BINARY_HINT = 'Send bytes as {"type":"binary","data":"<base64>"}.'

_STRING = msgspec.json.Decoder(str)
_BINARY = msgspec.json.Decoder(_Binary)
_ANY = msgspec.json.Decoder(msgspec.Raw)
_ENCODER = msgspec.json.Encoder()


def to_bytes(value: msgspec.Raw) -> bytes | None:
    """Returns the stored bytes for one JSON value, as msgspec cut it out of a request: only its UTF-8 was not checked.

    An empty Raw, msgspec's word for a field that was left out, is null. InvalidArgument if the text is not UTF-8, or the binary
    form holds no base64.
    """
    text = bytes(value)
    if not text.isascii():
        _check_utf8(text)
    first = text[0] if text else _NULL_BEGINS
    if first == _STRING_BEGINS:
        return text[1:-1] if b"\\" not in text else _STRING.decode(text).encode()
    if first == _NULL_BEGINS:
        return None
    if first == _OBJECT_BEGINS and b'"binary"' in text:
        try:
            data = _BINARY.decode(text).data
        except msgspec.DecodeError:
            return compact_json(text)
        return _from_base64(data)
    return compact_json(text)


def from_bytes(value: bytes | None, form: JsonFormat = JsonFormat.AUTO) -> msgspec.Raw:
    """Returns the JSON text of a stored key or value, to be put into an answer as it is: UTF-8, without line breaks."""
    if value is None:
        return _NULL
    if form is JsonFormat.AUTO:
        if value[:1] in _JSON_BEGINS and value != b"null":
            found = _as_json(value)
            if found is not None:
                return found
        text = _as_text(value)
        return text if text is not None else msgspec.Raw(b'{"type":"binary","data":"' + b64encode(value) + b'"}')
    if form is JsonFormat.BASE64:
        return msgspec.Raw(b'"' + b64encode(value) + b'"')
    found = _as_json(value) if form is JsonFormat.JSON else _as_text(value)
    if found is None:
        kind = "JSON" if form is JsonFormat.JSON else "UTF-8"
        raise InvalidArgument(f"a key or value of {len(value)} bytes is not {kind}", hint="Read it as auto or as base64.")
    return found


def _as_json(value: bytes) -> msgspec.Raw | None:
    try:
        if not value.isascii():
            value.decode()
        return msgspec.Raw(compact_json(bytes(_ANY.decode(value))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _as_text(value: bytes) -> msgspec.Raw | None:
    try:
        return msgspec.Raw(_ENCODER.encode(value.decode()))
    except UnicodeDecodeError:
        return None


def _check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"a key or value is not UTF-8 at its byte {error.start}", hint=_BINARY_HINT) from None


def _from_base64(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"a key or value of the binary form holds no base64: {error}", hint=_BINARY_HINT) from None
