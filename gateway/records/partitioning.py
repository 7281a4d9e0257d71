"""Decides where each record of one request goes, and cuts the records of a partition into batches. Pure.

    own partition ─▶ that one     else a key ─▶ murmur2 of it, as in Kafka's clients     else ─▶ the request's keyless partition

Records of one request without a key stay together (KIP-480's sticky partitioner), so that a request takes few batches.
Invariant: within a partition the records keep the order of the request.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.records.idempotency_key import UNSEQUENCED, ProducerFields
from metadata.errors import InvalidArgument, TidelogError, TooLarge, UnknownPartition
from metadata.model import Partition, TopicId, TopicPartition
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import parse_header
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from segments.records.header import BatchHeader
from segments.records.partitioner import partition_of

# Most records of one request, whose answer has a result for each record.
RECORDS_MAX: Final = 200_000
# Most headers of all records of a request: each takes about 150 bytes, however short it is.
HEADERS_MAX: Final = 2 * RECORDS_MAX
_UTF8_PIECE_BYTES: Final = 1 << 20
# The partitions of more records are kept as an array.
_FEW_RECORDS: Final = 1_000


class CheckedBatch(NamedTuple):
    """A checked batch, with its partition and its parsed header."""

    partition: TopicPartition
    batch: Buffer
    header: BatchHeader


class Routing(NamedTuple):
    """How the records of a request become batches.

    It differs from AppendTarget in a repeat with an Idempotency-Key, which is routed and cut as the first attempt was, even if the
    topic has grown since.
    """

    topic_id: TopicId
    partition_count: int
    keyless_partition: int
    batch_bytes_max: int
    producer: ProducerFields = UNSEQUENCED


class Routes(NamedTuple):
    """The partition of each record of a request, and the records of each partition, both in the order of the request."""

    partitions: list[int]
    records: dict[int, list[NewRecordTuple]]


class Plan(NamedTuple):
    """The batches of a request; those of one partition follow each other, in the order of its records.

    `partitions` has the partition of each record, since an answer lists results in the order of the records. It is empty for a
    batch that the client has made.
    """

    partitions: Sequence[int] | npt.NDArray[np.integer]
    batches: list[CheckedBatch]

    def without_records(self) -> Plan:
        """Returns the part of the plan that an answer needs: a byte or two for each record, if there are many."""
        partitions = self.partitions
        if len(partitions) > _FEW_RECORDS:
            partitions = np.asarray(partitions, np.min_scalar_type(max(batch.partition.partition for batch in self.batches)))
        return Plan(partitions, [batch._replace(batch=b"") for batch in self.batches])


def plan_batches(routes: Routes, routing: Routing, *, request_bytes: int) -> Plan:
    """Encodes routed records to batches. `request_bytes`, the size of the records in the request, estimates where to cut them."""
    batches: list[CheckedBatch] = []
    for partition, records in routes.records.items():

        def encode(start: int, end: int, records: list[NewRecordTuple] = records) -> bytes:
            return encode_records(records[start:end], **routing.producer._asdict())

        expected_bytes = request_bytes * len(records) // len(routes.partitions)
        batches += cut_batches(partition, len(records), encode, routing, expected_bytes=expected_bytes)
    check_producer_fits(routing.producer, batches)
    return Plan(routes.partitions, batches)


def cut_batches(
    partition: int, count: int, encode: Callable[[int, int], bytes], routing: Routing, *, expected_bytes: int
) -> list[CheckedBatch]:
    """Returns the batches of one partition, cut as `cut` does."""
    batches = cut(count, encode, batch_bytes_max=routing.batch_bytes_max, expected_bytes=expected_bytes)
    return [CheckedBatch(TopicPartition(routing.topic_id, Partition(partition)), batch, parse_header(batch)) for batch in batches]


def check_producer_fits(producer: ProducerFields, batches: Sequence[CheckedBatch]) -> None:
    """Raises InvalidArgument for a sequence in several partitions, and TooLarge for several batches in one.

    A leader recognises a repeat batch by batch, so it must be cut as the first attempt was. Only a single batch ensures that.
    """
    if producer is UNSEQUENCED:
        return
    partitions = {batch.partition for batch in batches}
    if producer.producer_id < ONE_SHOT:
        check_single_partition(partitions, because="base_sequence")
    if len(partitions) < len(batches):
        raise TooLarge(
            "with a producer_id or an Idempotency-Key the records of a partition must fit one record batch",
            hint="Send fewer records per request.",
        )


def outcome_by_record(
    plan: Plan, outcomes: Sequence[Appended | TidelogError]
) -> Iterator[tuple[int, Appended | TidelogError, int]]:
    """Yields the partition of each record, the outcome of its batch, and its index in the batch, in the order of the request."""
    of_partition: dict[int, list[tuple[Appended | TidelogError, int]]] = {}
    for batch, outcome in zip(plan.batches, outcomes, strict=True):
        of_partition.setdefault(batch.partition.partition, []).extend(
            (outcome, index) for index in range(batch.header.record_count)
        )
    coming = {partition: iter(indexes) for partition, indexes in of_partition.items()}
    for partition in np.asarray(plan.partitions).tolist():
        yield partition, *next(coming[partition])


def route_records(
    records: list[NewRecordTuple],
    own_partitions: Sequence[int | None] | None,
    routing: Routing,
) -> Routes:
    """Chooses the partition of each record. Raises UnknownPartition for the first record that asks for a missing partition."""
    partition_count, keyless = routing.partition_count, routing.keyless_partition
    partitions = [keyless if (key := record[0]) is None else partition_of(key, partition_count) for record in records]
    if own_partitions is not None:
        partitions = _with_own(partitions, own_partitions, partition_count)
    chosen = set(partitions)
    if len(chosen) == 1:
        return Routes(partitions, {chosen.pop(): records})
    by_partition: dict[int, list[NewRecordTuple]] = {partition: [] for partition in chosen}
    for partition, record in zip(partitions, records, strict=True):
        by_partition[partition].append(record)
    return Routes(partitions, by_partition)


def _with_own(by_key: list[int], own_partitions: Sequence[int | None], partition_count: int) -> list[int]:
    for record, own in enumerate(own_partitions):
        if own is not None:
            if not 0 <= own < partition_count:
                raise no_such_partition(own, partition_count, record=record)
            by_key[record] = own
    return by_key


def cut(count: int, encode: Callable[[int, int], bytes], *, batch_bytes_max: int, expected_bytes: int) -> list[bytes]:
    """Returns batches that together hold `count` records, none above `batch_bytes_max`; `encode(start, end)` makes one.

    `expected_bytes` avoids encodings that could not fit. Raises TooLarge if a single record is above the bound.
    """
    batches: list[bytes] = []
    waiting = _even(0, count, 1 + expected_bytes // batch_bytes_max)
    while waiting:
        start, end = waiting.pop(0)
        batch = encode(start, end)
        if len(batch) <= batch_bytes_max:
            batches.append(batch)
        elif end - start == 1:
            raise TooLarge(
                f"a record takes {len(batch)} bytes as a batch; the topic takes {batch_bytes_max}",
                hint="Send a smaller record, or raise the topic's max.message.bytes.",
                size=len(batch),
                bytes_max=batch_bytes_max,
            )
        else:
            waiting[:0] = _even(start, end, 1 + len(batch) // batch_bytes_max)
    return batches


def check_single_partition(partitions: Collection[object], *, because: str) -> None:
    """Raises InvalidArgument unless all records go to one partition. `because` names the parameter that needs this."""
    if len(partitions) != 1:
        raise InvalidArgument(
            f"the records go to {len(partitions)} partitions, but {because} applies to one",
            hint="Send the records of one partition: ?partition=N.",
        )


def no_such_partition(partition: int, partition_count: int, *, record: int) -> UnknownPartition:
    """Returns the error for a record that asks for a partition which the topic lacks."""
    return UnknownPartition(
        f"record {record} asks for partition {partition}; the topic has 0 to {partition_count - 1}",
        record=record,
        partition=partition,
        partition_count=partition_count,
    )


def _even(start: int, end: int, pieces: int) -> list[tuple[int, int]]:
    """Divides [start, end) into `pieces` ranges of nearly the same length, or into fewer, so that none is empty."""
    pieces = min(pieces, end - start)
    bounds = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
    return list(pairwise(bounds))


def check_utf8(body: bytes) -> None:
    """Raises InvalidArgument, which names the byte, unless the body is UTF-8. Raw values then need no decoding of their own."""
    if body.isascii():
        return
    start = 0
    try:
        while start < len(body):  # in pieces, since text may take four times its bytes
            piece = memoryview(body)[start : start + _UTF8_PIECE_BYTES]
            start += codecs.utf_8_decode(piece, "strict", start + len(piece) == len(body))[1]
    except UnicodeDecodeError as error:
        at = start + error.start
        raise InvalidArgument(
            f"the body is not UTF-8 (byte {at})", hint='Send bytes as {"type": "binary", "data": "<base64>"}.', byte=at
        ) from None
