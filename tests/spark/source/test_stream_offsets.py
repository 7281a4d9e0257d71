"""Offsets of a stream as text, and how a batch's limit is divided over partitions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from metadata.model import Partition, TopicId, TopicPartition
from spark.source.stream_offsets import StreamOffsets, admitted, parse_offsets

TOPICS = {TopicId(f"{number:032x}"): name for number, name in enumerate(("orders", "events", "a.b-c"))}
PARTITIONS = st.builds(TopicPartition, st.sampled_from(list(TOPICS)), st.integers(0, 20).map(Partition))
SPANS = st.dictionaries(
    PARTITIONS, st.tuples(st.integers(0, 2**60), st.one_of(st.integers(0, 50), st.integers(0, 2**50))), min_size=1
)


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)))
def test_offsets_survive_the_checkpoint_and_equal_ones_are_equal_text(next_offsets: dict[TopicPartition, int]) -> None:
    names = {partition.topic_id: TOPICS[partition.topic_id] for partition in next_offsets}
    text = json.dumps(StreamOffsets(names, next_offsets).as_json())
    assert parse_offsets(json.loads(text)) == StreamOffsets(names, next_offsets)
    turned = dict(reversed(next_offsets.items()))
    assert json.dumps(StreamOffsets(names, turned).as_json()) == text


def test_offsets_look_as_they_are_documented() -> None:
    orders = TopicId("1f" * 16)
    offsets = StreamOffsets(
        {orders: "orders"}, {TopicPartition(orders, Partition(1)): 40, TopicPartition(orders, Partition(0)): 23}
    )
    assert json.dumps(offsets.as_json()) == (
        '{"version": 1, "topics": {"orders": {"id": "1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f", "offsets": {"0": 23, "1": 40}}}}'
    )


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 2, "topics": {}},
        {"version": 1},
        {"version": 1, "topics": {"orders": {"id": "1", "offsets": {"x": 1}}}},
        {"version": 1, "topics": {"orders": {"id": "1", "offsets": {"0": 1}, "more": 1}}},
    ],
)
def test_offsets_that_another_version_wrote_are_refused(stored: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="checkpoint") as refused:
        parse_offsets(stored)
    assert "checkpointLocation" in refused.value.hint


@given(SPANS, st.integers(1, 2**40))
def test_a_batch_takes_no_more_than_its_limit_and_something_of_each_that_has_anything(
    spans: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    starts = {partition: start for partition, (start, _) in spans.items()}
    ends = {partition: start + count for partition, (start, count) in spans.items()}
    upto = admitted(starts, ends, limit)
    taken = {partition: upto[partition] - starts[partition] for partition in spans}
    waiting = [partition for partition, (_, count) in spans.items() if count]
    total = sum(count for _, count in spans.values())
    assert all((taken[partition] > 0) == (spans[partition][1] > 0) for partition in spans)
    assert all(upto[partition] <= ends[partition] for partition in spans)
    assert sum(taken.values()) == min(total, max(limit, len(waiting)))
    assert admitted(dict(reversed(starts.items())), ends, limit) == upto


@given(SPANS)
def test_without_a_limit_a_batch_takes_all(spans: dict[TopicPartition, tuple[int, int]]) -> None:
    starts = {partition: start for partition, (start, _) in spans.items()}
    ends = {partition: start + count for partition, (start, count) in spans.items()}
    assert admitted(starts, ends) == ends


def test_each_partition_gets_in_proportion_to_what_it_has() -> None:
    partitions = [TopicPartition(TopicId("0" * 32), Partition(number)) for number in range(4)]
    starts = dict(zip(partitions, (0, 100, 7, 0), strict=True))
    ends = dict(zip(partitions, (6001, 3101, 1008, 0), strict=True))
    upto = admitted(starts, ends, 1003)
    assert [upto[partition] - starts[partition] for partition in partitions] == [601, 301, 101, 0]


def test_a_partition_behind_its_end_gives_nothing_and_does_not_go_back() -> None:
    partition = TopicPartition(TopicId("0" * 32), Partition(0))
    assert admitted({partition: 9}, {partition: 5}, 3) == {partition: 9}
