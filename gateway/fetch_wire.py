"""FetchResponse with one copy: the batches of a partition go into the message as they lie in memory. Pure.

protobuf would copy each partition's batches three times. The fields are written by hand in the order of their numbers, as
protobuf does; only `record_batches` (field 7) is special, the rest is protobuf's own bytes:

    FetchResponse      1 partition, length-delimited, repeated
    FetchedPartition   1 … 6 as protobuf writes them · 7 record_batches, length-delimited · 8 records, where there are no batches

Invariant: protobuf reads from it what it would have written itself (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.proto import log_pb2
from segments.object_store import Buffer

PartitionAnswer = tuple[log_pb2.FetchedPartition, Sequence[Buffer], int]
"""(everything but the batches, the batches, their bytes in all)."""


def encode_fetch_response(partitions: Iterable[PartitionAnswer]) -> bytes:
    pieces: list[Buffer] = []
    for partition, batches, size_bytes in partitions:
        assert not (size_bytes and partition.records), "records come in one form"
        rest = partition.SerializeToString()
        head = b"\x3a" + _varint(size_bytes) if size_bytes else b""
        pieces.append(b"\x0a" + _varint(len(rest) + len(head) + size_bytes) + rest + head)
        pieces.extend(batches)
    return b"".join(pieces)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
