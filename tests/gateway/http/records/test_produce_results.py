from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.records.produce_results import (
    answer_bytes_max,
    ready_batch_as_json,
    results_as_arrow,
    results_as_json,
    results_as_lines,
    shared_error,
)
from gateway.records.append import Outcome
from gateway.records.partitioning import CheckedBatch, Plan, outcome_by_record
from metadata.errors import NoLeader, OutcomeUnknown, TidelogError
from metadata.model import LeaderEpoch, Offset
from segments.log.session_log import Acks
from segments.partition.partition_log import Appended
from tests.kit.gateway.planned_batches import counted


def appended(base: int, count: int, *, duplicate: bool = False) -> Appended:
    return Appended(Offset(base), Offset(base + count - 1), LeaderEpoch(1), duplicate)


MIXED = Plan([1, 0, 1, 1], [counted(1, 2), counted(1, 1), counted(0, 1)])
LOST = NoLeader("orders/0 has no leader", partition=0)


def test_results_come_in_the_order_of_the_request() -> None:
    found = [appended(10, 2), appended(12, 1), appended(5, 1)]
    assert msgspec.json.decode(results_as_json(MIXED, found, Acks.ALL)) == {
        "results": [
            {"partition": 1, "offset": 10},
            {"partition": 0, "offset": 5},
            {"partition": 1, "offset": 11},
            {"partition": 1, "offset": 12},
        ]
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_the_fast_encoding_of_results_equals_the_slow_one(drawn: list[tuple[int, bool]]) -> None:
    partitions = [partition for partition, _ in drawn]
    batches: list[CheckedBatch] = []
    found: list[Outcome] = []
    for partition in dict.fromkeys(partitions):
        first, count = 100 * partition, partitions.count(partition)
        cut = count // 2 if drawn[0][1] else 0
        for size in filter(None, (cut, count - cut)):
            batches.append(counted(partition, size))
            found.append(appended(first, size))
            first += size
    plan = Plan(np.array(partitions), batches)
    reported = msgspec.json.decode(results_as_json(plan, found, Acks.ALL))["results"]
    slowly = [
        (partition, outcome.base_offset + index)
        for partition, outcome, index in outcome_by_record(plan, found)
        if isinstance(outcome, Appended)
    ]
    assert [(result["partition"], result["offset"]) for result in reported] == slowly


def test_records_of_a_failed_partition_have_errors_at_their_indexes() -> None:
    lines = results_as_lines(MIXED, [appended(10, 2), appended(12, 1, duplicate=True), LOST], Acks.ALL).splitlines()
    reported = [msgspec.json.decode(line) for line in lines]
    assert [result.get("offset") for result in reported] == [10, None, 11, 12]
    assert reported[1]["error"] == {
        "code": "NO_LEADER",
        "detail": "orders/0 has no leader",
        "retryable": True,
        "nothing_was_written": True,
        "hint": "Retry with back-off.",
        "partition": 0,
    }
    assert reported[3] == {"partition": 1, "offset": 12, "duplicate": True}


def test_without_acknowledgements_there_are_no_offsets() -> None:
    reported = msgspec.json.decode(results_as_json(MIXED, [appended(10, 2), appended(12, 1), appended(5, 1)], Acks.NONE))
    assert reported["results"] == [{"partition": 1}, {"partition": 0}, {"partition": 1}, {"partition": 1}]


def test_results_as_arrow_have_three_columns() -> None:
    table = pa.ipc.open_stream(results_as_arrow(MIXED, [appended(10, 2), appended(12, 1), LOST], Acks.ALL)).read_all()
    assert table.to_pydict() == {
        "partition": [1, 0, 1, 1],
        "offset": [10, None, 11, 12],
        "error": [None, "NO_LEADER", None, None],
    }


def test_a_ready_batch_has_one_result() -> None:
    plan = Plan([], [counted(2, 500)])
    assert msgspec.json.decode(ready_batch_as_json(plan, [appended(7, 500, duplicate=True)], Acks.ALL)) == {
        "results": [{"partition": 2, "offset": 7, "count": 500, "duplicate": True}]
    }
    assert msgspec.json.decode(ready_batch_as_json(plan, [appended(7, 500)], Acks.NONE)) == {
        "results": [{"partition": 2, "count": 500}]
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([LOST], NoLeader),
        ([LOST, NoLeader("another")], NoLeader),
        ([LOST, OutcomeUnknown("late")], None),
        ([LOST, appended(0, 1)], None),
        ([appended(0, 1)], None),
    ],
)
def test_only_what_all_batches_met_is_the_answer_to_the_whole_request(
    found: list[Outcome], expected: type[TidelogError] | None
) -> None:
    error = shared_error(found)
    assert (None if error is None else type(error)) is expected


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 30), st.integers(0, 2**60), st.sampled_from(["new", "repeat", "lost"])),
        min_size=1,
        max_size=5,
        unique_by=lambda drawn: drawn[0],
    ),
    st.sampled_from([Acks.ALL, Acks.NONE]),
)
def test_no_form_of_an_answer_is_longer_than_its_estimated_maximum(drawn: list[tuple[int, int, int, str]], acks: Acks) -> None:
    partitions = [partition for partition, count, _, _ in drawn for _ in range(count)]
    plan = Plan(partitions, [counted(partition, count) for partition, count, _, _ in drawn])
    found: list[Outcome] = [
        LOST if what == "lost" else appended(base, count, duplicate=what == "repeat") for _, count, base, what in drawn
    ]
    reported = answer_bytes_max(plan, found, acks)
    for encode in (results_as_json, results_as_lines, results_as_arrow):
        assert len(encode(plan, found, acks)) <= reported
