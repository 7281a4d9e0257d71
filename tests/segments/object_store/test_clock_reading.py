"""Which of two clocks counts: this machine's, the store's, or neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.clock_reading import (
    ANSWER_AGE_MS_MAX,
    DIFFERENCE_MS_MAX,
    RESOLUTION_MS,
    ClockReading,
    StoreTime,
    difference_ms,
    doubt_for_people,
    store_time,
)
from segments.object_store.store_clock import StoreClock, steady_s

NOW = 1_767_225_600_000
DAY_MS = 86_400_000
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class Clocks:
    """A wall clock that may jump, and one that never does."""

    def __init__(self) -> None:
        self.wall_ms, self.passed_s = NOW, 50.0
        self.clock = StoreClock(lambda: self.wall_ms, steady=lambda: self.passed_s)

    def are_doubted(self) -> bool:
        return self.clock.is_doubted

    def wait(self, seconds: float) -> None:
        self.wall_ms += round(1000 * seconds)
        self.passed_s += seconds


def test_within_the_bound_the_clock_of_the_machine_counts() -> None:
    for local_ms in (NOW - DIFFERENCE_MS_MAX, NOW, NOW + DIFFERENCE_MS_MAX):
        reading = ClockReading(local_ms, StoreTime(NOW, NOW))
        assert (reading.difference_ms, reading.is_doubted) == (local_ms - NOW, False)
        assert (reading.now_ms, reading.stamp_ms) == (local_ms, local_ms)


def test_beyond_the_bound_what_expires_goes_by_the_earlier_clock_and_what_is_written_by_the_later_one() -> None:
    for local_ms in (NOW - DIFFERENCE_MS_MAX - 1, NOW + DIFFERENCE_MS_MAX + 1):
        reading = ClockReading(local_ms, StoreTime(NOW, NOW))
        assert reading.is_doubted
        assert (reading.now_ms, reading.stamp_ms) == (min(local_ms, NOW), max(local_ms, NOW))


def test_without_a_time_of_the_store_the_clock_of_the_machine_counts() -> None:
    reading = ClockReading(NOW + DAY_MS, None)
    assert (reading.difference_ms, reading.is_doubted, reading.now_ms, reading.stamp_ms) == (0, False, NOW + DAY_MS, NOW + DAY_MS)


@given(st.integers(0, 999), st.integers(0, 60_000), st.integers(0, 60_000), st.integers(0, ANSWER_AGE_MS_MAX), st.data())
def test_the_bounds_contain_the_time_of_the_store_at_any_moment_of_the_request(
    fraction_ms: int, there_ms: int, back_ms: int, since_answered_ms: int, data: st.DataObject
) -> None:
    """The store reads NOW + fraction_ms when it dates its answer, and reports whole seconds."""
    reading = store_time(NOW, since_asked_ms=there_ms + back_ms + since_answered_ms, since_answered_ms=since_answered_ms)
    assert reading is not None
    there_now_ms = NOW + fraction_ms + back_ms + since_answered_ms
    assert reading.earliest_ms <= there_now_ms <= reading.latest_ms
    assert ClockReading(there_now_ms, reading).difference_ms == 0


def test_an_answer_that_is_old_says_nothing() -> None:
    assert store_time(NOW, since_asked_ms=ANSWER_AGE_MS_MAX, since_answered_ms=ANSWER_AGE_MS_MAX) is not None
    assert store_time(NOW, since_asked_ms=ANSWER_AGE_MS_MAX + 1, since_answered_ms=ANSWER_AGE_MS_MAX + 1) is None


def test_the_difference_allows_for_the_time_of_the_request_and_for_whole_seconds() -> None:
    assert difference_ms(NOW, before_ms=NOW + RESOLUTION_MS, after_ms=NOW + 9000) == 0
    assert difference_ms(NOW, before_ms=NOW + RESOLUTION_MS + 1, after_ms=NOW + 9000) == 1
    assert difference_ms(NOW, before_ms=NOW - 9000, after_ms=NOW) == 0
    assert difference_ms(NOW, before_ms=NOW - 9000, after_ms=NOW - 1) == -1


@pytest.mark.parametrize(
    ("local_ms", "reported"),
    [
        (NOW + DAY_MS, "says 2026-01-02T00:00:00+00:00, and s3://b says 2026-01-01T00:00:00+00:00, 86,400 s earlier"),
        (NOW - DAY_MS, "says 2025-12-31T00:00:00+00:00, and s3://b says 2026-01-01T00:00:00+00:00, 86,400 s later"),
        (1 << 62, "says 4611686018427387904 ms since 1970, and s3://b says 2026-01-01T00:00:00+00:00"),
    ],
)
def test_people_are_given_both_times(local_ms: int, reported: str) -> None:
    assert reported in doubt_for_people(ClockReading(local_ms, StoreTime(NOW, NOW)), "s3://b")


# ── what answers say ──


def test_a_clock_that_jumps_is_doubted_at_once_and_one_that_goes_on_is_not() -> None:
    clocks = Clocks()
    clocks.clock.heard(NOW, asked_s=clocks.passed_s)
    clocks.wait(500)
    assert not clocks.are_doubted()
    clocks.wall_ms += DAY_MS
    assert clocks.are_doubted()
    assert clocks.clock.now_ms() == NOW + 500_000
    assert clocks.clock.stamp_ms() == NOW + 500_000 + DAY_MS
    clocks.wall_ms -= 2 * DAY_MS
    assert clocks.are_doubted()
    assert clocks.clock.now_ms() == NOW + 500_000 - DAY_MS
    assert clocks.clock.stamp_ms() == NOW + 500_000 + RESOLUTION_MS
    clocks.wall_ms += DAY_MS
    assert not clocks.are_doubted()


def test_the_newest_answer_counts() -> None:
    clocks = Clocks()
    clocks.clock.heard_headers({"date": "Wed, 31 Dec 2025 00:00:00 GMT"}, asked_s=clocks.passed_s)
    assert clocks.are_doubted()
    clocks.wait(0.9)
    clocks.clock.heard_headers({"date": DATE}, asked_s=clocks.passed_s)
    assert clocks.are_doubted(), "many answers in a second are not all looked at"
    clocks.wait(0.1)
    clocks.clock.heard_headers({"date": DATE}, asked_s=clocks.passed_s)
    assert not clocks.are_doubted()


def test_a_leap_of_the_stores_time_is_counted_though_it_comes_within_a_second_of_the_steady_clock() -> None:
    """A virtual machine was set back with its memory: all of its clocks go on from there."""
    clocks = Clocks()
    clocks.clock.heard_headers({"date": DATE}, asked_s=clocks.passed_s)
    for minutes in range(4, 60, 4):
        clocks.wait(240)
        clocks.clock.heard_headers({"date": f"Thu, 01 Jan 2026 00:{minutes:02}:00 GMT"}, asked_s=clocks.passed_s)
    assert clocks.clock.leaps == 0, "as much time has passed here as well"
    clocks.wait(0.1)
    for _ in range(3):
        clocks.clock.heard_headers({"date": "Thu, 01 Jan 2026 04:00:00 GMT"}, asked_s=clocks.passed_s)
    assert clocks.clock.leaps == 1
    clocks.wait(10)
    clocks.clock.heard_headers({"date": "Thu, 01 Jan 2026 04:00:10 GMT"}, asked_s=clocks.passed_s)
    leaps = clocks.clock.leaps
    clocks.wait(10)
    clocks.clock.heard_headers({"date": "Thu, 01 Jan 2026 03:00:20 GMT"}, asked_s=clocks.passed_s)
    assert clocks.clock.leaps == leaps, "a clock that goes back is none"


def test_a_silence_of_minutes_counts_as_a_leap() -> None:
    """A virtual machine was set back with its memory, and its steady clock was set to the host's."""
    clocks = Clocks()
    clocks.clock.heard_headers({"date": DATE}, asked_s=clocks.passed_s)
    clocks.wait(7_200)
    clocks.clock.heard_headers({"date": "Thu, 01 Jan 2026 02:00:00 GMT"}, asked_s=clocks.passed_s)
    assert clocks.clock.leaps == 1


