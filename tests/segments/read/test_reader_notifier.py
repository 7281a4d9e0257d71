"""Who waits is woken by what he waits for, and is forgotten when he has gone."""

from __future__ import annotations

from segments.read.reader_notifier import ReaderNotifier
from tests.kit.segments.batches import ORDERS, PAYMENTS


def test_news_of_a_partition_wake_those_who_wait_for_it_and_no_other() -> None:
    waiting = ReaderNotifier()
    with waiting.at([ORDERS, PAYMENTS]) as both, waiting.at([ORDERS]) as one:
        waiting.wake(PAYMENTS)
        assert (both.take(), one.take()) == ({PAYMENTS}, set())
        waiting.wake(ORDERS)
        assert (both.take(), one.take()) == ({ORDERS}, {ORDERS})
        assert (both.woken.is_set(), both.take()) == (True, set())


def test_nothing_is_kept_of_those_who_have_gone_whatever_they_asked_for_twice() -> None:
    waiting = ReaderNotifier()
    with waiting.at([ORDERS, ORDERS]):
        assert len(waiting) == 1
    assert len(waiting) == 0
    waiting.wake(ORDERS)
