"""Which partitions are asked for next, and what an error of one of them means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import (
    Corrupt,
    Denied,
    NoLeader,
    NotAuthorized,
    OutOfRange,
    SessionFenced,
    Throttled,
    TidelogError,
    Unauthenticated,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from tidelog.consumer.fetch_state import DENIED_S, FetchState, Patience, named
from tidelog.settings import ResetPolicy
from tidelog.transport.descriptions import OffsetRange

P0, P1 = ("orders", 0), ("orders", 1)
PATIENCE = Patience(pause_s=1.0, pause_s_max=4.0, patience_s=100.0)


def progress_of(*next_offsets: int, follow: bool = True, reset: ResetPolicy = "error") -> FetchState:
    progress = FetchState(follow=follow, reset=reset, patience=PATIENCE)
    for number, next_offset in enumerate(next_offsets):
        progress.begin(("orders", number), next_offset)
    return progress


def of(*numbers: int) -> list[tuple[str, int]]:
    return [("orders", number) for number in numbers]


def gone(first: int, end: int) -> OutOfRange:
    return OutOfRange("gone", log_start_offset=first, high_watermark=end)


# ── what is asked for ──


def test_a_partition_that_brought_records_has_its_turn_after_the_others() -> None:
    progress = progress_of(0, 0, 0)
    assert progress.due(progress.unfinished(), 0.0) == (of(0, 1, 2), math.inf)
    assert progress.answered(P0, asked_offset=0, behind=10, next_offset=10) == 0
    assert progress.answered(P1, asked_offset=0, behind=0, next_offset=0) is None
    assert progress.due(progress.unfinished(), 0.0) == (of(1, 2, 0), math.inf)


def test_reading_ends_where_the_partition_ended_at_the_beginning() -> None:
    progress = progress_of(0, 5, follow=False)
    assert progress.end_at(P0, OffsetRange(log_start_offset=0, high_watermark=3)) is None
    assert progress.end_at(P1, OffsetRange(log_start_offset=0, high_watermark=5)) is None
    assert progress.unfinished() == of(0)
    assert progress.answered(P0, asked_offset=0, behind=7, next_offset=7) == 0
    assert progress.unfinished() == []
    assert progress.outcome() is None


@pytest.mark.parametrize(("first", "end"), [(6, 9), (0, 4)])
def test_an_offset_outside_of_the_partition_is_seen_at_the_beginning(first: int, end: int) -> None:
    found = progress_of(5, follow=False).end_at(P0, OffsetRange(log_start_offset=first, high_watermark=end))
    assert found is not None
    assert found.details == {"log_start_offset": first, "high_watermark": end}


def test_an_answer_that_came_by_two_ways_counts_once() -> None:
    progress = progress_of(100)
    assert progress.answered(P0, asked_offset=100, behind=200, next_offset=200) == 100
    assert progress.answered(P0, asked_offset=100, behind=150, next_offset=150) is None
    assert progress.answered(P0, asked_offset=100, behind=250, next_offset=250) is None
    assert progress.answered(P0, asked_offset=200, behind=300, next_offset=300) == 200
    assert progress.next_offset(P0) == 300


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 20)), max_size=30))
def test_records_are_taken_without_gap_and_without_repeat_whatever_answers_come(answers: list[tuple[int, int, int]]) -> None:
    """Each answer is to a question that may be an old one, and its first batch may begin before the offset that was asked for."""
    progress = progress_of(0)
    taken: list[int] = []
    asked = [0]
    for age, before, count in answers:
        asked_offset = asked[max(0, len(asked) - 1 - age)]
        start, behind = max(0, asked_offset - before), asked_offset + count if count else 0
        new = progress.answered(P0, asked_offset=asked_offset, behind=behind, next_offset=asked_offset + count)
        if new is not None:
            taken += [offset for offset in range(start, behind) if offset >= new]
        asked.append(progress.next_offset(P0))
    assert taken == list(range(len(taken)))
    assert progress.next_offset(P0) == len(taken)


# ── what is read may change ──


def test_an_answer_to_a_fetch_from_before_a_reset_of_its_partition_is_ignored() -> None:
    progress = progress_of(0, 0)
    progress.begin(P0, 70)
    assert progress.answered(P0, asked_offset=0, behind=100, next_offset=100) is None
    assert progress.next_offset(P0) == 70
    assert progress.answered(P0, asked_offset=70, behind=100, next_offset=100) == 70
    progress.drop(P1)
    assert progress.answered(P1, asked_offset=0, behind=100, next_offset=100) is None
    assert progress.met({P1: Corrupt("x")}, 0.0, jitter=1.0) == ([], [])
    assert progress.missing(P1, 5) is None
    assert progress.unfinished() == of(0)


def test_a_paused_partition_is_not_asked_for_and_goes_on_where_it_was() -> None:
    progress = progress_of(5, 0, follow=False)
    progress.end_at(P0, OffsetRange(log_start_offset=0, high_watermark=9))
    progress.pause(P0)
    assert progress.due(of(0, 1), 0.0) == (of(1), math.inf)
    assert progress.answered(P0, asked_offset=5, behind=9, next_offset=9) is None
    progress.begin(P0, 3)
    assert (progress.paused(), progress.end_offset(P0)) == (of(0), 9)
    progress.resume(P0)
    assert progress.due(of(0, 1), 0.0) == (of(0, 1), math.inf)
    assert progress.next_offset(P0) == 3


# ── what passes ──


@pytest.mark.parametrize("error", [NoLeader("x"), Unavailable("x"), SessionFenced("x"), UnknownPartition("x"), UnknownTopic("x")])
def test_an_error_that_passes_is_tried_again_after_pauses_that_grow(error: TidelogError) -> None:
    progress = progress_of(0, 0)
    now_s, pauses = 50.0, []
    for number in range(5):
        assert progress.met({P1: error}, now_s, jitter=1.0) == (of(1) if number == 0 else [], [])
        due, resumes_s = progress.due(of(0, 1), now_s)
        assert due == of(0)
        pauses.append(resumes_s - now_s)
        now_s = resumes_s
        assert progress.due(of(0, 1), now_s) == (of(0, 1), math.inf)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]
    progress.answered(P1, asked_offset=0, behind=0, next_offset=0)
    assert progress.met({P1: error}, now_s, jitter=0.5) == (of(1), [])
    assert progress.due(of(1), now_s) == ([], now_s + 0.5)


@pytest.mark.parametrize("error", [NotAuthorized("no right"), Unauthenticated("the key was revoked")])
def test_a_right_that_the_leader_may_not_have_heard_of_yet_is_waited_for_as_long_as_its_view_may_be_old(
    error: TidelogError,
) -> None:
    progress = progress_of(0, 0)
    assert progress.met({P1: error}, 50.0, jitter=1.0) == (of(1), [])
    assert progress.due(of(0, 1), 50.0) == (of(0), 51.0)
    assert progress.met({P1: error}, 50.0 + DENIED_S, jitter=1.0) == ([], [])
    progress.answered(P1, asked_offset=0, behind=0, next_offset=0)
    assert progress.met({P1: error}, 100.0, jitter=1.0) == (of(1), []), "a later refusal is waited out as the first"
    assert progress.met({P1: Unavailable("away")}, 105.0, jitter=1.0) == ([], [])
    assert progress.met({P1: error}, 100.1 + DENIED_S, jitter=1.0) == ([], of(1)), "no answer came in between"
    assert progress.errors() == {P1: error}
    assert progress.unfinished() == of(0)


@pytest.mark.parametrize(("jitter", "waits_s"), [(0.5, 7.0), (1.0, 8.75), (1.5, 10.5)])
def test_a_throttled_fetch_waits_its_retry_time_or_up_to_half_as_long_again(jitter: float, waits_s: float) -> None:
    progress = progress_of(0)
    progress.met({P0: Throttled("busy", retry_after_s=7.0)}, 0.0, jitter=jitter)
    assert progress.due(of(0), 0.0) == ([], waits_s)


def test_a_follower_never_gives_up_and_a_reader_with_an_end_does_without_progress() -> None:
    error = NoLeader("no leader")
    follower, reader = progress_of(0), progress_of(0, follow=False)
    reader.end_at(P0, OffsetRange(log_start_offset=0, high_watermark=10))
    for progress in (follower, reader):
        assert progress.met({P0: error}, 0.0, jitter=1.0) == (of(0), [])
        assert progress.met({P0: error}, 100.0, jitter=1.0) == ([], [])
    reader.answered(P0, asked_offset=0, behind=0, next_offset=0)  # an answer without records is no progress
    assert follower.met({P0: error}, 101.0, jitter=1.0) == ([], [])
    assert reader.met({P0: error}, 101.0, jitter=1.0) == ([], of(0))
    assert reader.errors() == {P0: error}


def test_progress_renews_the_patience() -> None:
    reader = progress_of(0, follow=False)
    reader.end_at(P0, OffsetRange(log_start_offset=0, high_watermark=10))
    reader.met({P0: NoLeader("no leader")}, 0.0, jitter=1.0)
    reader.answered(P0, asked_offset=0, behind=5, next_offset=5)
    assert reader.met({P0: NoLeader("no leader")}, 101.0, jitter=1.0) == (of(0), [])


def test_a_partition_that_ends_before_its_end_is_noticed_once_all_that_is_there_was_read() -> None:
    progress = progress_of(0, follow=False)
    progress.end_at(P0, OffsetRange(log_start_offset=0, high_watermark=10))
    assert progress.missing(P0, 5) is None
    progress.answered(P0, asked_offset=0, behind=5, next_offset=5)
    found = progress.missing(P0, 5)
    assert found is not None
    assert "orders/0 ends at offset 5; when reading began, it ended at 10" in found.message
    progress.answered(P0, asked_offset=5, behind=10, next_offset=10)
    assert progress.missing(P0, 5) is None
    assert progress_of(7).missing(P0, 5) is None


# ── what does not pass ──


@pytest.mark.parametrize("error", [Corrupt("x"), Denied("x"), OutOfRange("x"), TidelogError("x")])
def test_an_error_that_does_not_pass_ends_its_partition_and_no_other(error: TidelogError) -> None:
    progress = progress_of(0, 0, 0)
    assert progress.met({P1: error}, 0.0, jitter=1.0) == ([], of(1))
    assert progress.unfinished() == of(0, 2)
    assert progress.errors() == {P1: error}
    assert progress.answered(P1, asked_offset=0, behind=10, next_offset=10) is None, "an answer on its way does not bring it back"
    assert progress.met({P1: Corrupt("later")}, 1.0, jitter=1.0) == ([], [])
    assert progress.errors() == {P1: error}


def test_the_outcome_is_the_first_error_with_the_partitions_that_failed() -> None:
    progress = progress_of(*[0] * 20)
    for partition in range(1, 15):
        progress.end(("orders", partition), Corrupt(f"damage {partition}"))
    outcome = progress.outcome()
    assert outcome is not None
    assert outcome.message == "damage 1"
    assert outcome.__notes__ == ["14 partitions of orders were not read to their ends: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …."]
    assert not hasattr(progress.errors()[P1], "__notes__")


# ── offsets that are gone ──


@pytest.mark.parametrize(
    ("offset", "first", "end", "said"),
    [
        (7, 0, 0, "offset 7 of orders/0 is outside of [0, 0]: the partition is empty"),
        (7, 0, 5, "offset 7 of orders/0 is outside of [0, 5]: its newest record has offset 4"),
        (7, 9, 12, "offset 7 of orders/0 is outside of [9, 12]: its oldest record has offset 9"),
    ],
)
def test_an_offset_out_of_range_is_reported_with_the_range(offset: int, first: int, end: int, said: str) -> None:
    with pytest.raises(OutOfRange) as raised:
        progress_of(offset).reset_position(P0, gone(first, end))
    assert raised.value.message == said
    assert "auto_offset_reset='earliest'" in raised.value.hint
    assert "--auto-offset-reset" in raised.value.hint
    assert raised.value.details == {"log_start_offset": first, "high_watermark": end}


@pytest.mark.parametrize(("reset", "goes_on"), [("earliest", 9), ("latest", 12)])
def test_reading_goes_on_where_the_reader_chose(reset: ResetPolicy, goes_on: int) -> None:
    progress = progress_of(7, reset=reset)
    assert progress.reset_position(P0, gone(9, 12)) == goes_on
    assert progress.next_offset(P0) == goes_on


def test_an_added_partition_begins_at_its_start_whatever_the_reader_chose() -> None:
    progress = progress_of(0, reset="latest")
    progress.begin(P1, 0, was_added=True)
    assert progress.reset_position(P1, gone(3, 12)) == 3
    progress.answered(P1, asked_offset=3, behind=5, next_offset=5)
    assert progress.reset_position(P1, gone(8, 12)) == 12


def test_an_out_of_range_error_without_the_range_ends_the_partition() -> None:
    with pytest.raises(OutOfRange, match="gone"):
        progress_of(7, reset="earliest").reset_position(P0, OutOfRange("gone"))


# ── names ──


def test_an_error_says_which_partition_it_is_of() -> None:
    reported = named(Corrupt("a:9090: wal/7 is damaged", hint="Restore it.", key="wal/7"), ("orders", 3))
    assert (reported.message, str(reported), reported.hint) == (*["a:9090: wal/7 is damaged (orders/3)"] * 2, "Restore it.")
    assert reported.details == {"key": "wal/7", "topic": "orders", "partition": 3}
    assert named(NoLeader("orders/3 has no leader"), ("orders", 3)).message == "orders/3 has no leader"
    throttled = named(Throttled("busy", retry_after_s=7.0), ("orders", 3))
    assert isinstance(throttled, Throttled)
    assert throttled.retry_after_s == 7.0
