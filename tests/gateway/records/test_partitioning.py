from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records.idempotency_key import UNSEQUENCED, ProducerFields
from gateway.records.partitioning import Plan, Routing, check_single_partition, cut, outcome_by_record, plan_batches, route_records
from metadata.errors import InvalidArgument, NoLeader, TooLarge, UnknownPartition
from metadata.model import LeaderEpoch, Offset, ProducerId, TopicId
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended
from segments.partition.producer_state import ONE_SHOT, SEQUENCE_MAX
from segments.records.batch import parse_whole
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import iterate_records
from segments.records.partitioner import partition_of
from tests.kit.gateway.planned_batches import counted

COUNT = 5


def routing(
    partition_count: int, keyless_partition: int = 0, *, batch_bytes_max: int = 1 << 20, producer: ProducerFields = UNSEQUENCED
) -> Routing:
    return Routing(TopicId("1" * 32), partition_count, keyless_partition, batch_bytes_max, producer)


def record(key: bytes | None, value: bytes | None = b"v") -> NewRecordTuple:
    return (key, value, (), 1_750_000_000_000)


def values_in(batch: Buffer) -> list[bytes | None]:
    return [value for _, _, _, value, _ in iterate_records(batch, decompressed_bytes_max=1 << 20)]


keys = st.none() | st.binary(max_size=3)
owns = st.none() | st.integers(0, COUNT - 1)


@given(st.lists(st.tuples(keys, owns), min_size=1, max_size=30), st.integers(0, COUNT - 1))
def test_a_record_goes_where_it_asks_else_by_its_key_else_with_the_other_keyless(
    asked: list[tuple[bytes | None, int | None]], keyless: int
) -> None:
    records = [record(key, b"%d" % number) for number, (key, _) in enumerate(asked)]
    routes = route_records(records, [own for _, own in asked], routing(COUNT, keyless))
    for (key, own), partition in zip(asked, routes.partitions, strict=True):
        assert partition == (own if own is not None else keyless if key is None else partition_of(key, COUNT))
    for partition, routed in routes.records.items():
        assert routed == [found for found, at in zip(records, routes.partitions, strict=True) if at == partition]


def test_a_partition_that_the_topic_does_not_have_is_named_with_its_record() -> None:
    for wrong in (COUNT, -1):
        with pytest.raises(UnknownPartition, match=f"record 1 asks for partition {wrong}"):
            route_records([record(None), record(b"k")], [None, wrong], routing(COUNT, 0))


@given(st.lists(st.tuples(keys, st.binary(max_size=120)), min_size=1, max_size=60), st.integers(300, 900))
def test_batches_hold_all_records_in_order_and_none_is_too_large(found: list[tuple[bytes | None, bytes]], bytes_max: int) -> None:
    records = [record(key, value) for key, value in found]
    routes = route_records(records, None, routing(COUNT, 0))
    plan = plan_batches(routes, routing(COUNT, batch_bytes_max=bytes_max), request_bytes=50)
    for batch in plan.batches:
        assert len(batch.batch) <= bytes_max
        assert parse_whole(batch.batch).record_count == batch.header.record_count
    for partition, routed in routes.records.items():
        written = [value for batch in plan.batches if batch.partition.partition == partition for value in values_in(batch.batch)]
        assert written == [value for _, value, _, _ in routed]


def test_a_record_that_fits_no_batch_is_refused() -> None:
    routes = route_records([record(None, b"x" * 500)], None, routing(1, 0))
    with pytest.raises(TooLarge, match="the topic takes 400"):
        plan_batches(routes, routing(COUNT, batch_bytes_max=400), request_bytes=500)


def test_records_that_can_not_fit_are_cut_before_they_are_encoded() -> None:
    encoded: list[tuple[int, int]] = []

    def encode(start: int, end: int) -> bytes:
        encoded.append((start, end))
        return b"x" * 10 * (end - start)

    batches = cut(100, encode, batch_bytes_max=300, expected_bytes=1000)
    assert [len(batch) for batch in batches] == [250] * 4
    assert len(encoded) == 4


def test_a_producers_fields_stand_in_its_batch() -> None:
    routes = route_records([record(None)] * 3, None, routing(1, 0))
    producer = ProducerFields(ProducerId(9), 2, SEQUENCE_MAX - 1)
    (batch,) = plan_batches(routes, routing(COUNT, batch_bytes_max=1000, producer=producer), request_bytes=0).batches
    header = parse_whole(batch.batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, SEQUENCE_MAX - 1)
    assert header.last_sequence == 0


def test_a_producers_sequence_is_of_one_partition() -> None:
    routes = route_records([record(None), record(None)], [0, 1], routing(2, 0))
    with pytest.raises(InvalidArgument, match="2 partitions, but base_sequence applies to one"):
        plan_batches(routes, routing(COUNT, batch_bytes_max=1000, producer=ProducerFields(ProducerId(9), 0, 0)), request_bytes=0)


def test_an_idempotency_key_may_span_partitions() -> None:
    producer = ProducerFields(ProducerId(ONE_SHOT + 1), 0, 77)
    routes = route_records([record(None), record(None)], [0, 1], routing(2, 0))
    plan = plan_batches(routes, routing(COUNT, batch_bytes_max=1000, producer=producer), request_bytes=0)
    assert [parse_whole(batch.batch).base_sequence for batch in plan.batches] == [77, 77]


@pytest.mark.parametrize("producer_id", [9, ONE_SHOT + 1])
def test_records_that_must_be_recognised_again_fit_one_batch(producer_id: int) -> None:
    routes = route_records([record(None, b"x" * 100)] * 8, None, routing(1, 0))
    with pytest.raises(TooLarge, match="must fit one record batch"):
        plan_batches(
            routes, routing(COUNT, batch_bytes_max=400, producer=ProducerFields(ProducerId(producer_id), 0, 0)), request_bytes=0
        )


def test_outcomes_come_back_in_the_order_of_the_request() -> None:
    lost = NoLeader("1 has no leader")
    plan = Plan(np.array([0, 1, 0, 0, 1]), [counted(0, 2), counted(0, 1), counted(1, 2)])
    first = Appended(Offset(10), Offset(11), LeaderEpoch(1))
    second = Appended(Offset(12), Offset(12), LeaderEpoch(1))
    assert list(outcome_by_record(plan, [first, second, lost])) == [
        (0, first, 0),
        (1, lost, 0),
        (0, first, 1),
        (0, second, 0),
        (1, lost, 1),
    ]


def test_a_request_that_needs_one_partition_gets_it() -> None:
    check_single_partition([4], because="expected_offset")
    with pytest.raises(InvalidArgument, match="expected_offset applies to one"):
        check_single_partition([1, 4], because="expected_offset")
