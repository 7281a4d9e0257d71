"""Converts runs of one partition into one Parquet file of history, checked against its batches. Pure: the caller opens the scratch
file. CPU work, for a thread.

    run ─▶ batches: CRC-32C, offsets, epoch ─▶ columns ─▶ row groups ─▶ file ─▶ read back: the same records, by count and checksum
                └─ checksum of their records ───────────────────────────────────────────────▲

A file ends where it has `file_bytes_max`, behind a whole run; the next file continues. Records below the log start are
left out, though their batches still count for the states of producers.

Invariant: a returned file was read back, and has exactly the records of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from compaction.conversion.scratch import StoredRun
from metadata.errors import Corrupt, InvalidRecord, TooLarge
from metadata.model import Offset, ProducerId, TopicPartition
from segments.history.manifest import EpochStart, Manifest, RememberedProducer, may_follow
from segments.history.parquet_file import HistoryWriter, ParquetSettings, WrittenFile, verify_history
from segments.object_store.interface import Buffer
from segments.partition.producer_state import ProducerStates, SequencedBatch
from segments.records.batch import check_stored, split_batches
from segments.records.checksum import checksum_of_columns, checksum_of_opened
from segments.records.columns import OpenBatch, decode_opened, open_in_parts
from segments.records.compression import Codec
from segments.records.header import BatchHeader

# Bytes of batches decoded together; compressed ones count LIKELY_RATIO times. Bounds how long other threads wait for the
# interpreter, some milliseconds, and the memory for decompression.
DECODED_AT_ONCE: Final = 2 << 20
LIKELY_RATIO: Final = 4
# As an expiry time it forgets no producer.
NEVER_MS: Final = 0
# Bound on decompressed bytes: batches that shrank a thousandfold, and would take GiB, are decoded a few at a time.
OPENED_AT_ONCE: Final = 4 * DECODED_AT_ONCE


class EncodingSettings(NamedTuple):
    """Bounds the conversion to Parquet."""

    parquet: ParquetSettings
    file_bytes_max: int
    decompressed_bytes_max: int
    producers_max: int
    producer_expiry_ms: int


class CompactedRuns(NamedTuple):
    """Holds what the first runs of a partition became."""

    # None where all their records lie below the log start.
    written: WrittenFile | None
    compacted_to: Offset
    epochs: tuple[EpochStart, ...]
    producers: tuple[RememberedProducer, ...]
    record_count: int
    # Bytes of the runs in their segments.
    bytes_in: int
    run_count: int


class DamagedRun(Exception):
    """Reports a run that can't be compacted. `before`: the number of runs before it."""

    def __init__(self, error: Corrupt, before: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.before = before


def compact_runs(
    manifest: Manifest,
    runs: Sequence[StoredRun],
    read: Callable[[StoredRun], bytes],
    *,
    topic: str,
    name: Callable[[Offset, Offset], str],
    settings: EncodingSettings,
    now_ms: int,
    expiry_ms: int | None = None,
) -> CompactedRuns:
    """Converts runs that continue at `manifest.compacted_to`, or behind deleted records, up to one file.

    `name` returns the name of the file with these offsets. `now_ms`: a time after the runs were read, so all their records had been
    appended. `expiry_ms`: the time by which producers expire; `now_ms` by default. Raises DamagedRun, and Corrupt where the file
    differs from its batches.
    """
    encoder = _Encoder(manifest, topic, settings)
    for at, run in enumerate(runs):
        try:
            encoder.take_in(at, run, read(run))
        except Corrupt as error:
            raise DamagedRun(error, at) from error
        if encoder.size_bytes >= settings.file_bytes_max:
            break
    return encoder.finish(name, now_ms, now_ms if expiry_ms is None else expiry_ms)


class _Waiting(NamedTuple):
    """Holds a checked batch that is not decoded yet."""

    at: int
    run: StoredRun
    batch: memoryview


class _Encoder:
    """Encodes runs into one file. Unusable after an error."""

    def __init__(self, manifest: Manifest, topic: str, settings: EncodingSettings) -> None:
        self._partition = manifest.topic_partition
        self._settings = settings
        self._log_start_offset = manifest.log_start_offset
        self._next_offset = manifest.compacted_to
        self._epoch = manifest.epochs[-1].leader_epoch if manifest.epochs else -1
        self._epochs: list[EpochStart] = []
        self._producers = ProducerStates(producers_max=settings.producers_max, expiry_ms=settings.producer_expiry_ms)
        self._producers.recall(manifest.producers)
        self._writer = HistoryWriter(topic, manifest.partition, settings.parquet)
        self._base_offset = max(manifest.compacted_to, manifest.log_start_offset)
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._records = self._bytes_in = self._runs = 0

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes

    def take_in(self, at: int, run: StoredRun, body: bytes) -> None:
        if may_follow(run.base_offset, compacted_to=self._next_offset, log_start_offset=self._log_start_offset):
            self._next_offset = run.base_offset
        batches = _checked_batches(run, body, self._next_offset, self._partition)
        if run.leader_epoch < self._epoch:
            raise _corrupt(run, f"{self._partition} goes on in leader epoch {run.leader_epoch}, behind records of {self._epoch}")
        for header, batch in batches:
            self._producers.remember(_sequenced(header), now_ms=run.written_at_ms)
            if header.last_offset >= self._log_start_offset:
                self._waiting.append(_Waiting(at, run, batch))
                self._waiting_bytes += len(batch) * (1 if header.codec is Codec.NONE else LIKELY_RATIO)
            if self._waiting_bytes >= DECODED_AT_ONCE:
                self._decode()
        if run.leader_epoch > self._epoch:
            self._epochs.append(EpochStart(run.leader_epoch, run.base_offset))
            self._epoch = run.leader_epoch
        self._next_offset = Offset(run.last_offset + 1)
        self._bytes_in += run.size_bytes
        self._runs += 1

    def _decode(self) -> None:
        """Decodes the waiting batches together, as columns of many records are worth their overhead."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        try:
            for opened in self._opened([one.batch for one in waiting]):
                columns, records, checksum = self._decoded(opened)
                self._writer.append(columns, checksum=checksum)
                self._records += records
        except (InvalidRecord, TooLarge):
            for one in waiting:
                try:
                    for opened in self._opened([one.batch]):
                        self._decoded(opened)
                except (InvalidRecord, TooLarge) as error:
                    damage = _corrupt(one.run, f"a batch matches its CRC-32C and can't be read: {error.message}")
                    raise DamagedRun(damage, one.at) from error
            raise

    def _opened(self, batches: Sequence[Buffer]) -> Iterator[list[OpenBatch]]:
        return open_in_parts(batches, decompressed_bytes_max=self._settings.decompressed_bytes_max, part_bytes=OPENED_AT_ONCE)

    def _decoded(self, opened: Sequence[OpenBatch]) -> tuple[pa.RecordBatch, int, int]:
        """Returns the records at or above the log start, their number, and their checksum by the batches, not the columns."""
        records, checksum = checksum_of_opened(opened)
        columns = decode_opened(opened)
        gone = int(columns.column("offset").to_numpy().searchsorted(self._log_start_offset))
        if gone:
            checksum -= checksum_of_columns(columns.slice(0, gone))
            columns, records = columns.slice(gone), records - gone
        return columns, records, checksum

    def finish(self, name: Callable[[Offset, Offset], str], now_ms: int, expiry_ms: int) -> CompactedRuns:
        self._decode()
        written: WrittenFile | None = None
        if self._records:
            last = Offset(self._next_offset - 1)
            written = self._writer.finish(name(self._base_offset, last), base_offset=self._base_offset, last_offset=last)
            if written.file.record_count != self._records:
                raise Corrupt(
                    f"{written.file.name} of {self._partition} holds {written.file.record_count} records; its batches have "
                    f"{self._records}",
                    hint="Nothing was committed. If it repeats, report it, and check this machine's memory.",
                    key=written.file.name,
                )
            verify_history(written.body, written.file, key=written.file.name)  # the checksum in it is that of the batches
            written = written._replace(file=msgspec.structs.replace(written.file, appended_by_ms=now_ms))
        return CompactedRuns(
            written,
            self._next_offset,
            tuple(self._epochs),
            self._producers.remembered(now_ms=expiry_ms),
            self._records,
            self._bytes_in,
            self._runs,
        )


def _checked_batches(
    run: StoredRun, body: bytes, next_offset: Offset, partition: TopicPartition
) -> list[tuple[BatchHeader, memoryview]]:
    if run.base_offset != next_offset or len(body) != run.size_bytes:
        raise _corrupt(run, f"{partition} goes on at offset {run.base_offset}, but {next_offset} comes next")
    try:
        split = split_batches(body)
    except InvalidRecord as error:
        raise _corrupt(run, error.message) from error
    batches: list[tuple[BatchHeader, memoryview]] = []
    start, expected = run.start, int(run.base_offset)
    for batch in split:
        header = check_stored(batch, key=run.key, start=start)
        if header.base_offset != expected or header.leader_epoch != run.leader_epoch:
            raise _corrupt(
                run,
                f"a batch says offset {header.base_offset} and leader epoch {header.leader_epoch}; the footer says {expected} and "
                f"{run.leader_epoch}",
            )
        batches.append((header, batch))
        start += len(batch)
        expected = header.last_offset + 1
    if expected != run.last_offset + 1:
        raise _corrupt(run, f"its batches end before offset {expected}; the footer says {run.last_offset + 1}")
    return batches


def _sequenced(header: BatchHeader) -> SequencedBatch:
    return SequencedBatch(
        ProducerId(header.producer_id),
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        Offset(header.base_offset),
        Offset(header.last_offset),
    )


def _corrupt(run: StoredRun, what: str) -> Corrupt:
    return Corrupt(f"{run.key}: {what}", key=run.key, start=run.start, end=run.start + run.size_bytes)
