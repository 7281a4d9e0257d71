"""Where the runs of a partition lie: found by offset, by time and by leader epoch, in order, without a gap."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.wal.run_index import NO_EPOCH_END, EpochEnd, RunIndex, RunLocation
from segments.wal.segment_file import Run
from tests.kit.segments.batches import EPOCH, run_of

SESSION = SessionId(2**64 // 4)


def index_of(*runs: Run) -> RunIndex:
    index = RunIndex()
    for seq, run in enumerate(runs):
        index.add(run, session=SESSION, seq=SegmentSeq(seq))
    return index


def test_an_empty_index_knows_nothing() -> None:
    index = RunIndex()
    assert (len(index), index.start_offset, index.end_offset, index.find(0)) == (0, None, None, None)
    assert list(index.from_timestamp(0)) == []


def test_a_run_is_found_by_each_of_its_offsets_with_all_that_was_said_of_it() -> None:
    index = index_of(run_of(10, 3, max_timestamp=5), run_of(13, 1, max_timestamp=2**62, start=2**40))
    location = RunLocation(Offset(13), Offset(13), SESSION, SegmentSeq(1), 2**40, 2**40 + 100, EPOCH, 2**62)
    assert index.find(13) == location
    assert location.key == "wal/4000000000000000/0000000000000001"
    assert [index.find(offset) is not None for offset in range(9, 15)] == [False, True, True, True, True, False]
    assert (index.start_offset, index.end_offset) == (10, 14)


def test_the_runs_from_an_offset_on_begin_with_the_one_that_holds_it() -> None:
    index = index_of(run_of(10, 3), run_of(13, 1), run_of(14, 5))
    assert list(index.following(11, count_max=9)) == [index.find(10), index.find(13), index.find(14)]
    assert list(index.following(13, count_max=1)) == [index.find(13)]
    assert list(index.following(9, count_max=9)) == list(index.following(19, count_max=9)) == []


@pytest.mark.parametrize("base_offset", [11, 14])
def test_a_run_that_leaves_a_gap_or_overlaps_is_corrupt_and_is_not_taken_in(base_offset: int) -> None:
    index = index_of(run_of(10, 3))
    with pytest.raises(Corrupt, match="13 comes next") as refusal:
        index.add(run_of(base_offset, 2), session=SESSION, seq=SegmentSeq(9))
    assert refusal.value.details == {"key": "wal/4000000000000000/0000000000000009", "start": 40, "end": 140}
    assert (len(index), index.end_offset) == (1, 13)


def test_runs_from_a_timestamp_on_are_those_that_hold_a_record_so_new() -> None:
    index = index_of(run_of(0, 1, max_timestamp=50), run_of(1, 1, max_timestamp=20), run_of(2, 1, max_timestamp=70))
    assert [location.base_offset for location in index.from_timestamp(50)] == [0, 2]
    assert [location.base_offset for location in index.from_timestamp(51)] == [2]
    assert list(index.from_timestamp(71)) == []


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(0, 2**40))
def test_finding_agrees_with_looking_at_every_run(lengths: list[int], start_offset: int) -> None:
    index, runs, at = RunIndex(), [], start_offset
    for seq, length in enumerate(lengths):
        runs.append(range(at, at + length))
        index.add(run_of(at, length), session=SESSION, seq=SegmentSeq(seq))
        at += length
    assert len(index) == len(runs)
    assert index.start_offset == (start_offset if runs else None)
    for offset in range(start_offset - 1, at + 2):
        found = index.find(offset)
        expected = next((run for run in runs if offset in run), None)
        assert (None if found is None else range(found.base_offset, found.last_offset + 1)) == expected


def in_epoch(run: Run, leader_epoch: int) -> Run:
    return msgspec.structs.replace(run, leader_epoch=LeaderEpoch(leader_epoch))


def test_an_epoch_ends_behind_its_last_record_and_one_without_records_where_the_one_before_it_does() -> None:
    index = index_of(in_epoch(run_of(0, 3), 2), in_epoch(run_of(3, 1), 2), in_epoch(run_of(4, 5), 7))
    assert [index.end_of_epoch(epoch) for epoch in (0, 1)] == [NO_EPOCH_END] * 2
    assert [index.end_of_epoch(epoch) for epoch in (2, 3, 6)] == [EpochEnd(LeaderEpoch(2), Offset(4))] * 3
    assert [index.end_of_epoch(epoch) for epoch in (7, 2**31 - 1)] == [EpochEnd(LeaderEpoch(7), Offset(9))] * 2
    assert RunIndex().end_of_epoch(5) == NO_EPOCH_END == (-1, -1)


def test_a_run_of_an_earlier_leader_behind_one_of_a_later_is_corrupt_and_is_not_taken_in() -> None:
    index = index_of(in_epoch(run_of(10, 3), 4))
    with pytest.raises(Corrupt, match="goes on in leader epoch 3, behind records of epoch 4"):
        index.add(in_epoch(run_of(13, 2), 3), session=SESSION, seq=SegmentSeq(9))
    assert (len(index), index.end_offset) == (1, 13)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=20), st.integers(0, 2**40))
def test_the_end_of_each_epoch_agrees_with_looking_at_every_record(steps: list[tuple[int, int]], start_offset: int) -> None:
    index, epochs, at, epoch = RunIndex(), list[int](), start_offset, 0
    for seq, (leaders, length) in enumerate(steps):
        epoch += leaders
        index.add(in_epoch(run_of(at, length), epoch), session=SESSION, seq=SegmentSeq(seq))
        epochs += [epoch] * length
        at += length
    for asked in range(epoch + 2):
        held = [(of_record, start_offset + index + 1) for index, of_record in enumerate(epochs) if of_record <= asked]
        assert index.end_of_epoch(asked) == (held[-1] if held else NO_EPOCH_END)


@pytest.mark.parametrize(
    ("end", "diverges"),
    [
        (EpochEnd(LeaderEpoch(4), Offset(10)), False),
        (EpochEnd(LeaderEpoch(4), Offset(11)), False),
        (EpochEnd(LeaderEpoch(4), Offset(9)), True),
        (EpochEnd(LeaderEpoch(3), Offset(10)), True),
        (NO_EPOCH_END, True),
    ],
)
def test_a_reader_diverges_whose_epoch_is_unknown_or_ended_before_its_offset(end: EpochEnd, diverges: bool) -> None:
    assert end.diverges(last_fetched_epoch=4, fetch_offset=10) == diverges
