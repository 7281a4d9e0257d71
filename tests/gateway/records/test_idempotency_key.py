from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records.idempotency_key import (
    KEY_CHARACTERS_MAX,
    ProducerFields,
    partition_for_keyless,
    partitions_routed_over,
    producer_of,
)
from metadata.errors import IdempotencyKeyReused, InvalidArgument
from metadata.model import Offset, ProducerId, TopicId
from metadata.topics.topic import PARTITION_COUNT_MAX
from segments.partition.producer_state import ONE_SHOT, SEQUENCE_MAX, SequencedBatch

ORDERS = TopicId("0" * 31 + "1")
PAYMENTS = TopicId("0" * 31 + "2")


def producer(
    key: bytes = b"k-1", *, topic: TopicId = ORDERS, media_type: str = "application/json", body: bytes = b"{}"
) -> ProducerFields:
    return producer_of(key, topic_id=topic, media_type=media_type, body=body)


@given(st.binary(max_size=50))
def test_the_producer_of_an_idempotency_key_fits_the_fields_of_a_record_batch(body: bytes) -> None:
    made = producer(body=body)
    assert ONE_SHOT <= made.producer_id < 2**63
    assert made.producer_epoch == 0
    assert 0 <= made.base_sequence <= SEQUENCE_MAX


def test_the_same_request_has_the_same_producer_fields_in_every_version() -> None:
    """A literal, since what is on a bucket must still be recognised by later versions."""
    assert producer(b"order-7", body=b'{"records":[{"value":1}]}') == producer(b'"order-7"', body=b'{"records":[{"value":1}]}')
    assert producer(b"order-7", body=b'{"records":[{"value":1}]}') == ProducerFields(ProducerId(5937481109742913514), 0, 801777574)


def test_another_key_or_topic_is_another_producer_but_another_body_is_not() -> None:
    ids = {producer().producer_id, producer(b"k-2").producer_id, producer(topic=PAYMENTS).producer_id}
    assert len(ids) == 3
    assert producer(body=b"[]").producer_id == producer().producer_id


def test_another_body_or_type_has_another_fingerprint() -> None:
    prints = {
        producer().base_sequence,
        producer(body=b"[]").base_sequence,
        producer(media_type="application/x-ndjson").base_sequence,
    }
    assert len(prints) == 3


def test_the_partition_that_a_request_asks_for_is_part_of_the_fingerprint() -> None:
    """Without a partition and an offset the fingerprint has not changed: see the literal above."""
    queries = [(None, None), (0, None), (1, None), (None, 0), (None, 1), (0, 0), (2**31 - 1, 2**63 - 1)]
    prints = {
        producer_of(b"k", topic_id=ORDERS, media_type="a/b", body=b"", partition=partition, expected_offset=offset).base_sequence
        for partition, offset in queries
    }
    assert len(prints) == len(queries)


def written(producer: ProducerFields, partition_count: int) -> SequencedBatch:
    sequence = producer.base_sequence
    return SequencedBatch(producer.producer_id, partition_count, sequence, sequence, Offset(0), Offset(0))


def test_a_new_request_is_routed_over_the_present_partitions_and_a_repeat_as_the_first_time() -> None:
    first = producer()
    assert partitions_routed_over(first, [], present=9) == 9
    assert partitions_routed_over(first, [written(first, 3)], present=9) == 3
    assert partitions_routed_over(first, [written(first, 3), written(first, 3)], present=9) == 3
    assert partitions_routed_over(first, [written(first, 0)], present=9) == 9, "written before the count was kept"


def test_a_record_that_another_request_wrote_under_the_key_refuses_this_one() -> None:
    first, other = producer(body=b"1"), producer(body=b"2")
    for held in ([written(first, 3)], [written(other, 3), written(first, 3)]):
        with pytest.raises(IdempotencyKeyReused, match="used before for another request"):
            partitions_routed_over(other, held, present=3)


def test_the_count_of_partitions_fits_the_epoch_of_a_batch() -> None:
    assert PARTITION_COUNT_MAX < 2**15


@pytest.mark.parametrize("key", [b"", b'""', b" k", b"k ", b"caf\xc3\xa9", b"a\tb", b"k" * (KEY_CHARACTERS_MAX + 1)])
def test_a_key_that_is_empty_long_or_not_plain_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidArgument, match="Idempotency-Key"):
        producer(key)


@pytest.mark.parametrize("key", [b"k", b'"', b"a b", b'"a b"', b"k" * KEY_CHARACTERS_MAX, b"8e03978e-40d5-43dd-bc93-6894a57f9324"])
def test_plain_keys_are_taken_quoted_or_bare(key: bytes) -> None:
    assert producer(key).producer_id >= ONE_SHOT


def test_keyless_records_spread_over_the_partitions_by_key() -> None:
    chosen = [partition_for_keyless(producer(b"k-%d" % number), 6) for number in range(200)]
    assert set(chosen) == set(range(6))
    assert chosen[0] == partition_for_keyless(producer(b"k-0"), 6)
