"""A repeated failure is logged once it lasts, and then at intervals."""

from __future__ import annotations

import logging

import pytest

from tidelog.transport.retry import FORGOTTEN_AFTER_S, LOG_AFTER_S, LOG_EVERY_S, OutageLog


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trouble(clock: Clock, caplog: pytest.LogCaptureFixture) -> OutageLog:
    caplog.set_level(logging.WARNING, "tidelog")
    return OutageLog(clock)


def fails(trouble: OutageLog, clock: Clock, for_s: float, every_s: float = 1.0) -> None:
    ends_s = clock.now_s + for_s
    while clock.now_s < ends_s:
        trouble.met("group g", ConnectionError("etcd is away"), began_s=clock.now_s)
        clock.now_s += every_s


def test_a_short_outage_is_not_logged(trouble: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        fails(trouble, clock, LOG_AFTER_S)
        trouble.over("group g")
    assert not caplog.messages


def test_a_long_outage_is_logged_periodically_and_at_its_end(
    trouble: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fails(trouble, clock, LOG_AFTER_S + 2 * LOG_EVERY_S)
    assert caplog.messages == [f"no answer for {s:.0f} s: group g: etcd is away; retrying" for s in (10, 70)]
    trouble.over("group g")
    trouble.over("group g")
    assert caplog.messages[2:] == ["answered again after 130 s: group g"]


def test_a_single_attempt_counts_from_its_beginning(trouble: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.now_s = 30.0
    trouble.met("group g", ConnectionError("etcd is away"), began_s=0.0)
    assert caplog.messages == ["no answer for 30 s: group g: etcd is away; retrying"]


def test_two_failures_without_an_attempt_between_them_are_two_outages(
    trouble: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.met("group g", ConnectionError("etcd is away"), began_s=clock.now_s)
    clock.now_s = FORGOTTEN_AFTER_S + 1
    trouble.met("group g", ConnectionError("etcd is away"), began_s=clock.now_s)
    assert not caplog.messages
