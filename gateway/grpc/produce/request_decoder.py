"""Decodes a ProduceRequest without copies: its record batches are views of the received message. Pure.

protobuf copies a `bytes` field twice on its way into Python, which would be most of the cost of producing 1 MiB batches, and it
makes an object of a hundred bytes out of two bytes on the wire. So this module reads by hand what encoders write:

    ProduceRequest   1 correlation_id varint · 2 acks varint · 3 timeout_ms varint · 4 append, length-delimited, repeated
    Append           1 topic · 2 partition varint · 3 record_batch · 4 records · 5 expected_offset varint · 6 topic_id
                     7 topic_revision varint · 8 continues varint · 12 key_id

Structured records stay bytes (record_decoder.py reads them), and fields of newer clients are skipped. Messages that no encoder
writes (a payload given twice, groups, wrong bytes) go through protobuf. Invariants: both ways return the same request, or the same
refusal (a test compares them over mutated messages); the objects made from a message take some hundred bytes for each of its
appends, of which there are at most APPENDS_MAX.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from gateway.proto import log_pb2
from metadata.errors import InvalidArgument, TooLarge
from segments.log.session_log import Acks

# Most appends of one message.
APPENDS_MAX: Final = 10_000
# Longest message that may go through protobuf.
UNUSUAL_BYTES_MAX: Final = 1 << 20

_ACKS: dict[int, Acks] = {
    log_pb2.ACKS_UNSPECIFIED: Acks.ALL,
    log_pb2.ACKS_ALL: Acks.ALL,
    log_pb2.ACKS_LEADER: Acks.LEADER,
    log_pb2.ACKS_NONE: Acks.NONE,
}


class AppendRequest(NamedTuple):
    """One append of a message; at most one of `record_batch` and `records` is set.

    `records` is an encoded RecordList. `key_id` is the API key of the client whose append another broker forwards.
    """

    topic: str
    partition: int | None
    record_batch: memoryview | None
    records: memoryview | None
    expected_offset: int | None
    topic_id: str = ""
    topic_revision: int = 0
    continues: bool = False
    key_id: str = ""


class ProduceRequestView(NamedTuple):
    """A decoded ProduceRequest. `timeout_ms` is 0 if the client leaves it to the broker."""

    correlation_id: int
    acks: Acks
    timeout_ms: int
    appends: list[AppendRequest]


def parse_produce(message: bytes) -> ProduceRequestView:
    """Decodes a message. Raises InvalidArgument unless it is a ProduceRequest, TooLarge for more than APPENDS_MAX appends."""
    try:
        return _parse_by_hand(memoryview(message))
    except (UnusualError, IndexError, ValueError):
        if len(message) > UNUSUAL_BYTES_MAX:
            raise InvalidArgument(f"the message of {len(message)} bytes is not a ProduceRequest, or is no usual one") from None
        return _parse_with_protobuf(message)


class UnusualError(Exception):
    """Raised for bytes that are not decoded by hand; protobuf decodes them."""


def skipped(view: memoryview | bytes, at: int) -> int:
    """Returns where the field behind the one at `at` begins.

    Raises UnusualError for a group or no field, IndexError if cut short.
    """
    tag, content_at = varint(view, at)
    tag_bytes = content_at - at
    if not 8 <= tag < 1 << 32 or tag_bytes > 5 or (tag_bytes > 1 and tag < 0x80):  # the last case may stand for a known field
        raise UnusualError
    match tag & 7:
        case 0:
            return varint(view, content_at)[1]
        case 1:
            return content_at + 8
        case 2:
            size, content_at = length(view, content_at)
            return content_at + size
        case 5:
            return content_at + 4
    raise UnusualError


def length(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Returns (size of a length-delimited field, where its bytes begin). Raises UnusualError if they go beyond the end."""
    size, content_at = varint(view, at)
    if content_at + size > len(view) or content_at - at > 5:
        raise UnusualError
    return size, content_at


