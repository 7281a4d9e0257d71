"""Holds the header of a record batch, as its first 61 bytes stand (drawn in batch.py). Pure."""

from __future__ import annotations

import msgspec

from segments.records.compression import Codec

SEQUENCE_MAX = 2**31 - 1
CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
CODECS = tuple(Codec)


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 61 bytes of a batch, as they stand there. From `parse_header`, its magic, length and codec are right."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Returns the size of the whole batch in bytes."""
        return 12 + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Returns the sequence of the last record; -1 without a producer. After 2^31 - 1 comes 0
        (DefaultRecordBatch.incrementSequence)."""
        if self.base_sequence < 0:
            return self.base_sequence
        last = self.base_sequence + self.last_offset_delta
        return last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1

    @property
    def codec(self) -> Codec:
        return CODECS[self.attributes & CODEC_BITS]

    @property
    def log_append_time(self) -> bool:
        """Returns whether `max_timestamp` stands for the timestamps of all records."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)
