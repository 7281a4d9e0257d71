from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.health import CALM_S, SAMPLE_MIN, WINDOW_S, HealthState, StoreHealth

HEALTHY, DEGRADED, UNAVAILABLE = HealthState


def after(outcomes: str, health: StoreHealth | None = None, *, from_s: float = 0.0, each_s: float = 0.1) -> StoreHealth:
    """`.` is a call that succeeded, `x` one that failed; one each `each_s`."""
    health = health or StoreHealth()
    for at, outcome in enumerate(outcomes):
        health.ended(failed=outcome == "x", now_s=from_s + at * each_s)
    return health


def test_a_bucket_without_calls_counts_as_healthy() -> None:
    assert StoreHealth().state(0.0) is HEALTHY


def test_one_failure_in_five_calls_changes_nothing() -> None:
    assert after("....x").state(1.0) is HEALTHY
    assert after("....x" * 20).state(10.0) is HEALTHY


def test_few_calls_say_nothing_even_if_all_of_them_fail() -> None:
    assert after("x" * (SAMPLE_MIN - 1)).state(1.0) is HEALTHY


def test_one_failure_in_three_calls_is_degraded() -> None:
    assert after("..x" * 5).state(2.0) is DEGRADED


def test_where_nearly_all_fail_the_bucket_is_unavailable() -> None:
    assert after("x" * SAMPLE_MIN).state(1.0) is UNAVAILABLE


def test_a_degraded_bucket_may_become_unavailable() -> None:
    health = after("..x" * 5)
    assert after("x" * 200, health, from_s=2.0).state(22.0) is UNAVAILABLE


def test_a_degraded_bucket_is_not_healthy_by_a_share_that_a_healthy_one_would_bear() -> None:
    health = after("..x" * 5)
    assert after("....x" * 60, health, from_s=2.0).state(32.0) is DEGRADED


def test_a_degraded_bucket_is_healthy_after_a_while_of_calm() -> None:
    health = after("..x" * 5)
    after("." * 50, health, from_s=2.0)
    assert health.state(7.0) is DEGRADED, "too soon"
    after("." * 100, health, from_s=7.0)
    assert health.state(2.0 + 2 * CALM_S) is HEALTHY


def test_three_calls_in_a_row_end_unavailable_and_then_it_is_watched_for_a_while() -> None:
    health = after("x" * 40)
    after("..", health, from_s=4.0)
    assert health.state(4.2) is UNAVAILABLE
    after(".", health, from_s=4.3)
    assert health.state(4.3) is DEGRADED, "what failed before it came back is not held against it"
    after("." * 200, health, from_s=4.4)
    assert health.state(25.0) is HEALTHY


def test_failures_from_before_the_window_are_forgotten() -> None:
    health = after("x" * 9)
    after("." * 9, health, from_s=WINDOW_S + 1.0)
    after("x", health, from_s=WINDOW_S + 2.0)
    assert health.state(WINDOW_S + 2.0) is HEALTHY


def test_a_bucket_without_calls_for_a_whole_window_counts_as_healthy_again() -> None:
    health = after("x" * 40)
    assert health.state(4.0) is UNAVAILABLE
    assert health.state(4.0 + WINDOW_S + 1) is HEALTHY


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=300))
def test_the_health_of_a_bucket_never_falls_after_a_success_or_rises_after_a_failure(outcomes: list[tuple[bool, float]]) -> None:
    health, now_s, order = StoreHealth(), 0.0, [HEALTHY, DEGRADED, UNAVAILABLE]
    for failed, pause_s in outcomes:
        now_s += pause_s
        before = order.index(health.state(now_s))
        health.ended(failed=failed, now_s=now_s)
        now = order.index(health.state(now_s))
        assert now >= before if failed else now <= before
