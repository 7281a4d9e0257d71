from __future__ import annotations

from collections import Counter

import pytest

from gateway.topics.usage.topic_rates import SHOWN_TICKS, TICK_S, TICKS, TopicRates
from metadata.model import TopicId

ORDERS, SALES = TopicId("a" * 32), TopicId("b" * 32)
BOTH = {ORDERS, SALES}


class Traffic:
    """Rates, with a clock."""

    def __init__(self) -> None:
        self.written: Counter[TopicId] = Counter()
        self.read: Counter[TopicId] = Counter()
        self.now_s = 1_000.0
        self.rates = TopicRates(self.written, self.read, now_s=self.now_s)

    def tick(self, *, late: float = 1.0, **written: int) -> None:
        self.written[ORDERS] += written.get("orders", 0)
        self.now_s += TICK_S * late
        self.rates.tick(BOTH, now_s=self.now_s)

    def rate(self, topic: TopicId = ORDERS) -> tuple[float, float]:
        found = self.rates.rate(topic, now_s=self.now_s)
        return found.bytes_in_per_second, found.bytes_out_per_second


def test_a_rate_is_known_in_the_first_seconds_of_a_broker() -> None:
    traffic = Traffic()
    traffic.written[ORDERS] += 500
    traffic.read[ORDERS] += 1_000
    traffic.now_s += 10
    assert traffic.rate() == (50, 100)
    assert traffic.rate(SALES) == (0, 0)


def test_a_rate_is_the_mean_of_the_last_ticks_and_the_history_has_them_all() -> None:
    traffic = Traffic()
    for _ in range(2 * TICKS):
        traffic.tick(orders=600)
    for _ in range(SHOWN_TICKS):
        traffic.tick(orders=6_000)
    traffic.now_s += 1
    assert traffic.rate()[0] == pytest.approx(100, rel=0.01)
    history = traffic.rates.rate(ORDERS, now_s=traffic.now_s).history
    assert history == (10.0,) * (TICKS - SHOWN_TICKS) + (100.0,) * SHOWN_TICKS


def test_a_late_tick_spreads_its_bytes_over_the_ticks_that_it_missed() -> None:
    traffic = Traffic()
    traffic.tick(orders=60)
    traffic.tick(orders=180, late=3)
    assert traffic.rates.rate(ORDERS, now_s=traffic.now_s).history == (1.0, 1.0, 1.0, 1.0)


def test_topics_that_are_silent_or_deleted_are_forgotten() -> None:
    traffic = Traffic()
    traffic.written[SALES] += 1
    traffic.tick(orders=1)
    assert traffic.rates.topics() == BOTH
    for _ in range(TICKS):
        traffic.tick(orders=1)
    assert traffic.rates.topics() == {ORDERS}
    traffic.rates.tick({SALES}, now_s=traffic.now_s + TICK_S)
    assert len(traffic.rates) == 0
    assert not traffic.written, "counters of deleted topics are emptied as well"


def test_only_so_many_topics_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.topics.usage.topic_rates.TOPICS_MAX", 1)
    traffic = Traffic()
    traffic.written[SALES] += 1
    traffic.tick(orders=1)
    assert len(traffic.rates) == 1
