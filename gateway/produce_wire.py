"""ProduceRequest without copies: its record batches are views of the message as it came off the wire. Pure.

protobuf copies a `bytes` field twice on its way into Python, which is most of what a produce of 1 MiB batches would cost. So the
shape that matters (appends of ready batches) is read here by hand:

    ProduceRequest   1 correlation_id varint · 2 acks varint · 3 timeout_ms varint · 4 append, length-delimited, repeated
    Append           1 topic · 2 partition varint · 3 record_batch · 5 expected_offset varint

Anything else (structured records, unknown fields, numbers that overflow, bytes that are wrong) goes through protobuf, which
decides. Invariant: both ways give the same request, or the same refusal (a test compares them over mutated messages).

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from gateway.proto import log_pb2
from metadata.errors import InvalidArgument
from segments.log import Acks

_ACKS: dict[int, Acks] = {
    log_pb2.ACKS_UNSPECIFIED: Acks.ALL,
    log_pb2.ACKS_ALL: Acks.ALL,
    log_pb2.ACKS_LEADER: Acks.LEADER,
    log_pb2.ACKS_NONE: Acks.NONE,
}


class AppendRequest(NamedTuple):
    """One of `record_batch` and `records` is there, or neither where the client sent none."""

    topic: str
    partition: int | None
    record_batch: memoryview | None
    records: log_pb2.RecordList | None
    expected_offset: int | None


class ProduceCall(NamedTuple):
    correlation_id: int
    acks: Acks
    timeout_ms: int
    """0: the broker's own."""
    appends: list[AppendRequest]


def parse_produce(message: bytes) -> ProduceCall:
    """InvalidArgument unless it is a ProduceRequest."""
    try:
        return _parse_ready_batches(memoryview(message))
    except (_UnusualError, IndexError, ValueError):
        return _parse_with_protobuf(message)


class _UnusualError(Exception):
    """Not the shape that is read by hand."""


def _parse_ready_batches(view: memoryview) -> ProduceCall:
    correlation_id = acks = timeout_ms = at = 0
    appends: list[AppendRequest] = []
    while at < len(view):
        tag = view[at]
        if tag == 0x22:
            size, at = _varint(view, at + 1)
            if at + size > len(view):
                raise _UnusualError
            appends.append(_parse_append(view[at : at + size]))
            at += size
        elif tag == 0x08:
            correlation_id, at = _varint(view, at + 1)
        elif tag == 0x10:
            acks, at = _varint(view, at + 1)
        elif tag == 0x18:
            timeout_ms, at = _varint(view, at + 1)
        else:
            raise _UnusualError
    if acks not in _ACKS or timeout_ms >= 1 << 32:
        raise _UnusualError
    return ProduceCall(correlation_id, _ACKS[acks], timeout_ms, appends)


def _parse_append(view: memoryview) -> AppendRequest:
    topic, partition, record_batch, expected_offset, at = "", None, None, None, 0
    while at < len(view):
        tag = view[at]
        value, at = _varint(view, at + 1)
        if tag == 0x0A:
            topic = str(_field(view, at, value), "utf-8")
            at += value
        elif tag == 0x10:
            if value >= 1 << 31:
                raise _UnusualError
            partition = value
        elif tag == 0x1A:
            record_batch = _field(view, at, value)
            at += value
        elif tag == 0x28:
            if value >= 1 << 63:
                raise _UnusualError
            expected_offset = value
        else:
            raise _UnusualError
    return AppendRequest(topic, partition, record_batch, None, expected_offset)


def _field(view: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(view):
        raise _UnusualError
    return view[at : at + size]


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """(value, where the next field begins). Up to nine bytes: a tenth is a negative number, or wrong."""
    byte = view[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 63:
        at += 1
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise _UnusualError


def _parse_with_protobuf(message: bytes) -> ProduceCall:
    try:
        request = log_pb2.ProduceRequest.FromString(message)
    except DecodeError as error:
        raise InvalidArgument(f"the message is not a ProduceRequest: {error}") from None
    if request.acks not in _ACKS:
        raise InvalidArgument(f"acks {request.acks} is not one of ACKS_ALL (1), ACKS_LEADER (2), ACKS_NONE (3)")
    appends = [
        AppendRequest(
            append.topic,
            append.partition if append.HasField("partition") else None,
            memoryview(append.record_batch) if append.HasField("record_batch") else None,
            append.records if append.HasField("records") else None,
            append.expected_offset if append.HasField("expected_offset") else None,
        )
        for append in request.appends
    ]
    return ProduceCall(request.correlation_id, _ACKS[request.acks], request.timeout_ms, appends)
