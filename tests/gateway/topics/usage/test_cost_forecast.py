from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.topics.usage.cluster_usage import RequestFigures
from gateway.topics.usage.cost_forecast import GIB, MONTH_S, CostBasis, CostSettings, CountedTopic, Prices, forecast, mean_bytes
from metadata.topics.settings import TopicSettings

DAY_MS = 86_400_000
PRICES = Prices(thousand_writes=0.005, thousand_reads=0.0004, gib_month=0.023)
SETTINGS = CostSettings(linger_ms=100, puts_per_second_max=20, compaction_due_age_ms=900_000, compaction_interval_ms=10_000)
NOTHING = CostBasis(PRICES, (), (), True, (), 0, SETTINGS)


def counted(name: str = "orders", *, stored: int = 0, rate: float = 0.0, partitions: int = 1, **settings: object) -> CountedTopic:
    return CountedTopic(name, stored, rate, partitions, TopicSettings(**settings))  # type: ignore[arg-type]


def made(operation: str, kind: str, per_second: float) -> RequestFigures:
    return RequestFigures(operation, kind, 1, 1, per_second, 1.0)


def test_an_empty_bucket_costs_nothing() -> None:
    found = forecast(NOTHING)
    assert (found.dollars, found.requests, found.changes) == (0, (), ())


@pytest.mark.parametrize(
    ("operation", "dollars"), [("create", 12.96), ("list", 12.96), ("get", 1.0368), ("tail", 1.0368), ("delete", 0)]
)
def test_requests_cost_what_s3_asks_for_them(operation: str, dollars: float) -> None:
    found = forecast(replace(NOTHING, requests=[made(operation, "segments", 1.0)]))
    assert found.requests[0].requests == 2_592_000
    assert found.dollars == pytest.approx(dollars)
    assert found.requests[0].is_measured


@pytest.mark.parametrize(
    ("topic", "gib"),
    [
        (counted(stored=100 * GIB, retention_ms=-1), 100),
        (counted(rate=GIB / 86_400, retention_ms=-1), 15),  # a GiB a day: 30 in the end
        (counted(stored=7 * GIB, rate=GIB / 86_400, retention_ms=7 * DAY_MS), 7),  # as much goes as comes
        (counted(stored=70 * GIB, retention_ms=7 * DAY_MS), 70 * 3.5 / 30),  # all of it goes within a week
        (counted(rate=GIB / 86_400, retention_ms=60 * DAY_MS), 15),
        (counted(stored=100 * GIB, rate=GIB, partitions=2, retention_ms=-1, retention_bytes=GIB), 2),
        (counted(stored=5 * GIB, rate=GIB, cleanup_policy="compact"), 5),
        (counted(stored=5 * GIB, rate=GIB, retention_ms=0), 0),
    ],
)
def test_the_storage_of_a_topic_follows_from_its_rate_and_its_retention(topic: CountedTopic, gib: float) -> None:
    assert mean_bytes(topic, MONTH_S) / GIB == pytest.approx(gib)
    found = forecast(replace(NOTHING, topics=[topic]))
    assert found.topics[0].storage_dollars == pytest.approx(gib * 0.023)


def test_topics_share_the_puts_of_segments_by_the_bytes_that_are_written() -> None:
    topics = [counted("a", rate=300), counted("b", rate=100), counted("c")]
    found = forecast(replace(NOTHING, requests=[made("create", "segments", 1.0), made("get", "parquet", 5.0)], topics=topics))
    assert [round(topic.request_dollars, 2) for topic in found.topics] == [9.72, 3.24, 0]


def test_a_compactor_that_no_broker_runs_is_estimated_and_said_to_be() -> None:
    basis = replace(NOTHING, compacts=False, segments_per_second=[2.0], topics=[counted(rate=1.0, partitions=3)])
    found = {(cost.operation, cost.kind): cost for cost in forecast(basis).requests}
    assert found["get", "segments"].requests == pytest.approx(4 * MONTH_S)
    assert found["create", "parquet"].requests == pytest.approx(3 * MONTH_S / 900)
    assert not any(cost.is_measured for cost in found.values())


