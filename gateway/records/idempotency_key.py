"""Maps an Idempotency-Key to a producer that writes once in each partition, so that keys are durable without a table. Pure.

    producer_id     2^62 | first 62 bits of BLAKE2b(topic id, key)      ids from 2^62 on are never handed out
    producer_epoch  partitions of the topic when the request was routed for the first time
    base_sequence   first 31 bits of BLAKE2b(media type, ?partition=, ?expected_offset=, body)    the fingerprint

The memory of the key is the producer state of the partitions, which brokers rebuild from the segments' footers. Before a request is
appended, keyed_produce.py reads that state in all partitions of the topic:

    no state                     a new request, routed over the partitions that the topic has now
    the same fingerprint         a repeat: routed as the first time, so it meets the written batches and adds the missing ones
    another fingerprint          422: the key belongs to another request

The fingerprint covers the body as it was received, so timestamps that the broker assigns are no part of it. A record without a key
goes to a partition that is chosen from the Idempotency-Key, so that a repeat finds the same one.

Source: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/ (quoted or bare, both are in use).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from metadata.errors import IdempotencyKeyReused, InvalidArgument
from metadata.model import NO_PRODUCER, ProducerId, TopicId
from segments.partition.producer_state import ONE_SHOT, SequencedBatch

KEY_CHARACTERS_MAX: Final = 255

_PLAIN = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Packs which of the two parameters are given, ?partition=, ?expected_offset=.
_QUERY = struct.Struct(">BIQ")


class ProducerFields(NamedTuple):
    """The producer of a request as in the headers of its batches. The encoders take its fields as arguments."""

    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int


# The fields of records without an idempotent producer.
UNSEQUENCED: Final = ProducerFields(NO_PRODUCER, -1, -1)


def producer_of(
    header: bytes,
    *,
    topic_id: TopicId,
    media_type: str,
    body: bytes,
    partition: int | None = None,
    expected_offset: int | None = None,
) -> ProducerFields:
    """Returns the one-shot producer of a request with this Idempotency-Key, not yet routed (epoch 0).

    Raises InvalidArgument if the key is empty, too long or not printable ASCII. A repeat may differ in everything outside of the
    fingerprint: acks, timeout_ms, the format of the answer.
    """
    key = header[1:-1] if len(header) >= 2 and header[:1] == header[-1:] == b'"' else header
    if not _PLAIN.fullmatch(key) or len(key) > KEY_CHARACTERS_MAX:
        raise InvalidArgument(
            f"the Idempotency-Key has {len(key)} bytes, or others than printable ASCII",
            hint=f"Use 1 to {KEY_CHARACTERS_MAX} printable ASCII characters, for example a UUID.",
        )
    producer = int.from_bytes(blake2b(key, digest_size=8, person=b"tidelog-key", salt=bytes.fromhex(topic_id)).digest(), "big")
    query = _query(partition, expected_offset)
    fingerprint = int.from_bytes(blake2b(body, digest_size=4, key=media_type.encode(), person=query).digest(), "big")
    return ProducerFields(ProducerId(ONE_SHOT | producer >> 2), 0, fingerprint >> 1)


def partitions_routed_over(producer: ProducerFields, written: Iterable[SequencedBatch], *, present: int) -> int:
    """Returns the number of partitions to route over: that of the first attempt if it has `written` batches, else `present`.

    Raises IdempotencyKeyReused if the written batches belong to another request.
    """
    partition_count = present
    for batch in written:
        if batch.base_sequence != producer.base_sequence:
            raise IdempotencyKeyReused(
                "the Idempotency-Key was used before for another request: another body, Content-Type, partition or expected_offset"
            )
        partition_count = batch.producer_epoch or present
    return partition_count


def partition_for_keyless(producer: ProducerFields, partition_count: int) -> int:
    """Returns the partition of the request's records without a key: the same for every repeat, spread over Idempotency-Keys."""
    return producer.producer_id % partition_count


def _query(partition: int | None, expected_offset: int | None) -> bytes:
    if partition is None and expected_offset is None:
        return b""
    given = (partition is not None) | (expected_offset is not None) << 1
    return _QUERY.pack(given, partition or 0, expected_offset or 0)
