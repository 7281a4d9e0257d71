"""Streams end in order after their connection surely received its GOAWAY, and before it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc.connection_ages import REMEMBERED_MAX, SPREAD, ConnectionAges, grace_given_s


@given(st.floats(1, 10_000), st.floats(0.1, 1_000), st.floats(0, 1))
def test_a_stream_ends_after_the_goaway_of_its_connection_and_before_the_cut(age_s: float, grace_s: float, at: float) -> None:
    began_s = 100.0
    reported_s = began_s + age_s * (1 - SPREAD + 2 * SPREAD * at)
    cut_s = reported_s + grace_given_s(age_s, grace_s)
    ends_s = ConnectionAges(age_s=age_s, grace_s=grace_s).ends_s("ipv4:10.0.0.7:5000", now_s=began_s)
    assert reported_s <= ends_s * (1 + 1e-9)
    assert ends_s <= cut_s - grace_s / 2


def test_later_streams_of_a_connection_end_with_the_first() -> None:
    ages = ConnectionAges(age_s=100, grace_s=10)
    assert [ages.ends_s("a", now_s=now_s) for now_s in (0, 50, 109)] == [pytest.approx(110)] * 3
    assert ages.ends_s("b", now_s=109) == pytest.approx(219)


def test_a_peer_that_returns_after_its_stream_ended_has_a_new_connection_age() -> None:
    ages = ConnectionAges(age_s=100, grace_s=10)
    ages.ends_s("a", now_s=0)
    ages.ended("a")
    assert ages.ends_s("a", now_s=111) == pytest.approx(221)
    assert ages.ends_s("b", now_s=500) == pytest.approx(610)
    assert ages.ends_s("a", now_s=500) == pytest.approx(610), "the port was given out again, long after"


def test_the_ages_that_are_remembered_are_bounded() -> None:
    ages = ConnectionAges(age_s=1e9, grace_s=10)
    for number in range(REMEMBERED_MAX + 50):
        ages.ends_s(str(number), now_s=number)
    assert len(ages._seen_s) <= REMEMBERED_MAX
