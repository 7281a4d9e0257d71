"""Rows on their way into topics: what lies on the bucket meanwhile. Pure.

    spark/{write}/{batch}/rows-…      a file of one attempt of a task
    ┌──────────────────────────────────────────────┐
    │ record batches, those of a partition together│  uncommitted: no producer, no sequence, base offset 0
    │ and in the order of the rows                 │
    ├──────────────────────────────────────────────┤
    │ footer, JSON: its runs                       │  which partition of which topic, bytes, batches, records
    │ length of the footer, uint32                 │  ┐
    │ CRC-32C of the footer, uint32                │  ├ 16 bytes, big-endian
    │ "TLrows01"                                   │  ┘
    └──────────────────────────────────────────────┘
    spark/{write}/{batch}/chosen      JSON: the files that are the batch, in the order of tasks. Its writer has chosen for all
    spark/{write}/{batch}/done        JSON: what was written. Everything that `chosen` names is in its topic

A batch has a producer of its own in each topic: who sends it again, after whatever crash, repeats what was sent.

    producer_id      2^61 | first 61 bits of BLAKE2b(write, batch / 2^15, topic id)   never given out (cluster/id_allocation.py)
    producer_epoch   batch % 2^15         so a later batch fences those before it, and a query is one producer to a partition
    base_sequence    from 0 on in each partition, in the order of `chosen`

Invariant: a batch of `chosen` has the same producer, epoch and sequence in each attempt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec
from awscrt.checksums import crc32c

from metadata.cluster.id_allocation import DERIVED_IDS
from metadata.errors import Corrupt, InvalidArgument, InvalidRecord
from metadata.model import ProducerId
from segments.object_store.interface import Buffer
from segments.records.batch import BATCH_OVERHEAD_BYTES, assemble, check_stored, parse_header
from segments.records.header import BatchHeader

FORMAT_VERSION: Final = 1
EPOCHS: Final = 1 << 15
SEQUENCES: Final = 1 << 31
MAGIC: Final = b"TLrows01"
_TRAILER = struct.Struct(">II8s")

_Marker = TypeVar("_Marker", "ChosenBatch", "Done")


class StagedPartition(msgspec.Struct, frozen=True, order=True):
    """The target partition of staged rows."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class StagedRun(msgspec.Struct, frozen=True):
    """The record batches of one partition in a file: bytes [start, end)."""

    where: StagedPartition
    start: int
    end: int
    batches: int
    records: int


class StagedFile(msgspec.Struct, frozen=True):
    """A staged file as a task reports it, and as the `chosen` marker lists it."""

    key: str
    size_bytes: int
    # The file holds it as well, so a replaced file is detected.
    footer_crc: int
    # By partition.
    records: tuple[tuple[StagedPartition, int], ...]


class PartitionCount(msgspec.Struct, frozen=True):
    """A number of records in one partition."""

    topic: str
    topic_id: str
    partition: int
    records: int


class ChosenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The `chosen` marker: the files that make up a batch."""

    write: str
    batch: int
    created_ms: int
    # Identifies the creator, which recognizes its own marker after a create whose answer was lost.
    nonce: str
    # The write and the batch, for people.
    label: str = ""
    files: tuple[StagedFile, ...]
    version: int = FORMAT_VERSION


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The `done` marker: a batch is in its topics completely."""

    write: str
    batch: int
    done_ms: int
    label: str = ""
    # Records that this batch has written.
    partitions: tuple[PartitionCount, ...]
    # `total` counts from this batch up to the marker's own. Of a topic that was made again since, it counts the new one only.
    first_batch: int
    total: tuple[PartitionCount, ...]
    version: int = FORMAT_VERSION

    @property
    def records(self) -> int:
        """Counts the records of this batch."""
        return sum(count.records for count in self.partitions)


class _Footer(msgspec.Struct, frozen=True):
    runs: tuple[StagedRun, ...]


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_file(key: str, batches: Sequence[tuple[StagedPartition, Sequence[tuple[bytes, int]]]]) -> tuple[StagedFile, list[bytes]]:
    """Encodes (record batch, records) in order, by partition. Returns the file's description, and its body as buffers."""
    body: list[bytes] = []
    runs, start = [], 0
    for where, encoded in batches:
        end = start + sum(len(batch) for batch, _ in encoded)
        runs.append(StagedRun(where, start, end, len(encoded), sum(count for _, count in encoded)))
        body += [batch for batch, _ in encoded]
        start = end
    footer = msgspec.json.encode(_Footer(tuple(runs)))
    crc = crc32c(footer)
    body += [footer, _TRAILER.pack(len(footer), crc, MAGIC)]
    counts = tuple((run.where, run.records) for run in runs)
    return StagedFile(key, start + len(footer) + _TRAILER.size, crc, counts), body


def open_file(file: StagedFile, body: Buffer) -> list[tuple[StagedPartition, list[tuple[memoryview, BatchHeader]]]]:
    """Returns the record batches with their headers, by partition. Checks each CRC-32C. Raises Corrupt."""
    view = memoryview(body)
    if len(view) != file.size_bytes or len(view) < _TRAILER.size:
        raise _corrupt(file, f"has {len(view)} bytes instead of {file.size_bytes}")
    size, crc, magic = _TRAILER.unpack_from(view, len(view) - _TRAILER.size)
    footer_at = len(view) - _TRAILER.size - size
    if magic != MAGIC or footer_at < 0 or crc != file.footer_crc or crc32c(view[footer_at : footer_at + size]) != crc:
        raise _corrupt(file, "has not the footer that its task has written")
    footer = msgspec.json.decode(view[footer_at : footer_at + size], type=_Footer)
    return [(run.where, _batches(file, run, view)) for run in footer.runs]


