from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.wal.pending_runs import PendingRun, PendingRuns
from metadata.errors import Corrupt
from metadata.model import Offset, SegmentSeq, SessionId


def run_at(base: int, last: int, *, session: int = 1, seq: int = 0, size: int = 10) -> PendingRun:
    return PendingRun(Offset(base), Offset(last), SessionId(session), SegmentSeq(seq), 40, size)


@given(st.lists(st.integers(1, 5), max_size=12).flatmap(lambda sizes: st.permutations(list(enumerate(sizes)))), st.data())
def test_runs_are_in_offset_order_whatever_the_order_of_their_finding(found: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes = dict(found)
    starts = {n: sum(sizes[m] for m in range(n)) for n in sizes}
    held = [run_at(starts[n], starts[n] + sizes[n] - 1, session=1 + n % 2, seq=n, size=sizes[n]) for n in sorted(sizes)]
    runs = PendingRuns()
    for n, _ in found:
        runs.add(held[n])
    assert list(runs) == held
    assert runs.bytes_pending == sum(sizes.values())
    assert runs.count_without_gap(0) == len(held)
    below = data.draw(st.integers(0, sum(sizes.values()) + 1))
    assert runs.bytes_from(below) == sum(run.size_bytes for run in held if run.last_offset >= below)
    gone = runs.drop_below(below)
    assert gone == [(run.session, run.seq) for run in held if run.last_offset < below]
    held = [run for run in held if run.last_offset >= below]
    assert list(runs) == held
    before = SegmentSeq(data.draw(st.integers(0, 12)))
    assert sorted(runs.drop_in(SessionId(1), before)) == [(1, run.seq) for run in held if run.session == 1 and run.seq < before]
    assert list(runs) == [run for run in held if not (run.session == 1 and run.seq < before)]
    assert runs.bytes_pending == sum(run.size_bytes for run in runs)


@pytest.mark.parametrize("other", [(0, 0), (3, 3), (2, 4), (0, 9), (5, 8)])
def test_offsets_that_are_there_already_are_refused_and_nothing_changes(other: tuple[int, int]) -> None:
    runs = PendingRuns()
    for base, last in ((6, 7), (0, 3)):
        runs.add(run_at(base, last))
    with pytest.raises(Corrupt, match="two leaders"):
        runs.add(run_at(*other, session=2))
    assert [run.base_offset for run in runs] == [0, 6]
    runs.add(run_at(4, 5))
    assert runs.count_without_gap(0) == 3
