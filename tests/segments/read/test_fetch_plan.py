"""Whether a fetch is served from the cache or from the bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId
from segments.read.fetch_plan import RUNS_MAX, FetchPart, FromCache, FromParquet, FromWal, Gap, plan_fetch
from segments.wal.run_index import RunIndex
from tests.kit.segments.batches import run_of
from tests.kit.segments.small_history import history

RUN_BYTES = 100


def index_of(*lengths: int, start_offset: int = 0) -> RunIndex:
    """Runs of so many records each, of RUN_BYTES each."""
    index, at = RunIndex(), start_offset
    for seq, length in enumerate(lengths):
        index.add(run_of(at, length), session=SessionId(1), seq=SegmentSeq(seq))
        at += length
    return index


def plan(runs: RunIndex, offset: int, *, hot_start_offset: int | None = None, bytes_max: int = 1000) -> list[FetchPart]:
    end = runs.end_offset or Offset(0)
    hot = None if hot_start_offset is None else Offset(hot_start_offset)
    return plan_fetch(offset, high_watermark=end, hot_start_offset=hot, runs=runs, bytes_max=bytes_max)


def test_the_tail_comes_from_the_hot_pool() -> None:
    assert plan(index_of(5, 5), 7, hot_start_offset=6) == [FromCache(Offset(7))]


def test_history_comes_from_the_bucket_and_goes_over_into_the_hot_pool() -> None:
    runs = index_of(5, 5, 5)
    first, second = runs.find(0), runs.find(5)
    assert first is not None
    assert second is not None
    assert plan(runs, 3, hot_start_offset=10) == [
        FromWal(Offset(3), first),
        FromWal(Offset(5), second),
        FromCache(Offset(10)),
    ]


def test_a_reader_at_the_high_watermark_has_nothing_to_read() -> None:
    assert plan(index_of(5), 5, hot_start_offset=0) == []
    assert plan(RunIndex(), 0) == []


def test_the_plan_ends_when_the_bytes_do_but_has_one_part_at_least() -> None:
    runs = index_of(5, 5, 5)
    assert len(plan(runs, 0, bytes_max=0)) == 1
    assert len(plan(runs, 0, bytes_max=RUN_BYTES)) == 1
    assert len(plan(runs, 0, bytes_max=RUN_BYTES + 1)) == 2


def test_the_plan_has_a_bounded_number_of_runs_and_the_hot_pool_behind_them() -> None:
    runs = index_of(*[1] * 1000)
    assert len(plan(runs, 0, bytes_max=1 << 30)) == RUNS_MAX
    assert len(plan(runs, 0, hot_start_offset=RUNS_MAX, bytes_max=1 << 30)) == RUNS_MAX + 1


def test_a_committed_offset_that_nothing_holds_is_corrupt() -> None:
    runs = index_of(5, start_offset=5)
    with pytest.raises(Corrupt, match=r"offset 2 is committed \(high watermark 10\), but no segment holds it"):
        plan(runs, 2, hot_start_offset=9)


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(parts: list[FetchPart]) -> list[tuple[int, ...]]:
    """Offset, and where the place begins and ends; of a gap, its end; of the hot pool, nothing more."""
    found: list[tuple[int, ...]] = []
    for part in parts:
        match part:
            case FromParquet(offset, location):
                found.append((offset, location.base_offset, location.last_offset))
            case FromWal(offset, run):
                found.append((offset, run.base_offset, run.last_offset))
            case Gap(offset, next_offset):
                found.append((offset, next_offset))
            case FromCache(offset):
                found.append((offset,))
    return found


def plan_with_history(
    offset: int, *, high_watermark: int = 60, hot_start_offset: int = 50, bytes_max: int = 1 << 20
) -> list[FetchPart]:
    """Parquet up to 40 (see tests/kit/segments/small_history.py), runs of ten, and the hot pool from 50 on."""
    return plan_fetch(
        offset,
        high_watermark=Offset(high_watermark),
        hot_start_offset=Offset(hot_start_offset),
        runs=index_of(10, 10, start_offset=40),
        history=history(),
        bytes_max=bytes_max,
    )


def test_below_compacted_to_it_is_parquet_that_is_read_and_gaps_are_stepped_over() -> None:
    assert shown(plan_with_history(21)) == [(21, 20, 25), (27, 27, 30), (31, 31, 31), (40, 40, 49), (50,)]
    assert shown(plan_with_history(10, bytes_max=1)) == [(10, 12, 12)]
    assert shown(plan_with_history(35, bytes_max=1)) == [(35, 40), (40, 40, 49)]


def test_a_row_group_covers_the_gap_behind_it_up_to_the_end_of_its_leader_epoch() -> None:
    found = history([[(2, 4), (5, 7)], [(15, 16)]])  # epoch 5 begins at 12
    assert [location.end_offset for location in found.between(0, 100)] == [5, 12, 40]
    runs = index_of(10, 10, 10, 10, 10, 10)
    parts = plan_fetch(5, high_watermark=Offset(60), hot_start_offset=None, runs=runs, history=found, bytes_max=1000)
    assert shown(parts) == [(5, 5, 7), (12, 15, 16), (40, 40, 49), (50, 50, 59)]


def test_the_hot_pool_comes_before_parquet_where_it_reaches_that_far() -> None:
    assert shown(plan_with_history(25, hot_start_offset=25)) == [(25,)]
    assert shown(plan_with_history(13, hot_start_offset=25)) == [(13, 20, 25), (27,)]


def test_a_gap_ends_at_the_high_watermark_though_a_manifest_reaches_further() -> None:
    assert shown(plan_with_history(32, high_watermark=36)) == [(32, 36)]
    assert shown(plan_with_history(36, high_watermark=36)) == []


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.data())
def test_the_parts_continue_each_other_up_to_the_high_watermark(lengths: list[int], data: st.DataObject) -> None:
    runs, high_watermark = index_of(*lengths), sum(lengths)
    hot_start_offset = data.draw(st.none() | st.integers(0, high_watermark - 1))
    offset = data.draw(st.integers(0, high_watermark))
    bytes_max = data.draw(st.integers(0, 600))
    parts = plan_fetch(
        offset,
        high_watermark=Offset(high_watermark),
        hot_start_offset=None if hot_start_offset is None else Offset(hot_start_offset),
        runs=runs,
        bytes_max=bytes_max,
    )
    assert bool(parts) == (offset < high_watermark)
    at = offset
    for part in parts:
        assert part.offset == at < high_watermark
        if isinstance(part, FromCache):
            assert part is parts[-1]
            assert hot_start_offset is not None
            assert at >= hot_start_offset
        else:
            assert isinstance(part, FromWal)
            assert part.location.base_offset <= at <= part.location.last_offset
            assert hot_start_offset is None or at < hot_start_offset
            at = part.location.last_offset + 1
    assert at <= high_watermark
