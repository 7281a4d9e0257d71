"""Where each record of one request goes, and how a partition's records are cut into batches. Pure.

    own partition ─▶ there     else a key ─▶ murmur2 of it, as Kafka's clients have it     else ─▶ the request's keyless partition

Records without a key stay together for one request (KIP-480's sticky partitioner), so that a request costs as few batches as it
can. Invariant: within a partition the records keep the order of the request.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from gateway.records.idempotency_key import ProducerFields
from metadata.errors import InvalidArgument, TidelogError, TooLarge, UnknownPartition
from segments.partition.partition_log import Appended
from segments.partition.producer_state import ONE_SHOT
from segments.records.batch import NO_PRODUCER_ID
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from segments.records.partitioner import partition_of

# Of one request: results are told one by one.
RECORDS_MAX: Final = 200_000
# Of all records of a request together: each takes about 150 bytes, however short it is.
HEADERS_MAX: Final = 2 * RECORDS_MAX
_UTF8_PIECE_BYTES: Final = 1 << 20


class Routes(NamedTuple):
    # By record.
    partitions: list[int]
    # By partition.
    records: dict[int, list[NewRecordTuple]]


class PlannedBatch(NamedTuple):
    partition: int
    record_count: int
    batch: bytes


class Plan(NamedTuple):
    """The batches of a request: those of one partition follow each other, in the order of its records."""

    # By record.
    partitions: Sequence[int] | npt.NDArray[np.integer]
    batches: list[PlannedBatch]


def plan_batches(routes: Routes, *, batch_bytes_max: int, request_bytes: int, producer: ProducerFields | None) -> Plan:
    """Encodes what was routed. `request_bytes` is what the records took on their way here, the measure for cutting them."""
    batches: list[PlannedBatch] = []
    for partition, records in routes.records.items():

        def encode(start: int, end: int, records: list[NewRecordTuple] = records) -> bytes:
            return encode_records(records[start:end], **producer_arguments(producer))

        expected_bytes = request_bytes * len(records) // len(routes.partitions)
        batches += cut(partition, len(records), encode, batch_bytes_max=batch_bytes_max, expected_bytes=expected_bytes)
    check_producer_fits(producer, batches)
    return Plan(routes.partitions, batches)


class ProducerArguments(TypedDict):
    """The producer's part of a batch, as the encoders take it."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


def producer_arguments(producer: ProducerFields | None) -> ProducerArguments:
    if producer is None:
        return ProducerArguments(producer_id=NO_PRODUCER_ID, producer_epoch=-1, base_sequence=-1)
    return ProducerArguments(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=producer.base_sequence
    )


def check_producer_fits(producer: ProducerFields | None, batches: Sequence[PlannedBatch]) -> None:
    """InvalidArgument for a producer_id in several partitions, since a sequence is of one; TooLarge for several batches in one.

    A repeat is recognised batch by batch: it must be cut as the first attempt was, and only one batch always is.
    """
    if producer is None:
        return
    partitions = {batch.partition for batch in batches}
    if producer.producer_id < ONE_SHOT:
        single_partition(sorted(partitions), because="base_sequence")
    if len(partitions) < len(batches):
        raise TooLarge(
            "with a producer_id or an Idempotency-Key the records of a partition must fit one record batch",
            hint="Send fewer records per request.",
        )


def outcome_by_record(
    plan: Plan, outcomes: Sequence[Appended | TidelogError]
) -> Iterator[tuple[int, Appended | TidelogError, int]]:
    """(partition, outcome of its batch, its place in the batch) of each record, in the order of the request."""
    of_partition: dict[int, list[tuple[Appended | TidelogError, int]]] = {}
    for batch, outcome in zip(plan.batches, outcomes, strict=True):
        of_partition.setdefault(batch.partition, []).extend((outcome, place) for place in range(batch.record_count))
    coming = {partition: iter(places) for partition, places in of_partition.items()}
    for partition in np.asarray(plan.partitions).tolist():
        yield partition, *next(coming[partition])


def route_records(
    records: list[NewRecordTuple],
    own_partitions: Sequence[int | None] | None,
    *,
    partition_count: int,
    keyless_partition: int,
) -> Routes:
    """UnknownPartition names the first record whose own partition the topic does not have."""
    partitions = [keyless_partition if (key := record[0]) is None else partition_of(key, partition_count) for record in records]
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


def cut(
    partition: int, count: int, encode: Callable[[int, int], bytes], *, batch_bytes_max: int, expected_bytes: int
) -> list[PlannedBatch]:
    """Batches that together hold `count` records, none above `batch_bytes_max`; `encode(start, end)` makes one.

    `expected_bytes` spares encodings that could not fit. TooLarge where a single record is above the bound.
    """
    batches: list[PlannedBatch] = []
    waiting = _even(0, count, 1 + expected_bytes // batch_bytes_max)
    while waiting:
        start, end = waiting.pop(0)
        batch = encode(start, end)
        if len(batch) <= batch_bytes_max:
            batches.append(PlannedBatch(partition, end - start, batch))
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


def single_partition(partitions: Sequence[int], *, because: str) -> int:
    """The one partition of all records; InvalidArgument where there are several, `because` of what needs one."""
    if len(partitions) != 1:
        raise InvalidArgument(
            f"the records go to {len(partitions)} partitions, but {because} is of one",
            hint="Send the records of one partition: ?partition=N.",
        )
    return partitions[0]


def no_such_partition(partition: int, partition_count: int, *, record: int) -> UnknownPartition:
    return UnknownPartition(
        f"record {record} asks for partition {partition}; the topic has 0 to {partition_count - 1}",
        record=record,
        partition=partition,
        partition_count=partition_count,
    )


def _even(start: int, end: int, pieces: int) -> list[tuple[int, int]]:
    """[start, end) in so many ranges of nearly the same length, but none empty."""
    pieces = min(pieces, end - start)
    bounds = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
    return list(pairwise(bounds))


def check_utf8(body: bytes) -> None:
    """InvalidArgument names the byte. Once for the whole body: raw values are not decoded again."""
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
