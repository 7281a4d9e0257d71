"""When a segment is flushed: at once while the broker is quiet, after linger_ms at the latest, and never beyond the budget."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.settings import SegmentSettings
from segments.wal.flush_policy import LARGE_BYTES, QUIET_S, FlushPolicy, FlushState

NOTHING = FlushState(full_segments=0, open_since_s=None, in_flight=0, closing=False)
SETTINGS = SegmentSettings(linger_ms=100, puts_per_second_max=20, puts_in_flight_max=4)


def exhausted_rule(settings: SegmentSettings, *, now_s: float) -> FlushPolicy:
    """One whose budget was spent just now."""
    rule = FlushPolicy(settings)
    for _ in range(100):
        rule.flushed(now_s=now_s)
    return rule


def test_nothing_is_flushed_while_there_is_nothing() -> None:
    assert FlushPolicy(SETTINGS).due_at_s(NOTHING, now_s=10) is None
    assert FlushPolicy(SETTINGS).due_at_s(NOTHING._replace(closing=True), now_s=10) is None


def test_a_quiet_broker_flushes_at_once() -> None:
    assert FlushPolicy(SETTINGS).due_at_s(NOTHING._replace(open_since_s=10), now_s=10) == 10


def test_a_bucket_that_is_not_well_gets_nothing_before_its_time() -> None:
    spared = NOTHING._replace(open_since_s=10, spared=True)
    assert FlushPolicy(SETTINGS).due_at_s(spared, now_s=10) == pytest.approx(10.1)
    assert FlushPolicy(SETTINGS).due_at_s(spared._replace(waited_for=True), now_s=10) == 10, "but for who waits"


def test_while_a_put_is_in_flight_batches_gather_for_linger_ms() -> None:
    assert FlushPolicy(SETTINGS).due_at_s(NOTHING._replace(open_since_s=10, in_flight=1), now_s=10.03) == pytest.approx(10.1)


def test_a_full_segment_leaves_at_once_whatever_is_in_flight_and_whatever_the_budget_says() -> None:
    state = FlushState(full_segments=1, open_since_s=10, in_flight=3, closing=False)
    assert exhausted_rule(SETTINGS, now_s=10).due_at_s(state, now_s=10) == 10


@pytest.mark.parametrize("closing", [False, True])
def test_with_all_flushes_in_flight_every_batch_waits_for_one_to_land(closing: bool) -> None:
    state = FlushState(full_segments=2, open_since_s=1, in_flight=4, closing=closing)
    assert FlushPolicy(SETTINGS).due_at_s(state, now_s=10) is None


def test_closing_does_not_linger() -> None:
    state = FlushState(full_segments=0, open_since_s=10, in_flight=1, closing=True)
    assert exhausted_rule(SETTINGS, now_s=10).due_at_s(state, now_s=10) == 10


def test_batches_that_a_handover_waits_for_do_not_linger_but_wait_for_a_free_flush() -> None:
    state = FlushState(full_segments=0, open_since_s=10, in_flight=1, closing=False, waited_for=True)
    assert exhausted_rule(SETTINGS, now_s=10).due_at_s(state, now_s=10) == 10
    assert FlushPolicy(SETTINGS).due_at_s(state._replace(in_flight=4), now_s=10) is None


def test_without_budget_even_a_quiet_broker_lingers() -> None:
    rule = exhausted_rule(SETTINGS, now_s=10)
    assert rule.due_at_s(NOTHING._replace(open_since_s=10), now_s=10) == pytest.approx(10.1)


def test_the_budget_comes_back_by_puts_per_second_and_is_worth_a_flush_before_linger_is_over() -> None:
    rule = FlushPolicy(SETTINGS)
    for _ in range(5):
        rule.flushed(now_s=10)
    assert rule.due_at_s(NOTHING._replace(open_since_s=10), now_s=10) == pytest.approx(10.05)


def test_a_budget_of_zero_leaves_linger_alone() -> None:
    rule = FlushPolicy(SegmentSettings(linger_ms=100, puts_per_second_max=0))
    assert rule.due_at_s(NOTHING._replace(open_since_s=10), now_s=10) == pytest.approx(10.1)


def test_a_large_segment_that_no_producer_adds_to_leaves_without_budget() -> None:
    large = NOTHING._replace(open_since_s=10, open_bytes=LARGE_BYTES, newest_at_s=10.02)
    assert exhausted_rule(SETTINGS, now_s=10).due_at_s(large, now_s=10.02) == pytest.approx(10.02 + QUIET_S)
    small = large._replace(open_bytes=LARGE_BYTES - 1)
    assert exhausted_rule(SETTINGS, now_s=10).due_at_s(small, now_s=10.02) == pytest.approx(10.1)


def test_a_large_segment_that_no_producer_adds_to_waits_for_what_is_in_flight_and_for_an_unhealthy_bucket() -> None:
    large = NOTHING._replace(open_since_s=10, open_bytes=LARGE_BYTES, newest_at_s=10.02)
    assert FlushPolicy(SETTINGS).due_at_s(large._replace(in_flight=1), now_s=10.03) == pytest.approx(10.1)
    assert FlushPolicy(SETTINGS).due_at_s(large._replace(spared=True), now_s=10.03) == pytest.approx(10.1)


def test_a_budget_of_zero_lets_large_segments_linger_too() -> None:
    rule = FlushPolicy(SegmentSettings(linger_ms=100, puts_per_second_max=0))
    large = NOTHING._replace(open_since_s=10, open_bytes=LARGE_BYTES, newest_at_s=10)
    assert rule.due_at_s(large, now_s=10.05) == pytest.approx(10.1)


def test_linger_of_zero_flushes_at_once_beside_what_is_in_flight() -> None:
    rule = exhausted_rule(SegmentSettings(linger_ms=0, puts_per_second_max=0), now_s=10)
    assert rule.due_at_s(NOTHING._replace(open_since_s=10, in_flight=3), now_s=10) <= 10  # type: ignore[operator]


# ── driven through random times ─────────────────────────────────────────────────────────────────────────────────────────


class Arrival(NamedTuple):
    # Since the arrival before.
    after_s: float
    # Whether the open segment is full then.
    fills: bool
    size_bytes: int = 0


class Flush(NamedTuple):
    at_s: float
    was_full: bool
    was_large: bool


def drive(settings: SegmentSettings, arrivals: list[Arrival], put_times_s: list[float]) -> list[Flush]:
    """Plays segments/wal/segment_writer.py without I/O, and checks at every step that no append waits too long.

    Returns what was flushed, and when.
    """
    rule, linger_s = FlushPolicy(settings), settings.linger_ms / 1000
    now_s, full, open_since_s, open_bytes, newest_at_s = 0.0, 0, None, 0, 0.0
    landings: list[float] = []
    flushes: list[Flush] = []
    coming = [*arrivals]
    next_arrival_s = coming[0].after_s if coming else float("inf")
    while coming or full or open_since_s is not None:
        state = FlushState(full, open_since_s, len(landings), closing=False, open_bytes=open_bytes, newest_at_s=newest_at_s)
        due_at_s = rule.due_at_s(state, now_s=now_s)
        if len(landings) >= settings.puts_in_flight_max:
            assert due_at_s is None
        elif full:
            assert due_at_s is not None
            assert due_at_s <= now_s
        elif open_since_s is not None:
            assert due_at_s is not None
            assert due_at_s <= max(now_s, open_since_s + linger_s)
        else:
            assert due_at_s is None
        if due_at_s is not None and due_at_s <= now_s:
            rule.flushed(now_s=now_s)
            flushes.append(Flush(now_s, was_full=full > 0, was_large=open_bytes >= LARGE_BYTES and now_s >= newest_at_s + QUIET_S))
            heapq.heappush(landings, now_s + put_times_s[len(flushes) % len(put_times_s)])
            if full:
                full -= 1
            else:
                open_since_s, open_bytes = None, 0
            continue
        now_s = min(next_arrival_s, landings[0] if landings else float("inf"), float("inf") if due_at_s is None else due_at_s)
        while landings and landings[0] <= now_s:
            heapq.heappop(landings)
        if coming and next_arrival_s <= now_s:
            arrival = coming.pop(0)
            if arrival.fills:
                full, open_since_s, open_bytes = full + 1, None, 0
            else:
                open_since_s = now_s if open_since_s is None else open_since_s
                open_bytes, newest_at_s = open_bytes + arrival.size_bytes, now_s
            next_arrival_s = now_s + coming[0].after_s if coming else float("inf")
    return flushes


gaps_s = st.one_of(st.just(0.0), st.floats(0.0001, 0.05), st.floats(0.05, 2))


@given(
    linger_ms=st.sampled_from([0, 5, 100, 250]),
    puts_per_second_max=st.sampled_from([0, 0.5, 3, 20]),
    puts_in_flight_max=st.integers(1, 4),
    arrivals=st.lists(
        st.builds(
            Arrival,
            after_s=gaps_s,
            fills=st.sampled_from([False, False, False, True]),
            size_bytes=st.sampled_from([0, LARGE_BYTES // 3, LARGE_BYTES]),
        ),
        max_size=60,
    ),
    put_times_s=st.lists(gaps_s, min_size=1, max_size=5),
)
def test_no_batch_waits_longer_than_linger_and_puts_stay_below_the_budget(
    linger_ms: float, puts_per_second_max: float, puts_in_flight_max: int, arrivals: list[Arrival], put_times_s: list[float]
) -> None:
    settings = SegmentSettings(linger_ms=linger_ms, puts_per_second_max=puts_per_second_max, puts_in_flight_max=puts_in_flight_max)
    flushes = drive(settings, arrivals, put_times_s)
    if linger_ms == 0:
        return
    early = [flush.at_s for flush in flushes if not flush.was_full and not flush.was_large]
    per_second_max = max(puts_per_second_max, 1000 / linger_ms)
    burst = max(1.0, puts_per_second_max / 4) + 1
    for first, began_s in enumerate(early):
        for count, at_s in enumerate(early[first:], start=1):
            assert count <= per_second_max * (at_s - began_s) + burst + 1e-6


def test_a_steady_trickle_costs_as_many_puts_as_the_budget_allows_and_no_more() -> None:
    """A batch each 10 ms for 20 s, each PUT takes 20 ms: 20 PUTs per second by budget, where linger alone would make it 10."""
    flushes = drive(SETTINGS, [Arrival(0.01, fills=False)] * 2000, [0.02])
    assert 380 <= len(flushes) <= 20 * 20 + 6
