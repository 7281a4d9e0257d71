"""How far ahead of the broker's clock records may be dated."""

from __future__ import annotations

import time

import pytest

from gateway.records.append import AppendTarget, check_dates
from gateway.records.partitioning import CheckedBatch
from metadata.errors import InvalidTimestamp
from metadata.model import Partition, TopicId, TopicPartition
from metadata.topics.settings import INT64_MAX, TopicSettings
from metadata.topics.topic import Topic
from segments.records.batch import parse_header
from tests.kit.segments.batches import batch_of

HOUR_MS = 3_600_000
TOPIC = Topic(id=TopicId("t" * 22), name="orders", partition_count=1, settings={}, created_at_ms=0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def target(*, after_max_ms: int = TopicSettings().message_timestamp_after_max_ms, log_append_time: bool = False) -> AppendTarget:
    return AppendTarget(TOPIC, 1 << 20, log_append_time, None if log_append_time else after_max_ms, 1 << 20)


def dated(*timestamps_ms: int) -> CheckedBatch:
    batch = batch_of(*(b"a" for _ in timestamps_ms), timestamps_ms=timestamps_ms)
    return CheckedBatch(TopicPartition(TOPIC.id, Partition(0)), batch, parse_header(batch))


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, -1_000_000_000_000, 0, HOUR_MS - 60_000])
def test_a_record_that_is_dated_within_the_hour_or_earlier_is_taken(ahead_ms: int) -> None:
    check_dates([dated(now_ms() + ahead_ms)], target())


def test_one_record_too_far_ahead_refuses_all_and_says_what_holds() -> None:
    far_ms = now_ms() + HOUR_MS + 60_000
    with pytest.raises(InvalidTimestamp) as reported:
        check_dates([dated(5), dated(5, far_ms, 7)], target())
    assert f"orders/0 is dated {far_ms} ms, " in reported.value.message
    assert reported.value.details["timestamp_ms"] == far_ms
    assert "orders takes records dated at most 3600000 ms ahead of the broker's clock" in reported.value.hint
    assert "tidelog topic alter orders --set message.timestamp.after.max.ms=" in reported.value.hint


def test_microseconds_are_no_milliseconds() -> None:
    with pytest.raises(InvalidTimestamp):
        check_dates([dated(time.time_ns() // 1000)], target())


def test_a_topic_may_take_any_date_and_one_with_log_append_time_does() -> None:
    check_dates([dated(2**62)], target(after_max_ms=INT64_MAX))
    check_dates([dated(2**62)], target(log_append_time=True))
