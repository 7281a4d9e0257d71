"""Builders that the tests of the log share: partitions, record batches as a Kafka client writes them, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from metadata.model import LeaderEpoch, Offset, Partition, SegmentSeq, SessionId, TopicId, TopicPartition
from segments.bucket.layout import segment_key
from segments.object_store.interface import Buffer
from segments.records.batch import parse_whole, split_batches, stamp
from segments.records.header import BatchHeader
from segments.wal.segment_file import EncodedSegment, Run, StampedBatch, encode_seal, encode_segment
from segments.wal.session import Session

TIMESTAMP_MS = 1_700_000_000_000
WRITER = b"the-writers-nonce"[:16]
SUCCESSOR = b"successors-nonce"
# The session under test, and the one that follows it.
SESSION, BY = Session(SessionId(7), WRITER), Session(SessionId(8), SUCCESSOR)
EPOCH = LeaderEpoch(5)


def key_of(seq: int) -> str:
    """Where segment `seq` of the session under test lies."""
    return segment_key(SESSION.id, SegmentSeq(seq))


def partition_of(number: int, *, topic: int = 1) -> TopicPartition:
    return TopicPartition(TopicId(f"{topic:032x}"), Partition(number))


ORDERS = partition_of(0)
PAYMENTS = partition_of(0, topic=2)


def batch_of(
    *values: bytes, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1, timestamps_ms: Sequence[int] = ()
) -> bytes:
    """One record batch with a record for each value, as aiokafka builds it; by default, each record is a millisecond later."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    times = timestamps_ms or range(TIMESTAMP_MS, TIMESTAMP_MS + len(values))
    for delta, (value, timestamp_ms) in enumerate(zip(values, times, strict=True)):
        builder.append(delta, timestamp=timestamp_ms, key=None, value=value, headers=[])
    return bytes(builder.build())


def sequenced_batch(producer_id: int, base_sequence: int, *values: bytes, producer_epoch: int = 0) -> bytes:
    """A batch of an idempotent producer; one record that names its sequence, unless given."""
    named = values or (f"p{producer_id}-s{base_sequence}".encode(),)
    return batch_of(*named, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)


def header_of(batch: Buffer) -> BatchHeader:
    return parse_whole(batch)


def stamped(batch: bytes | bytearray, base_offset: int, *, leader_epoch: int = EPOCH) -> StampedBatch:
    """The batch as its leader would store it at `base_offset`."""
    return StampedBatch(
        parse_whole(batch),
        Offset(base_offset),
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch),
        memoryview(batch)[16:],
    )


def stamped_run(first_offset: int, *batches: bytes | bytearray, leader_epoch: int = EPOCH) -> list[StampedBatch]:
    """The batches one after the other, from `first_offset` on."""
    run: list[StampedBatch] = []
    for batch in batches:
        run.append(stamped(batch, first_offset, leader_epoch=leader_epoch))
        first_offset = run[-1].last_offset + 1
    return run


def segment_of(
    session: int,
    seq: int,
    partitions: Iterable[tuple[TopicPartition, Sequence[StampedBatch]]],
    *,
    leader_epoch: int = EPOCH,
    writer: bytes = WRITER,
    committed_to: int = 0,
    written_at_ms: int = TIMESTAMP_MS,
) -> EncodedSegment:
    return encode_segment(
        session=SessionId(session),
        seq=SegmentSeq(seq),
        writer=writer,
        committed_to=SegmentSeq(committed_to),
        written_at_ms=written_at_ms,
        partitions=[(partition, LeaderEpoch(leader_epoch), batches) for partition, batches in partitions],
    )


def seal_of(session: int, seq: int, *, writer: bytes = SUCCESSOR, by: int = 8, committed_to: int | None = None) -> bytes:
    return encode_seal(
        session=SessionId(session),
        seq=SegmentSeq(seq),
        writer=writer,
        committed_to=SegmentSeq(seq if committed_to is None else committed_to),
        sealed_at_ms=TIMESTAMP_MS,
        sealed_by=SessionId(by),
    )


def run_of(base_offset: int, records: int, *, max_timestamp: int = 0, start: int = 40) -> Run:
    """A run of ORDERS that lies in 100 bytes."""
    last = Offset(base_offset + records - 1)
    return Run(ORDERS, EPOCH, Offset(base_offset), last, records, start, start + 100, 0, max_timestamp, 0, 1)


@dataclass(frozen=True)
class Led:
    """One stretch of leadership, as the metadata records it."""

    session: SessionId
    leader_epoch: LeaderEpoch
    released_at_seq: SegmentSeq | None


def led(session: int, epoch: int = EPOCH, *, released_at_seq: int | None = None) -> Led:
    return Led(SessionId(session), LeaderEpoch(epoch), None if released_at_seq is None else SegmentSeq(released_at_seq))


def records_in(buffers: Iterable[Buffer], *, from_offset: int = 0) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in whole batches, read by aiokafka; those before `from_offset` are skipped."""
    batches = split_batches(b"".join(buffers))
    records = [(record.offset, record.value) for batch in batches for record in DefaultRecordBatch(bytes(batch))]
    return [(offset, value) for offset, value in records if offset >= from_offset]
