"""The bytes of a segment and of a seal. Pure.

    segment                                           seal (72 bytes: shorter than any segment, so a listing tells them apart)
    ┌────────────────────────────────────────────┐    ┌────────────────────────────────────────────┐
    │ header   40 B                              │    │ header   40 B                              │
    │   magic    8s  "TIDESEG1"                  │    │   magic    8s  "TIDESEAL"                  │
    │   session  u64   seq  u64                  │    │   session  u64   seq  u64                  │
    │   writer   16s  nonce of the claim         │    │   writer   16s  nonce of who sealed        │
    ├────────────────────────────────────────────┤    ├────────────────────────────────────────────┤
    │ record batches, grouped by partition, in   │    │ sealed_at_ms i64   sealed_by u64 (session, │
    │ offset order: one run for each partition   │    │   0: a tool)       committed_to u64        │
    ├────────────────────────────────────────────┤    │ crc32c u32         zero u32                │
    │ footer                                     │    └────────────────────────────────────────────┘
    │   run_count u32  batch_count u32           │
    │   written_at_ms i64  session u64  seq u64  │
    │   committed_to u64                         │
    │   run_count × run entry, 96 B              │  topic id, partition, epoch, offsets, records, byte range, timestamps
    │   batch_count × batch entry, 64 B          │  offsets, byte range, CRC, timestamps, producer id, epoch, sequences
    ├────────────────────────────────────────────┤
    │ trailer  16 B                              │
    │   footer_bytes u32  footer_crc32c u32      │
    │   magic 8s "TIDEEND1"                      │
    └────────────────────────────────────────────┘

All integers are little-endian. One suffix GET of FOOTER_READ_BYTES reads most footers whole. Batch bytes are covered by the
batch's own CRC-32C; the footer by the trailer's. `committed_to` is the place up to which its writer knew the session to be
committed: a gap below it is a lost object, never the session's end. Invariant: what parses has been checked against its CRC
and its bounds.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from awscrt.checksums import combine_crc32c, crc32c

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, Partition, ProducerId, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.object_store.interface import Buffer
from segments.records.header import BatchHeader

SEGMENT_MAGIC: Final = b"TIDESEG1"
SEAL_MAGIC: Final = b"TIDESEAL"
END_MAGIC: Final = b"TIDEEND1"
FOOTER_READ_BYTES: Final = 64 << 10

_HEADER = struct.Struct("<8sQQ16s")
_SEAL_BODY = struct.Struct("<qQQI4x")
_FOOTER_HEAD = struct.Struct("<IIqQQQ")
_RUN = struct.Struct("<16sIiqqqQQqqII8x")
_BATCH = struct.Struct("<qqQIIqqiihHI")
_TRAILER = struct.Struct("<II8s")

HEADER_BYTES: Final = _HEADER.size
TRAILER_BYTES: Final = _TRAILER.size
SEAL_BYTES: Final = _HEADER.size + _SEAL_BODY.size
BATCH_ENTRY_BYTES: Final = _BATCH.size
# Bytes of a batch between its stamp and the bytes that its own CRC covers.
_MAGIC_AND_CRC_BYTES: Final = 5
SEGMENT_BYTES_MIN: Final = HEADER_BYTES + _FOOTER_HEAD.size + _RUN.size + _BATCH.size + TRAILER_BYTES

BATCH_DTYPE: Final = np.dtype(
    [
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("start", "<u8"),
        ("size_bytes", "<u4"),
        ("record_count", "<u4"),
        ("max_timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("base_sequence", "<i4"),
        ("last_sequence", "<i4"),
        ("producer_epoch", "<i2"),
        ("reserved", "<u2"),
        ("crc", "<u4"),
    ]
)


class Run(msgspec.Struct, frozen=True, gc=False):
    """Describes all batches of one partition in one segment: offsets base_offset … last_offset, bytes [start, end)."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    base_offset: Offset
    last_offset: Offset
    record_count: int
    start: int
    end: int
    # Lowest base timestamp of its batches, in ms since 1970.
    min_timestamp: int
    max_timestamp: int
    # Index of its first batch in the footer's batches.
    first_batch: int
    batch_count: int


class BatchEntry(NamedTuple):
    """Describes one batch in the footer: enough to find it, and to rebuild the state of its producer."""

    base_offset: Offset
    last_offset: Offset
    start: int
    size_bytes: int
    record_count: int
    max_timestamp: int
    producer_id: ProducerId
    base_sequence: int
    last_sequence: int
    producer_epoch: int
    crc: int


class SegmentFooter(msgspec.Struct, frozen=True):
    """Describes a segment: its runs, and each of their batches."""

    session: SessionId
    seq: SegmentSeq
    # Every place of the session below this one was committed when the segment was written.
    committed_to: SegmentSeq
    written_at_ms: int
    runs: tuple[Run, ...]
    # One row of BATCH_DTYPE for each batch, run by run.
    batch_table: npt.NDArray[Any]

    def batches(self, run: Run) -> list[BatchEntry]:
        rows = self.batch_table[run.first_batch : run.first_batch + run.batch_count]
        return [BatchEntry._make([*row[:10], row[11]]) for row in rows.tolist()]