def test_a_longer_linger_is_proposed_for_the_puts_that_it_saves() -> None:
    basis = replace(NOTHING, requests=[made("create", "segments", 12.0)], segments_per_second=[10.0, 2.0])
    [change] = [change for change in forecast(basis).changes if change.setting.startswith("linger_ms")]
    assert change.dollars_less == pytest.approx(6 * MONTH_S * 0.005 / 1000), "the quiet broker saves nothing"
    assert change.then == "250 ms, 4 a second"
    thrifty = replace(basis, settings=SETTINGS._replace(linger_ms=250, puts_per_second_max=4), segments_per_second=[4.0])
    assert not forecast(thrifty).changes


def test_a_shorter_retention_is_proposed_for_the_largest_topics() -> None:
    topics = [counted(f"t{size}", stored=size * GIB, rate=size * GIB / 86_400 / 7) for size in range(1, 6)]
    changes = [change for change in forecast(replace(NOTHING, topics=topics)).changes if change.setting == "retention.ms"]
    assert [change.topic for change in changes] == ["t5", "t4", "t3"]
    assert (changes[0].now, changes[0].then) == ("7 d", "3.5 d")
    assert changes[0].dollars_less == pytest.approx(5 * 0.023 / 2, rel=0.1)
    endless = counted(stored=GIB, rate=GIB / 86_400, retention_ms=-1)
    [change] = forecast(replace(NOTHING, topics=[endless])).changes
    assert (change.now, change.then) == ("no limit", "30 d")


def test_a_later_compaction_saves_at_most_what_it_decides() -> None:
    topics = [counted(rate=1.0, partitions=10)]
    requests = [made("create", "parquet", 10 / 900), made("create", "manifests", 10 / 900)]
    found = forecast(replace(NOTHING, requests=requests, topics=topics))
    [change] = [change for change in found.changes if change.setting == "compaction_due_age_ms"]
    assert (change.now, change.then) == ("15 min", "60 min")
    assert change.dollars_less == pytest.approx(found.request_dollars * 3 / 4)
    soon = replace(NOTHING, requests=requests, topics=topics, settings=SETTINGS._replace(compaction_due_age_ms=20_000))
    [change] = [change for change in forecast(soon).changes if change.setting == "compaction_due_age_ms"]
    assert (change.now, change.then) == ("20 s", "80 s")


amounts = st.integers(0, 1 << 50)
rates = st.floats(0, 1e9)
retentions = st.one_of(st.just(-1), st.integers(0, 400 * DAY_MS))


@st.composite
def topics(draw: st.DrawFn) -> CountedTopic:
    return counted(
        draw(st.text("abc", min_size=1, max_size=5)),
        stored=draw(amounts),
        rate=draw(rates),
        partitions=draw(st.integers(1, 100)),
        retention_ms=draw(retentions),
        retention_bytes=draw(st.one_of(st.just(-1), st.integers(0, 1 << 45))),
        cleanup_policy=draw(st.sampled_from(["delete", "compact", "compact,delete"])),
    )


@given(
    topics=st.lists(topics(), max_size=6),
    segments=st.lists(st.floats(0, 100), max_size=4),
    compacts=st.booleans(),
    other_bytes=amounts,
)
def test_costs_add_up_none_is_negative_and_no_change_saves_more_than_all(
    topics: list[CountedTopic], segments: list[float], compacts: bool, other_bytes: int
) -> None:
    requests = [made("create", "segments", sum(segments)), made("get", "parquet", 3.0)]
    found = forecast(CostBasis(PRICES, requests, segments, compacts, topics, other_bytes, SETTINGS))
    parts = sum(topic.storage_dollars for topic in found.topics) + found.other_storage_dollars + found.request_dollars
    assert found.dollars == pytest.approx(parts)
    assert all(cost.dollars >= 0 for cost in found.requests)
    assert all(topic.storage_dollars >= 0 and topic.request_dollars >= 0 for topic in found.topics)
    assert all(0 < change.dollars_less <= found.dollars * (1 + 1e-9) for change in found.changes)


@given(topic=topics(), longer=st.integers(1, 100 * DAY_MS), more=rates)
def test_a_longer_retention_and_more_traffic_never_cost_less(topic: CountedTopic, longer: int, more: float) -> None:
    held = topic.settings.retention_ms
    kept = topic._replace(settings=replace(topic.settings, retention_ms=-1 if held < 0 else held + longer))
    busier = topic._replace(bytes_in_per_second=topic.bytes_in_per_second + more)
    now = mean_bytes(topic, MONTH_S)
    assert mean_bytes(kept, MONTH_S) >= now * (1 - 1e-9)
    assert mean_bytes(busier, MONTH_S) >= now * (1 - 1e-9)