def _batches(file: StagedFile, run: StagedRun, view: memoryview) -> list[tuple[memoryview, BatchHeader]]:
    found = []
    start = run.start
    while start < run.end:
        try:
            size = parse_header(view, start).size
        except InvalidRecord as error:
            raise _corrupt(file, f"holds no record batch at {start}: {error.message}") from error
        batch = view[start : start + size]
        found.append((batch, check_stored(batch, key=file.key, start=start)))
        start += size
    if start != run.end or sum(header.record_count for _, header in found) != run.records:
        raise _corrupt(file, f"has other batches for {run.where} than its footer says")
    return found


def _corrupt(file: StagedFile, what: str) -> Corrupt:
    return Corrupt(f"{file.key} {what}", key=file.key)


# ── markers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def counted(files: Iterable[StagedFile]) -> dict[StagedPartition, int]:
    """Counts records by partition. Raises InvalidArgument for more records than a batch has sequences."""
    counts: dict[StagedPartition, int] = {}
    for file in files:
        for where, records in file.records:
            counts[where] = counts.get(where, 0) + records
    for where, records in counts.items():
        if records >= SEQUENCES:
            raise InvalidArgument(
                f"{records} rows are for {where}; a batch takes fewer than {SEQUENCES} to a partition",
                hint="Write less at a time: a stream with maxOffsetsPerTrigger, or several batch writes.",
            )
    return dict(sorted(counts.items()))


def as_counts(counts: dict[StagedPartition, int]) -> tuple[PartitionCount, ...]:
    return tuple(PartitionCount(where.topic, where.topic_id, where.partition, records) for where, records in counts.items())


def added(before: Sequence[PartitionCount], counts: Sequence[PartitionCount]) -> tuple[PartitionCount, ...]:
    """Adds two lists of counts, partition by partition. Leaves out what `before` has of topics that were made again."""
    replaced = replaced_topics(before, counts)
    sums: dict[StagedPartition, int] = {}
    for count in (*(count for count in before if count.topic not in replaced), *counts):
        where = StagedPartition(count.topic, count.topic_id, count.partition)
        sums[where] = sums.get(where, 0) + count.records
    return as_counts(dict(sorted(sums.items())))


def replaced_topics(before: Iterable[PartitionCount], counts: Iterable[PartitionCount]) -> dict[str, tuple[str, str]]:
    """Returns the former and the present id of each topic that has another one in `counts` than in `before`, by name."""
    former = {count.topic: count.topic_id for count in before}
    known = {count.topic_id for count in before}
    present = {count.topic: count.topic_id for count in counts}
    return {name: (former[name], topic_id) for name, topic_id in present.items() if name in former and topic_id not in known}


def topic_made_again(chosen: Iterable[StagedFile], files: Iterable[StagedFile]) -> StagedPartition | None:
    """Returns a partition of `files` if these go to one topic alone, and what was chosen to another one of its name; else None."""
    before, now = only_topic(chosen), only_topic(files)
    if before is None or now is None:
        return None
    return now if now.topic == before.topic and now.topic_id != before.topic_id else None


def only_topic(files: Iterable[StagedFile]) -> StagedPartition | None:
    """Returns a partition of the files if all of them go to one topic; else None."""
    partitions = counted(files)
    return next(iter(partitions)) if len({where.topic_id for where in partitions}) == 1 else None


def decode_chosen(body: bytes, key: str) -> ChosenBatch:
    return _decoded(body, key, ChosenBatch)


def decode_done(body: bytes, key: str) -> Done:
    return _decoded(body, key, Done)


def _decoded(body: bytes, key: str, kind: type[_Marker]) -> _Marker:
    try:
        found = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key} can't be read: {error}", key=key) from None
    if found.version > FORMAT_VERSION:
        raise InvalidArgument(f"{key} was written by a newer Tidelog", hint="Upgrade this one.")
    return found


# ── the producer ────────────────────────────────────────────────────────────────────────────────────────────────────────


class StagedProducer(msgspec.Struct, frozen=True):
    """The producer id and epoch that a partition's batches carry."""

    producer_id: ProducerId
    epoch: int


def producer_of(write: str, batch: int, topic_id: str) -> StagedProducer:
    name = f"{write}/{batch // EPOCHS}/{topic_id}".encode()
    number = int.from_bytes(blake2b(name, digest_size=8, person=b"tidelog-spark").digest(), "big")
    return StagedProducer(ProducerId(DERIVED_IDS | number >> 3), batch % EPOCHS)


def sequenced(batch: Buffer, header: BatchHeader, producer: StagedProducer, first: int) -> bytes:
    """Stamps the batch with the producer's id, epoch and sequence. `first`: number of earlier records of the partition."""
    own = msgspec.structs.replace(
        header, producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=first % SEQUENCES
    )
    return assemble(own, memoryview(batch)[BATCH_OVERHEAD_BYTES:])