class Seal(NamedTuple):
    """Ends a session at the place `seq`."""

    session: SessionId
    seq: SegmentSeq
    writer: bytes
    # Its own place, when a successor wrote it or the session ended cleanly; less, when a PUT missed its deadline.
    committed_to: SegmentSeq
    sealed_at_ms: int
    sealed_by: SessionId


class ObjectHead(NamedTuple):
    """Holds the parsed first 40 bytes of an object in a session."""

    is_seal: bool
    session: SessionId
    seq: SegmentSeq
    writer: bytes


class StampedBatch(msgspec.Struct, gc=False):
    """Holds a batch with its place in the log: the leader replaced the first 16 bytes, the rest is the producer's."""

    header: BatchHeader
    base_offset: Offset
    stamp: bytes
    rest: memoryview

    @property
    def size_bytes(self) -> int:
        return self.header.size

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.header.last_offset_delta)


class FooterBytes(NamedTuple):
    """Holds the end of a segment, footer and trailer, and the size of the whole."""

    body: bytes
    object_size: int


class EncodedSegment(NamedTuple):
    """Holds an encoded segment, ready for its PUT."""

    body: list[Buffer]
    size_bytes: int
    crc32c: int
    footer: SegmentFooter

    @property
    def footer_bytes(self) -> FooterBytes:
        """Returns the footer and the trailer."""
        return FooterBytes(b"".join(self.body[-2:]), self.size_bytes)


def encode_segment(
    *,
    session: SessionId,
    seq: SegmentSeq,
    writer: bytes,
    committed_to: SegmentSeq,
    written_at_ms: int,
    partitions: Sequence[tuple[TopicPartition, LeaderEpoch, Sequence[StampedBatch]]],
) -> EncodedSegment:
    """Returns the segment's bytes, as buffers in order. Batches of one partition must be in offset order without a gap.

    Its CRC-32C is put together from those of the batches, which were checked when they came: bytes that changed in memory since
    then make it wrong, and the store refuses them.
    """
    head = _HEADER.pack(SEGMENT_MAGIC, session, seq, writer)
    body: list[Buffer] = [head]
    checksum = crc32c(head)
    runs: list[Run] = []
    run_entries, batch_entries = bytearray(), bytearray()
    at, batch_count = HEADER_BYTES, 0
    for partition, leader_epoch, batches in partitions:
        start, first_batch, records = at, batch_count, 0
        min_timestamp, max_timestamp = batches[0].header.base_timestamp, batches[0].header.max_timestamp
        for batch in batches:
            h = batch.header
            size = h.size
            base_offset = batch.base_offset
            batch_entries += _BATCH.pack(
                base_offset,
                base_offset + h.last_offset_delta,
                at,
                size,
                h.record_count,
                h.max_timestamp,
                h.producer_id,
                h.base_sequence,
                h.last_sequence,
                h.producer_epoch,
                0,
                h.crc,
            )
            body += (batch.stamp, batch.rest)
            uncovered = batch.stamp + bytes(batch.rest[:_MAGIC_AND_CRC_BYTES])
            checksum = combine_crc32c(crc32c(uncovered, checksum), h.crc, size - len(uncovered))
            at += size
            records += h.record_count
            min_timestamp, max_timestamp = min(min_timestamp, h.base_timestamp), max(max_timestamp, h.max_timestamp)
        batch_count += len(batches)
        first, last = batches[0].base_offset, batches[-1].last_offset
        run = Run(partition, leader_epoch, first, last, records, start, at, min_timestamp, max_timestamp, first_batch, len(batches))
        run_entries += _RUN.pack(
            bytes.fromhex(partition.topic_id),
            partition.partition,
            leader_epoch,
            first,
            last,
            records,
            start,
            at,
            min_timestamp,
            max_timestamp,
            first_batch,
            len(batches),
        )
        runs.append(run)
    footer = _FOOTER_HEAD.pack(len(partitions), batch_count, written_at_ms, session, seq, committed_to)
    footer += run_entries + batch_entries
    trailer = _TRAILER.pack(len(footer), crc32c(footer), END_MAGIC)
    body += (footer, trailer)
    checksum = crc32c(trailer, crc32c(footer, checksum))
    table = np.frombuffer(batch_entries, dtype=BATCH_DTYPE)
    parsed = SegmentFooter(session, seq, committed_to, written_at_ms, tuple(runs), table)
    return EncodedSegment(body, at + len(footer) + TRAILER_BYTES, checksum, parsed)


def encode_seal(
    *,
    session: SessionId,
    seq: SegmentSeq,
    writer: bytes,
    committed_to: SegmentSeq,
    sealed_at_ms: int,
    sealed_by: SessionId,
) -> bytes:
    head = _HEADER.pack(SEAL_MAGIC, session, seq, writer)
    unsummed = head + _SEAL_BODY.pack(sealed_at_ms, sealed_by, committed_to, 0)
    return head + _SEAL_BODY.pack(sealed_at_ms, sealed_by, committed_to, crc32c(unsummed))


