"""Which runs of a segment are read with one GET."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.read.run_ranges import RANGE_BYTES_MAX, SKIPPED_BYTES_MAX, ranges_of
from segments.wal.run_index import RunLocation


def run_at(start: int, end: int) -> RunLocation:
    return RunLocation(Offset(start), Offset(end), SessionId(1), SegmentSeq(2), start, end, LeaderEpoch(0), 0)


def test_neighbours_are_one_range_in_the_order_of_their_bytes() -> None:
    first, second, third = run_at(40, 100), run_at(100, 150), run_at(150, 151)
    assert ranges_of([third, first, second], bytes_max=1 << 20) == [[first, second, third]]


def test_a_gap_is_read_along_up_to_a_bound() -> None:
    near = [run_at(0, 10), run_at(10 + SKIPPED_BYTES_MAX, 20 + SKIPPED_BYTES_MAX)]
    assert ranges_of(near, bytes_max=1 << 20) == [near]
    far = [run_at(0, 10), run_at(11 + SKIPPED_BYTES_MAX, 20 + SKIPPED_BYTES_MAX)]
    assert ranges_of(far, bytes_max=1 << 20) == [[far[0]], [far[1]]]


def test_a_range_of_several_runs_is_bounded_and_a_single_run_is_not() -> None:
    runs = [run_at(0, 60), run_at(60, 100), run_at(100, 101)]
    assert ranges_of(runs, bytes_max=100) == [runs[:2], runs[2:]]
    large = run_at(0, 2 * RANGE_BYTES_MAX)
    assert ranges_of([large], bytes_max=1) == [[large]]


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 50_000)), max_size=20), st.integers(1, 1 << 20))
def test_each_run_is_in_one_range_and_ranges_do_not_overlap(pieces: list[tuple[int, int]], bytes_max: int) -> None:
    runs, at = [], 0
    for gap, size in pieces:
        runs.append(run_at(at + gap, at + gap + size))
        at += gap + size
    ranges = ranges_of(reversed(runs), bytes_max=bytes_max)
    assert [each for found in ranges for each in found] == runs
    assert all(len(found) == 1 or found[-1].end - found[0].start <= bytes_max for found in ranges)