def varint(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Returns (value of up to 64 bits, where the next field begins). Raises UnusualError for a longer value."""
    byte = view[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 64:
        at += 1
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise UnusualError
            return value, at + 1
        shift += 7
    raise UnusualError


def signed(value: int, bits: int) -> int:
    """Returns the number that a varint stands for in a field of int32 or int64, without its upper bits."""
    return ((value + (1 << bits - 1)) & (1 << bits) - 1) - (1 << bits - 1)


def _parse_by_hand(view: memoryview) -> ProduceRequestView:
    correlation_id = acks = timeout_ms = at = 0
    appends: list[AppendRequest] = []
    while at < len(view):
        tag = view[at]
        if tag == 0x22:
            if len(appends) == APPENDS_MAX:
                raise _too_many_appends()
            size, at = length(view, at + 1)
            appends.append(_parse_append(view[at : at + size]))
            at += size
        elif tag == 0x08:
            correlation_id, at = varint(view, at + 1)
        elif tag == 0x10:
            acks, at = varint(view, at + 1)
        elif tag == 0x18:
            timeout_ms, at = varint(view, at + 1)
        else:
            at = skipped(view, at)
    if at != len(view):
        raise UnusualError
    return ProduceRequestView(correlation_id, _acks(signed(acks, 32)), timeout_ms & 0xFFFFFFFF, appends)


def _parse_append(view: memoryview) -> AppendRequest:
    topic, partition, record_batch, records, expected_offset, topic_id, key_id, at = "", None, None, None, None, "", "", 0
    topic_revision = continues = 0
    while at < len(view):
        tag = view[at]
        if tag == 0x0A:
            size, at = length(view, at + 1)
            topic = str(view[at : at + size], "utf-8")
            at += size
        elif tag == 0x10:
            value, at = varint(view, at + 1)
            partition = signed(value, 32)
        elif tag in (0x1A, 0x22):
            if record_batch is not None or records is not None:
                raise UnusualError  # protobuf takes the later one, or merges both
            size, at = length(view, at + 1)
            if tag == 0x1A:
                record_batch = view[at : at + size]
            else:
                records = view[at : at + size]
            at += size
        elif tag == 0x28:
            value, at = varint(view, at + 1)
            expected_offset = signed(value, 64)
        elif tag == 0x32:
            size, at = length(view, at + 1)
            topic_id = str(view[at : at + size], "utf-8")
            at += size
        elif tag == 0x62:
            size, at = length(view, at + 1)
            key_id = str(view[at : at + size], "utf-8")
            at += size
        elif tag == 0x38:
            value, at = varint(view, at + 1)
            topic_revision = signed(value, 64)
        elif tag == 0x40:
            continues, at = varint(view, at + 1)
        else:
            at = skipped(view, at)
    if at != len(view):
        raise UnusualError
    return AppendRequest(
        topic, partition, record_batch, records, expected_offset, topic_id, topic_revision, bool(continues), key_id
    )


def _parse_with_protobuf(message: bytes) -> ProduceRequestView:
    try:
        request = log_pb2.ProduceRequest.FromString(message)
    except DecodeError as error:
        raise InvalidArgument(f"the message is not a ProduceRequest: {error}") from None
    if len(request.appends) > APPENDS_MAX:
        raise _too_many_appends()
    appends = [
        AppendRequest(
            append.topic,
            append.partition if append.HasField("partition") else None,
            memoryview(append.record_batch) if append.HasField("record_batch") else None,
            memoryview(append.records.SerializeToString()) if append.HasField("records") else None,
            append.expected_offset if append.HasField("expected_offset") else None,
            append.topic_id,
            append.topic_revision,
            append.continues,
            append.key_id,
        )
        for append in request.appends
    ]
    return ProduceRequestView(request.correlation_id, _acks(request.acks), request.timeout_ms, appends)


def _acks(number: int) -> Acks:
    if number not in _ACKS:
        raise InvalidArgument(f"acks {number} is not one of ACKS_ALL (1), ACKS_LEADER (2), ACKS_NONE (3)")
    return _ACKS[number]


def _too_many_appends() -> TooLarge:
    return TooLarge(f"the message has more than {APPENDS_MAX} appends", hint="Send fewer record batches in one message.")
