"""FetchResponse with one copy: the batches of a partition go into the message as they lie in memory. Pure.

protobuf would copy each partition's batches three times, and make an object of every record before it writes the first. The fields
are written by hand in the order of their numbers, as protobuf does; what is special are the last two, the rest is protobuf's own:

    FetchResponse      1 partition, length-delimited, repeated
    FetchedPartition   1 … 6 as protobuf writes them · 7 record_batches, length-delimited, or 8 records, slice by slice
                       · 9 leader_epoch, a varint
    ConsumedData       1 partitions, as in FetchResponse · 2 delivery_id, a varint; it is field 1 of its ConsumeResponse

Invariant: protobuf reads from it what it would have written itself (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.proto import log_pb2
from segments.object_store.interface import Buffer
from segments.records.batch_kernel import RecordTuple


class PartitionResponse(NamedTuple):
    """Holds what one partition contributes to a FetchResponse."""

    # All fields but the batches or records, and the leader epoch.
    partition: log_pb2.FetchedPartition
    # Stored batches, or the result of `encode_records`.
    pieces: Sequence[Buffer] = ()
    # Size of all pieces.
    size_bytes: int = 0
    structured: bool = False
    leader_epoch: int = 0


def encode_fetch_response(partitions: Iterable[PartitionResponse]) -> bytes:
    return b"".join(_encoded(partitions))


def encode_consumed_data(partitions: Iterable[PartitionResponse], delivery_id: int) -> bytes:
    """Encodes a ConsumeResponse that carries the data."""
    message = _encoded(partitions)
    message.append(b"\x10" + _varint(delivery_id))
    return b"".join([b"\x0a" + _varint(sum(map(len, message))), *message])


def _encoded(partitions: Iterable[PartitionResponse]) -> list[Buffer]:
    message: list[Buffer] = []
    for partition, pieces, size_bytes, structured, leader_epoch in partitions:
        rest = partition.SerializeToString()
        head = b"\x3a" + _varint(size_bytes) if size_bytes and not structured else b""
        tail = b"\x48" + _varint(leader_epoch) if leader_epoch else b""
        message.append(b"\x0a" + _varint(len(rest) + len(head) + size_bytes + len(tail)) + rest + head)
        message.extend(pieces)
        message.append(tail)
    return message


def encode_records(records: Iterable[RecordTuple], partition: int) -> bytes:
    """Encodes records as the field `records` of a FetchedPartition, with tags; such slices may be concatenated."""
    fetched = log_pb2.FetchedPartition()
    for offset, timestamp_ms, key, value, headers in records:
        fetched.records.add(
            key=key,
            value=value,
            headers=[log_pb2.Header(key=name, value=content) for name, content in headers],
            timestamp_ms=timestamp_ms,
            partition=partition,
            offset=offset,
        )
    return fetched.SerializeToString()


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
