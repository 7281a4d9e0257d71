from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric

from gateway.telemetry import log_metrics
from gateway.telemetry.log_metrics import PartitionMetrics
from gateway.telemetry.registry import families
from metadata.errors import UnknownTopic
from metadata.model import Partition, TopicId, TopicPartition

ORDERS, GONE = TopicId("a" * 8), TopicId("b" * 8)


class Topics:
    def by_id(self, topic_id: TopicId) -> Any:
        if topic_id == GONE:
            raise UnknownTopic("it was just deleted")
        return SimpleNamespace(name="orders")

    def topics(self) -> Any:
        return (SimpleNamespace(name="orders", partition_count=3),)


def reported(*led_partitions: TopicPartition, broker_count: int | None = None) -> dict[str, Metric]:
    bounds = SimpleNamespace(high_watermark=9, log_start_offset=2, leader_epoch=4)
    led = {at: SimpleNamespace(log=bounds, runs=SimpleNamespace(size_bytes=50), history=None) for at in led_partitions}
    topics: Any = Topics()
    log: Any = SimpleNamespace(partitions=led)
    partitions = PartitionMetrics(topics)
    partitions.sample(log, broker_count=broker_count)
    return {family.name: family for family in families(partitions.measure())}


def of_orders(count: int) -> list[TopicPartition]:
    return [TopicPartition(ORDERS, Partition(number)) for number in range(count)]


def test_partitions_beyond_the_bound_are_omitted_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_metrics, "PARTITIONS_MAX", 20)
    found = reported(*of_orders(27))
    assert len(found["tidelog_partition_high_watermark"].samples) == 20
    assert found["tidelog_partitions_omitted"].samples[0].value == 7


def test_a_partition_of_a_topic_that_was_just_deleted_is_left_out() -> None:
    found = reported(TopicPartition(GONE, Partition(0)), *of_orders(1))
    samples = found["kafka_topic_partition_current_offset"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"topic": "orders", "partition": "0"}, 9)]


def test_cluster_wide_metrics_are_exported_by_the_controller_alone() -> None:
    assert not reported()["kafka_brokers"].samples
    assert not reported()["kafka_topic_partitions"].samples
    found = reported(broker_count=3)
    assert found["kafka_brokers"].samples[0].value == 3
    assert found["kafka_topic_partitions"].samples[0].value == 3
