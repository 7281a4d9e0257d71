from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.proto.admin_pb2 import BrokerUsage, BucketRequests, TopicUsage
from gateway.topics.names import partition_of
from gateway.topics.usage.cluster_usage import added_up
from metadata.model import TopicId
from segments.log.session_log import Acks
from segments.records.batch import parse_header
from tests.kit.gateway.broker_cluster import Cluster, with_cluster
from tests.kit.segments.batches import batch_of

ORDERS = TopicId("a" * 32)


def test_the_figures_of_a_topic_are_the_sums_of_its_leaders() -> None:
    usages = {
        "b1": BrokerUsage(
            uptime_seconds=100,
            segments=50,
            topics=[
                TopicUsage(
                    topic_id=ORDERS, partitions=2, segment_bytes=10, parquet_bytes=100, bytes_in_per_second=1, history=[1, 2, 3]
                )
            ],
            requests=[BucketRequests(operation="create", kind="segments", requests=50, bytes=1_000)],
        ),
        "b2": BrokerUsage(
            uptime_seconds=10,
            topics=[TopicUsage(topic_id=ORDERS, partitions=1, segment_bytes=5, bytes_in_per_second=2, history=[10])],
            requests=[BucketRequests(operation="create", kind="segments", requests=10, bytes=10)],
            compacts=True,
        ),
    }
    found = added_up(usages, {"b3": "it is away"})
    orders = found.topics[ORDERS]
    assert (orders.partitions, orders.bytes, orders.bytes_in_per_second) == (3, 115, 3)
    assert list(orders.history) == [1, 2, 13], "the newest minutes belong together"
    assert found.requests[0].requests == 60
    assert found.requests[0].requests_per_second == 1.5
    assert (found.uptime_min_s, found.uptime_max_s, found.compacts) == (10, 100, True)
    assert list(found.segments_per_second) == [0.5, 0]
    assert found.silent == {"b3": "it is away"}


@pytest.mark.slow
def test_every_broker_answers_for_the_partitions_of_all_and_names_those_that_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.brokers[0].create_topic("orders", 4)
        for number in range(4):
            batch = batch_of(b"x" * 100)
            log = await cluster.led(partition_of(topic, number))
            await log.produce(partition_of(topic, number), batch, parse_header(batch), acks=Acks.ALL)
        found = [await broker.usage.cluster.read() for broker in cluster.brokers]
        for usage in found:
            assert usage.topics[topic.id].partitions == 4
            assert usage.topics[topic.id].segment_bytes > 400
            assert usage.topics[topic.id].bytes_in_per_second > 0
            assert set(usage.brokers) == {"broker-0", "broker-1"}
            writes = next(made for made in usage.requests if (made.operation, made.kind) == ("create", "segments"))
            assert writes.requests >= 2
        asked = cluster.brokers[0]
        assert await asked.usage.cluster.read() is found[0], "it is kept for some seconds"

        async def silent() -> BrokerUsage:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr("gateway.topics.usage.cluster_usage.KEPT_S", 0.0)
        monkeypatch.setattr("gateway.topics.usage.cluster_usage.ASK_TIMEOUT_S", 0.2)
        asked.usage.cluster._kept = None
        monkeypatch.setattr(cluster.brokers[1].usage.here, "usage", silent)
        usage = await asked.usage.cluster.read()
        assert list(usage.silent) == ["broker-1"]
        assert 0 < usage.topics[topic.id].partitions < 4

    with_cluster(tmp_path, scenario)