def parse_head(body: Buffer, *, key: str) -> ObjectHead:
    """Reads the first 40 bytes of an object in a session. Corrupt when they are neither a segment's nor a seal's."""
    if len(body) < HEADER_BYTES:
        raise Corrupt(f"{key} has {len(body)} bytes, too few for the header of a segment or a seal", key=key)
    magic, session, seq, writer = _HEADER.unpack_from(body)
    if magic not in (SEGMENT_MAGIC, SEAL_MAGIC):
        raise Corrupt(f"{key} is neither a segment nor a seal: it begins with {magic!r}", key=key)
    return ObjectHead(magic == SEAL_MAGIC, session, seq, writer)


def parse_seal(body: Buffer, *, key: str) -> Seal:
    head = parse_head(body, key=key)
    if not head.is_seal or len(body) != SEAL_BYTES:
        raise Corrupt(f"{key} is not a whole seal ({len(body)} bytes)", key=key)
    sealed_at_ms, sealed_by, committed_to, _ = _SEAL_BODY.unpack_from(body, HEADER_BYTES)
    seal = Seal(head.session, head.seq, head.writer, committed_to, sealed_at_ms, sealed_by)
    if encode_seal(**seal._asdict()) != body:
        raise Corrupt(f"{key}: the seal does not match its CRC-32C", key=key)
    if committed_to > head.seq:
        raise Corrupt(f"{key}: the seal at {head.seq} tells of a commit up to {committed_to}", key=key)
    return seal


def footer_bytes_needed(tail: Buffer, *, object_size: int, key: str) -> int:
    """Returns how many bytes from the object's end hold footer and trailer; read again when the tail at hand is shorter."""
    if len(tail) < TRAILER_BYTES:
        raise Corrupt(f"{key} ends after {object_size} bytes, before its trailer", key=key)
    footer_bytes, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    needed: int = footer_bytes + TRAILER_BYTES
    if magic != END_MAGIC or needed + HEADER_BYTES > object_size:
        raise Corrupt(f"{key} does not end with the trailer of a segment", key=key, end=object_size)
    return needed


def parse_footer(tail: Buffer, *, object_size: int, session: SessionId, seq: SegmentSeq, key: str) -> SegmentFooter:
    """Parses the footer from a tail of at least `footer_bytes_needed` bytes. Raises Corrupt if CRC, counts or ranges do not fit."""
    needed = footer_bytes_needed(tail, object_size=object_size, key=key)
    footer = bytes(memoryview(tail)[len(tail) - needed : len(tail) - TRAILER_BYTES])
    _, checksum, _ = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if crc32c(footer) != checksum:
        raise Corrupt(f"{key}: the footer does not match its CRC-32C", key=key, start=object_size - needed, end=object_size)
    return _parse_footer(footer, session=session, seq=seq, batches_end=object_size - needed, key=key)


def _parse_footer(footer: bytes, *, session: SessionId, seq: SegmentSeq, batches_end: int, key: str) -> SegmentFooter:
    if len(footer) < _FOOTER_HEAD.size:
        raise Corrupt(f"{key}: the footer has {len(footer)} bytes, too few for its counts", key=key)
    run_count, batch_count, written_at_ms, written_session, written_seq, committed_to = _FOOTER_HEAD.unpack_from(footer)
    if (written_session, written_seq) != (session, seq):
        raise Corrupt(f"{key} holds segment {written_seq} of session {written_session}", key=key)
    if committed_to > seq:
        raise Corrupt(f"{key}: the footer of segment {seq} tells of a commit up to {committed_to}", key=key)
    runs_end = _FOOTER_HEAD.size + run_count * _RUN.size
    if runs_end + batch_count * _BATCH.size != len(footer):
        raise Corrupt(f"{key}: the footer's counts ({run_count} runs, {batch_count} batches) don't fit its length", key=key)
    runs = []
    for row in _RUN.iter_unpack(footer[_FOOTER_HEAD.size : runs_end]):
        topic_id, partition, epoch, base, last, records, start, end, min_ts, max_ts, first_batch, batches = row
        if not HEADER_BYTES <= start < end <= batches_end or base > last or first_batch + batches > batch_count:
            raise Corrupt(f"{key}: the footer names bytes [{start}, {end}) of {batches_end}, offsets {base} to {last}", key=key)
        # interned: recovery keeps the runs of thousands of segments, and looks each up by its partition
        where = TopicPartition(TopicId(sys.intern(topic_id.hex())), Partition(partition))
        runs.append(Run(where, epoch, base, last, records, start, end, min_ts, max_ts, first_batch, batches))
    table = np.frombuffer(footer, dtype=BATCH_DTYPE, offset=runs_end, count=batch_count)
    return SegmentFooter(session, seq, committed_to, written_at_ms, tuple(runs), table)
