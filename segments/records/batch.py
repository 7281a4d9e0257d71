"""Parses one Kafka record batch (v2, magic 2): its header, a broker's checks of it, and the stamp that it adds. Pure.

Source: https://kafka.apache.org/documentation/#recordbatch and KIP-98. All numbers are big-endian.

     0  base_offset        int64    ┐
     8  batch_length       int32    │ the stamp: the broker's, outside of the CRC
    12  leader_epoch       int32    ┘
    16  magic              int8     2
    17  crc                uint32   CRC-32C of everything from byte 21 on
    21  attributes         int16    bits 0-2 codec · 3 log append time · 4 transactional · 5 control · 6 delete horizon
    23  last_offset_delta  int32
    27  base_timestamp     int64    ms; of the first record
    35  max_timestamp      int64    ms; of all records, or the append time where bit 3 is set
    43  producer_id        int64    ┐
    51  producer_epoch     int16    │ -1 without idempotence
    53  base_sequence      int32    ┘
    57  record_count       int32
    61  the record section, compressed as a whole where a codec is set (its format: batch_kernel.py)

Invariant: a batch that passed `check_produced` is well-formed to its last byte, so that later readers, compiled or
not, may trust its lengths; and it is stored with no byte changed but the stamp.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from awscrt.checksums import crc32c

from metadata.errors import Corrupt, InvalidRecord, TooLarge
from metadata.model import Offset
from segments.object_store.interface import Buffer
from segments.records.batch_kernel import RecordSection
from segments.records.compression import decompress
from segments.records.header import CODEC_BITS, CODECS, CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, BatchHeader

MAGIC = 2
BATCH_OVERHEAD_BYTES = 61
# `batch_length` counts what follows it: 12 bytes less than the batch.
LENGTH_BYTES_MIN = BATCH_OVERHEAD_BYTES - 12

# Bound on a produced batch. 64 MiB decompressed would hold nine million records of 7 bytes; opening each takes 40 bytes.
RECORDS_PER_BATCH_MAX = 1_000_000

# That one batch covers: its last offset delta has 31 bits.
OFFSETS_PER_BATCH_MAX = 2**31

NO_PRODUCER_ID = -1
NO_LEADER_EPOCH = -1

_HEADER = struct.Struct(">qiiBIhiqqqhii")
_LENGTH = struct.Struct(">i")
_STAMP = struct.Struct(">qii")
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_CODEC_AT = 22
_MAX_TIMESTAMP_AT = 35

_PRODUCED_BITS = CODEC_BITS | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class ChecksumMismatch(InvalidRecord):
    """Refuses a batch whose bytes do not have its CRC-32C: they changed on the way, and the same batch may arrive whole later."""

    default_hint = "Send the batch again. If it is refused again, look at the producer and the network."


class KeylessRecords(InvalidRecord):
    """Refuses a batch to a compacted topic, of which records have no key."""

    def __init__(self, rows: Sequence[int]) -> None:
        """`rows` are the indexes of these records in the batch."""
        super().__init__(f"the topic is compacted, and record {rows[0]} of the batch has no key")
        self.rows = rows


def check_produced(batch: Buffer, *, message_bytes_max: int, decompressed_bytes_max: int, keyed: bool = False) -> BatchHeader:
    """Checks all that a broker checks of one batch from a client, before it takes it.

    TooLarge beyond either bound (`message_bytes_max` is of the whole batch as sent, like Kafka's max.message.bytes);
    InvalidRecord for anything else: more or less than one batch, a wrong CRC-32C, unknown attributes, more than
    RECORDS_PER_BATCH_MAX records, records that are not exactly those that the header announces. KeylessRecords where `keyed` is
    set and a record has no key.
    """
    opened = open_produced(batch, message_bytes_max=message_bytes_max, decompressed_bytes_max=decompressed_bytes_max)
    check_records(opened, keyed=keyed)
    return opened.header


class OpenedBatch(NamedTuple):
    """Holds a batch whose header and CRC-32C were checked, with its record section as it is without compression."""

    header: BatchHeader
    section: Buffer


def codec_bits(batch: Buffer) -> int:
    """Returns the codec that a batch says it has; 0, for none, where its header is cut off. Nothing is checked."""
    return batch[_CODEC_AT] & CODEC_BITS if len(batch) > _CODEC_AT else 0


def open_produced(batch: Buffer, *, message_bytes_max: int, decompressed_bytes_max: int) -> OpenedBatch:
    """Checks all of a batch but its records, as `check_produced`, and opens these."""
    if len(batch) > message_bytes_max:
        raise TooLarge(
            f"the record batch has {len(batch)} bytes; message_bytes_max is {message_bytes_max}",
            hint="Send smaller batches, or raise message_bytes_max.",
            size=len(batch),
            bytes_max=message_bytes_max,
        )
    header = parse_whole(batch)
    _check_produced_header(header)
    section = memoryview(batch)[BATCH_OVERHEAD_BYTES:]
    return OpenedBatch(header, decompress(header.codec, section, bytes_max=decompressed_bytes_max))


def check_records(opened: OpenedBatch, *, keyed: bool) -> None:
    """Checks the records of a batch, as `check_produced`."""
    records = RecordSection(opened.section, opened.header)
    if records.check(dense=True) >= 0 and keyed:
        raise KeylessRecords([row for row, record in enumerate(records.tuples()) if record[2] is None])


def _check_produced_header(header: BatchHeader) -> None:
    if header.attributes & ~_PRODUCED_BITS:
        raise InvalidRecord(f"the batch has attributes {header.attributes & 0xFFFF:#06x}, of which some bits are not known")
    if header.is_control:
        raise InvalidRecord("the batch is a control batch: only brokers write them")
    if header.is_transactional:
        raise InvalidRecord(
            "the batch is transactional: transactions are not supported yet", hint="Produce without transactional.id."
        )
    if header.log_append_time:
        raise InvalidRecord("the batch claims log append time: only brokers set it")
    if header.record_count < 1:
        raise InvalidRecord(f"the batch has {header.record_count} records; at least one is needed")
    if header.record_count > RECORDS_PER_BATCH_MAX:
        raise InvalidRecord(
            f"the batch has {header.record_count} records; at most {RECORDS_PER_BATCH_MAX} are taken",
            hint="Send them in several batches.",
        )
    if header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"the batch has {header.record_count} records, but its last offset delta is {header.last_offset_delta}, "
            f"not {header.record_count - 1}"
        )
    _check_producer(header)


def _check_producer(header: BatchHeader) -> None:
    """Checks the fields of the producer. Without a producer id the other fields mean nothing, and aiokafka sends a base sequence of
    0: let it be, as Kafka does."""
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidRecord(f"the batch has producer id {header.producer_id}")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecord(
            f"the batch of producer {header.producer_id} has epoch {header.producer_epoch} and base sequence "
            f"{header.base_sequence}; both begin at 0"
        )


def check_stored(batch: Buffer, *, key: str, start: int) -> BatchHeader:
    """Returns the header of one whole batch that was read from byte `start` of object `key`; Corrupt if it is not as it was
    written."""
    try:
        return parse_whole(batch)
    except InvalidRecord as error:
        raise Corrupt(
            f"{key} holds no sound record batch at [{start}, {start + len(batch)}): {error.message}",
            key=key,
            start=start,
            end=start + len(batch),
        ) from error


def parse_whole(batch: Buffer) -> BatchHeader:
    """Returns the header of a buffer that holds exactly one batch, with its CRC-32C checked. InvalidRecord, ChecksumMismatch."""
    header = parse_header(batch)
    if header.size != len(batch):
        raise InvalidRecord(f"{len(batch) - header.size} bytes follow the record batch; exactly one batch is expected")
    crc = crc32c(memoryview(batch)[_ATTRIBUTES_AT:])
    if crc != header.crc:
        raise ChecksumMismatch(f"the record batch says CRC-32C {header.crc:08x}, its bytes have {crc:08x}")
    return header


def parse_header(buffer: Buffer, start: int = 0) -> BatchHeader:
    """Returns the header of the batch that begins at `start`. InvalidRecord if the batch is not there as a whole, or is of another
    magic.

    Only the header is looked at: see `parse_whole` for the CRC.
    """
    there = len(buffer) - start
    if there < BATCH_OVERHEAD_BYTES:
        raise InvalidRecord(f"a record batch has at least {BATCH_OVERHEAD_BYTES} bytes; {there} are there")
    header = BatchHeader(*_HEADER.unpack_from(buffer, start))
    if header.magic != MAGIC:
        raise InvalidRecord(f"the record batch has magic {header.magic}; only {MAGIC} is taken")
    if header.batch_length < LENGTH_BYTES_MIN:
        raise InvalidRecord(f"the record batch says length {header.batch_length}; the least is {LENGTH_BYTES_MIN}")
    if header.batch_length > there - 12:
        raise InvalidRecord(f"the record batch says length {header.batch_length}; {there - 12} bytes are there")
    if header.attributes & CODEC_BITS >= len(CODECS):
        raise InvalidRecord(f"the record batch says codec {header.attributes & CODEC_BITS}; 0 to {len(CODECS) - 1} are known")
    return header


def base_offset_of(batch: Buffer) -> Offset:
    """Returns the base offset of a batch whose header was checked before."""
    return Offset(int.from_bytes(batch[:8], "big"))


def empty_batch(base_offset: int, end_offset: int) -> bytes:
    """Encodes a batch without records, which says that [base_offset, end_offset) holds none. It covers at most 2^31 offsets.

    Kafka clients read on at the last offset of a batch + 1, also where it has no records: Kafka's log cleaner leaves such batches.
    The leader epoch is -1: the offsets may be of several epochs, and a client compares no epoch that it does not know (KIP-320).
    """
    last_offset_delta = min(end_offset - base_offset, OFFSETS_PER_BATCH_MAX) - 1
    header = BatchHeader(base_offset, 0, NO_LEADER_EPOCH, MAGIC, 0, 0, last_offset_delta, -1, -1, NO_PRODUCER_ID, -1, -1, 0)
    return assemble(header, b"")


def split_batches(buffer: Buffer) -> list[memoryview]:
    """Returns the batches that fill the buffer, each as a view of it. InvalidRecord if the last one is torn."""
    view = memoryview(buffer)
    batches = []
    start = 0
    while start < len(view):
        size = parse_header(view, start).size
        batches.append(view[start : start + size])
        start += size
    return batches


def batches_counted(buffer: Buffer, count_max: int) -> int:
    """Returns how many batches follow each other in the buffer by their lengths, and `count_max` at most. Nothing is checked."""
    count = start = 0
    while count < count_max and start + BATCH_OVERHEAD_BYTES <= len(buffer):
        (length,) = _LENGTH.unpack_from(buffer, start + 8)
        start += 12 + max(length, LENGTH_BYTES_MIN)
        count += 1
    return count


def stamp(batch: Buffer, *, base_offset: int, leader_epoch: int) -> bytes:
    """Returns the first 16 bytes that the broker stores in place of the batch's own: the CRC does not cover them.

    What follows, `memoryview(batch)[16:]`, is stored as it came.
    """
    return _STAMP.pack(base_offset, len(batch) - 12, leader_epoch)


def with_log_append_time(batch: Buffer, timestamp_ms: int) -> bytes:
    """Returns a copy of the batch in which every record has the time of its append; the records' own times stay in it, unread."""
    copy = bytearray(batch)
    (attributes,) = struct.unpack_from(">h", copy, _ATTRIBUTES_AT)
    struct.pack_into(">h", copy, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", copy, _MAX_TIMESTAMP_AT, timestamp_ms)
    struct.pack_into(">I", copy, _CRC_AT, crc32c(memoryview(copy)[_ATTRIBUTES_AT:]))
    return bytes(copy)


def assemble(header: BatchHeader, section: Buffer) -> bytes:
    """Returns the batch of a header and its (compressed) record section; `batch_length` and `crc` are set to what they must be."""
    sized = msgspec.structs.replace(header, batch_length=LENGTH_BYTES_MIN + len(section))
    head = bytearray(_HEADER.pack(*msgspec.structs.astuple(sized)))
    struct.pack_into(">I", head, _CRC_AT, crc32c(section, crc32c(memoryview(head)[_ATTRIBUTES_AT:])))
    return b"".join((head, section))


def corrupt_range(key: str, offsets: range, bytes_at: range, why: str) -> Corrupt:
    """`details`: key, start and end of the bytes, next_offset: where a reader goes on who steps over the damage."""
    what = f"offset {offsets.start}" if len(offsets) == 1 else f"offsets {offsets.start} to {offsets.stop - 1}"
    return Corrupt(
        f"{what} can't be read: {key} is damaged at [{bytes_at.start}, {bytes_at.stop}): {why}",
        hint=f"Read on from offset {offsets.stop}, or restore the object from a version or a backup of the bucket.",
        key=key,
        start=bytes_at.start,
        end=bytes_at.stop,
        next_offset=offsets.stop,
    )