def test_an_answer_that_takes_long_is_no_leap_of_the_stores_time() -> None:
    clocks = Clocks()
    asked_s = clocks.passed_s
    clocks.wait(3_600)
    clocks.clock.heard_headers({"date": DATE}, asked_s=asked_s)
    clocks.wait(1)
    clocks.clock.heard_headers({"date": "Thu, 01 Jan 2026 01:00:01 GMT"}, asked_s=clocks.passed_s)
    assert clocks.clock.leaps == 0


@given(st.integers(-2 * DIFFERENCE_MS_MAX, 2 * DIFFERENCE_MS_MAX), st.integers(0, 2_000), st.integers(0, 700))
def test_the_quick_answer_is_that_of_the_whole_reading(ahead_ms: int, latency_ms: int, since_answered_s: int) -> None:
    clocks = Clocks()
    clocks.clock.heard(NOW, asked_s=clocks.passed_s - latency_ms / 1000)
    clocks.wait(since_answered_s)
    clocks.wall_ms += ahead_ms
    reading = clocks.clock.reading()
    assert (clocks.clock.now_ms(), clocks.clock.stamp_ms()) == (reading.now_ms, reading.stamp_ms)


@pytest.mark.parametrize(
    "headers", [{}, {"date": ""}, {"date": "yesterday"}, {"date": "Wed, 31 Dec 2025 00:00:00 GMT", "age": "9"}]
)
def test_answers_without_a_date_or_out_of_a_cache_say_nothing(headers: dict[str, str]) -> None:
    clocks = Clocks()
    clocks.clock.heard_headers(headers, asked_s=clocks.passed_s)
    assert clocks.clock.reading().store is None


def test_the_steady_clock_goes_on() -> None:
    assert steady_s() <= steady_s()
