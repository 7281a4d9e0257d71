"""What a Consume stream remembers: where it is, and what its client may still commit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc.consume import partitions as consumed_partitions
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, Position, Start, StartKind
from metadata.errors import InvalidArgument
from metadata.group_member.start_offsets import StartPolicy
from metadata.model import TopicId


def partition(number: int = 0) -> ConsumedPartition:
    consumed = ConsumedPartition("orders", TopicId("a" * 32), number, Start(StartKind.EARLIEST))
    consumed.offset = 0
    return consumed


def held(count: int) -> tuple[ConsumedPartitions, list[ConsumedPartition]]:
    partitions, all_of_them = ConsumedPartitions(), [partition(number) for number in range(count)]
    partitions.take(all_of_them)
    return partitions, all_of_them


def due(partitions: ConsumedPartitions, delivery_id: int) -> dict[int, int]:
    return {each.consumed.number: each.next_offset for each in partitions.due(delivery_id)}


def test_a_commit_names_all_up_to_a_delivery_and_again_what_was_not_committed() -> None:
    partitions, (zero, one) = held(2)
    first = partitions.delivered([Position(zero, 3, 7)], remembered=True)
    second = partitions.delivered([Position(zero, 5, 7), Position(one, 2, 7)], remembered=True)
    assert due(partitions, first) == {0: 3}
    assert due(partitions, second) == {0: 5, 1: 2}, "the first was not answered"
    partitions.committed(partitions.due(second))
    assert due(partitions, second) == {}


def test_records_delivered_while_a_commit_was_under_way_stay_due() -> None:
    partitions, (zero,) = held(1)
    under_way = partitions.due(partitions.delivered([Position(zero, 3, 7)], remembered=True))
    partitions.due(partitions.delivered([Position(zero, 5, 7)], remembered=True))
    partitions.committed(under_way)
    assert due(partitions, 2) == {0: 5}


def test_records_delivered_before_a_partition_was_dropped_never_count_again() -> None:
    partitions, (zero,) = held(1)
    partitions.due(partitions.delivered([Position(zero, 3, 7)], remembered=True))
    partitions.delivered([Position(zero, 4, 7)], remembered=True)
    partitions.drop([zero.name])
    partitions.take([partition()])
    assert due(partitions, 2) == {}
    partitions.delivered([Position(zero, 9, 7)], remembered=True)
    assert due(partitions, 3) == {}, "nor of a delivery that was on its way"


def test_a_delivery_that_was_not_made_cannot_be_committed() -> None:
    partitions, _ = held(1)
    with pytest.raises(InvalidArgument):
        partitions.due(1)


def test_partitions_that_were_just_read_come_last_and_stopped_paused_or_failed_ones_are_left_out() -> None:
    partitions, (zero, one, two, three, four) = held(5)
    partitions.delivered([Position(zero, 1, 7)], remembered=False)
    assert partitions.readable() == [one, two, three, four, zero]
    partitions.stop([one.name])
    partitions.pause(two.name, paused=True)
    three.error = InvalidArgument("wrong")
    four.restart(StartPolicy.LATEST)
    assert partitions.readable() == [zero]
    assert partitions.without_offset() == [four]
    partitions.pause(two.name, paused=False)
    partitions.pause(three.name, paused=False)
    partitions.pause(("orders", 9), paused=True)
    assert partitions.readable() == [two, three, zero]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=120), st.data())
def test_memory_is_bounded_and_no_commit_names_more_than_was_asked_for(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    most = 8
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(consumed_partitions, "DELIVERIES_MAX", most)
        partitions, all_of_them = held(4)
        ends: list[dict[int, int]] = [{}]
        for number, count in steps:
            each = all_of_them[number]
            partitions.delivered([Position(each, each.offset + count, 7)], remembered=True)
            ends.append(ends[-1] | {number: each.offset})
            assert len(partitions._deliveries) <= most
        delivery_id = data.draw(st.integers(0, len(steps)))
        named = due(partitions, delivery_id)
        assert all(offset <= ends[delivery_id].get(number, 0) for number, offset in named.items())
        assert due(partitions, len(steps)) == ends[-1]
