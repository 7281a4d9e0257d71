"""What is compacted next: nothing twice, nothing skipped, whole runs, no more than there is room for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.conversion.planner import CompactionTrigger, CompactionUnit, plan_unit, straddling
from compaction.wal.state import WalState
from metadata.errors import Corrupt
from metadata.model import Offset, TopicPartition
from segments.history.manifest import no_manifest
from segments.wal.segment_file import SegmentFooter
from tests.kit.compaction.wal_footers import RUN_BYTES, footer_of, state_of
from tests.kit.segments.batches import partition_of

RULE = CompactionTrigger(due_bytes=1_000, due_age_ms=1_000, scratch_bytes_max=1 << 30, runs_max=1 << 30)
A, B, C = partition_of(0), partition_of(1), partition_of(2)


def plan(state: WalState, *, now_ms: int = 0, rule: CompactionTrigger = RULE, everything: bool = False) -> CompactionUnit | None:
    return plan_unit(state, rule, now_ms=now_ms, may=lambda where, session: True, everything=everything)


def planned(unit: CompactionUnit | None) -> dict[TopicPartition, tuple[int, int]]:
    return {} if unit is None else {one.partition: (one.base_offset, one.end_offset) for one in unit.partitions}


def segments_of(unit: CompactionUnit | None) -> list[tuple[int, int]]:
    return [] if unit is None else [(segment.session, segment.seq) for segment in unit.segments]


@st.composite
def histories(draw: st.DrawFn) -> list[SegmentFooter]:
    """Segments of up to three sessions, between which partitions move to and fro; found in some order, that of a session kept."""
    partitions = [partition_of(number) for number in range(draw(st.integers(1, 4)))]
    ends = dict.fromkeys(partitions, 0)
    next_seq = dict.fromkeys(range(1, 4), 0)
    footers: list[SegmentFooter] = []
    for written_ms in range(draw(st.integers(1, 20))):
        session = draw(st.integers(1, 3))
        runs: dict[TopicPartition, tuple[int, int]] = {}
        for partition in draw(st.lists(st.sampled_from(partitions), unique=True, min_size=1)):
            last = ends[partition] + draw(st.integers(0, 3))
            runs[partition] = ends[partition], last
            ends[partition] = last + 1
        footers.append(footer_of((session, next_seq[session]), runs, written_at_ms=written_ms))
        next_seq[session] += 1
    order = draw(st.permutations([footer.session for footer in footers]))
    queues = {session: [footer for footer in footers if footer.session == session] for session in range(1, 4)}
    found = [queues[session].pop(0) for session in order]
    return found[: draw(st.integers(1, len(found)))]


@given(histories(), st.integers(RUN_BYTES, 20 * RUN_BYTES), st.booleans())
def test_unit_after_unit_takes_every_run_that_follows_without_a_gap_once(
    found: list[SegmentFooter], room: int, everything: bool
) -> None:
    state = state_of(found)
    runs = sorted((run.partition, run.base_offset, run.last_offset) for footer in found for run in footer.runs)
    sizes = {(footer.session, footer.seq): 40 + RUN_BYTES * len(footer.runs) for footer in found}
    rule = RULE._replace(scratch_bytes_max=room)
    taken: dict[TopicPartition, int] = {}
    while (unit := plan(state, now_ms=2_000, rule=rule, everything=everything)) is not None:
        needed: dict[tuple[int, int], int] = {}
        in_unit = 0
        for one in unit.partitions:
            assert one.base_offset == taken.get(one.partition, 0), "it goes on where the one before ended"
            assert one.end_offset > one.base_offset
            bases = {base for partition, base, _ in runs if partition == one.partition}
            lasts = {last for partition, _, last in runs if partition == one.partition}
            assert one.base_offset in bases, "whole runs"
            assert one.end_offset - 1 in lasts, "whole runs"
            taken[one.partition] = one.end_offset
            for footer in found:
                for run in footer.runs:
                    if run.partition == one.partition and one.base_offset <= run.base_offset < one.end_offset:
                        segment = footer.session, footer.seq
                        needed[segment] = min(needed.get(segment, 1 << 30), run.start)
                        in_unit += RUN_BYTES
        assert {(one.session, one.seq): one.start for one in unit.segments} == needed
        assert len(unit.segments) == len(needed), "each is read once"
        assert all(one.size_bytes == sizes[one.session, one.seq] for one in unit.segments)
        assert unit.size_bytes == in_unit
        assert in_unit <= room or len(unit.segments) == 1, "one segment is always taken"
        for one in unit.partitions:
            state.advance(msgspec.structs.replace(no_manifest(one.partition), version=1, compacted_to=one.end_offset))
    for partition in {partition for partition, _, _ in runs}:
        end = 0
        for _, base, last in (run for run in runs if run[0] == partition):
            if base != end:
                break
            end = last + 1
        assert taken.get(partition, 0) == end
    left = {(session.session, seq) for session in state.sessions.values() for seq in range(session.done_to, session.known_to)}
    waiting = {
        (footer.session, footer.seq) for footer in found for run in footer.runs if run.base_offset >= taken.get(run.partition, 0)
    }
    assert waiting <= left
    assert state.run_count == sum(len(pending) for pending in state.pending.values())


def test_nothing_is_due_before_its_time_or_its_bytes() -> None:
    state = state_of([footer_of((1, seq), {A: (seq, seq)}, written_at_ms=seq) for seq in range(9)])
    assert plan(state, now_ms=999) is None
    assert planned(plan(state, now_ms=1_000)) == {A: (0, 9)}
    state = state_of([footer_of((1, seq), {A: (seq, seq)}) for seq in range(10)])
    assert planned(plan(state)) == {A: (0, 10)}


def test_a_run_that_is_nearly_due_goes_along_and_one_that_has_just_come_does_not() -> None:
    footers = [footer_of((1, seq), {A: (seq, seq)}) for seq in range(10)]
    footers.append(footer_of((1, 10), {B: (0, 0)}, written_at_ms=0))
    footers.append(footer_of((1, 11), {C: (0, 0)}, written_at_ms=490))
    state = state_of(footers)
    assert planned(plan(state, now_ms=500)) == {A: (0, 10), B: (0, 1)}
    assert planned(plan(state, now_ms=500, everything=True)) == {A: (0, 10), B: (0, 1), C: (0, 1)}


def test_where_there_is_no_room_for_more_all_that_waits_is_due_those_written_first() -> None:
    state = state_of([footer_of((1, seq), {A: (seq, seq), B: (seq, seq)}, written_at_ms=seq) for seq in range(6)])
    rule = RULE._replace(due_bytes=1 << 30, scratch_bytes_max=6 * RUN_BYTES)
    unit = plan(state, rule=rule)
    assert planned(unit) == {A: (0, 3), B: (0, 3)}
    assert segments_of(unit) == [(1, 0), (1, 1), (1, 2)]
    assert plan(state, rule=RULE._replace(due_bytes=1 << 30)) is None
    assert planned(plan(state, rule=RULE._replace(due_bytes=1 << 30, runs_max=12))) == {A: (0, 6), B: (0, 6)}


def test_runs_that_wait_behind_damage_or_a_gap_take_no_room_from_others() -> None:
    """Else they would be written in small files at every look, for as long as it is damaged."""
    footers = [footer_of((1, 0), {C: (0, 0)})]
    footers += [footer_of((1, 1 + seq), {A: (seq, seq), B: (1 + seq, 1 + seq)}) for seq in range(6)]
    state = state_of(footers)
    rule = RULE._replace(due_bytes=1 << 30, scratch_bytes_max=6 * RUN_BYTES)
    assert plan_unit(state, rule, now_ms=0, may=lambda where, session: True, blocked={A}) is None
    assert plan(state, rule=rule._replace(scratch_bytes_max=8 * RUN_BYTES)) is None
    assert planned(plan(state, rule=rule._replace(scratch_bytes_max=7 * RUN_BYTES))) == {A: (0, 6), C: (0, 1)}


def test_a_gap_is_waited_for_and_what_lies_before_it_is_taken() -> None:
    later = [footer_of((2, 0), {A: (0, 1)}), footer_of((2, 1), {A: (5, 6)})]
    state = state_of(later)
    assert planned(plan(state, everything=True)) == {A: (0, 2)}
    assert planned(plan(state_of([later[0], footer_of((1, 0), {A: (2, 4)}), later[1]]), everything=True)) == {A: (0, 7)}


def test_a_partition_whose_manifest_was_not_read_yet_waits() -> None:
    state = state_of([footer_of((1, 0), {A: (0, 1)})])
    del state.floors[A]
    assert state.without_floor() == [A]
    assert plan(state, everything=True) is None


def test_runs_below_a_raised_log_start_are_due_at_once() -> None:
    state = state_of([footer_of((1, 0), {A: (0, 1)})])
    assert plan(state) is None
    state.advance(msgspec.structs.replace(no_manifest(A), version=2, log_start_offset=Offset(1)))
    assert planned(plan(state)) == {A: (0, 2)}


def test_a_gap_below_the_log_start_is_skipped_once_the_run_behind_it_is_as_old_as_any_may_become() -> None:
    """After a restore from an older bucket, a partition begins at a log start beyond the records that are there."""
    state = state_of([footer_of((1, 0), {A: (0, 4)}), footer_of((2, 0), {A: (8, 9)})], floors={A: 5})
    state.advance(msgspec.structs.replace(no_manifest(A), version=2, compacted_to=Offset(5), log_start_offset=Offset(8)))
    assert not state.waits_at_gap(A)
    assert plan(state, now_ms=999) is None
    assert planned(plan(state, now_ms=1_000)) == {A: (8, 10)}
    assert planned(plan(state, everything=True)) == {A: (8, 10)}


def test_a_gap_above_the_log_start_is_waited_for() -> None:
    state = state_of([footer_of((2, 0), {A: (8, 9)})])
    state.advance(msgspec.structs.replace(no_manifest(A), version=2, compacted_to=Offset(5), log_start_offset=Offset(7)))
    assert state.waits_at_gap(A)
    assert plan(state, now_ms=10_000, everything=True) is None


def test_a_run_that_is_compacted_in_part_is_damage_of_its_partition_alone() -> None:
    state = state_of([footer_of((1, 0), {A: (0, 9), B: (0, 0)})], floors={A: 4})
    assert planned(plan(state, everything=True)) == {B: (0, 1)}
    ((where, error),) = straddling(state)
    assert where == A
    assert error.details["key"] == "wal/0000000000000001/0000000000000000"


def test_two_leaders_with_the_same_offsets_are_damage_of_that_partition_and_the_segments_stay() -> None:
    state = state_of([footer_of((1, 0), {A: (0, 9), B: (0, 0)}), footer_of((2, 0), {A: (5, 12)})])
    assert isinstance(state.damaged[A], Corrupt)
    unit = plan(state, everything=True)
    assert planned(unit) == {B: (0, 1)}
    state.advance(msgspec.structs.replace(no_manifest(B), version=2, compacted_to=Offset(1)))
    assert [session.done_to for session in state.sessions.values()] == [0, 0]


@pytest.mark.parametrize("mine", [1, 2])
def test_a_partition_is_whose_the_session_of_its_first_run_is(mine: int) -> None:
    state = state_of([footer_of((1, 0), {A: (0, 1), B: (0, 0)}), footer_of((2, 0), {A: (2, 3), C: (0, 0)})])
    unit = plan_unit(state, RULE, now_ms=5_000, may=lambda where, session: session == mine)
    assert planned(unit) == ({A: (0, 4), B: (0, 1)} if mine == 1 else {C: (0, 1)})
