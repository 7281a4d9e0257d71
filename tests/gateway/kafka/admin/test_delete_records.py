"""DeleteRecords: what leaders answer, and what another broker answers on each kind of listener."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.admin_messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from metadata.model import Partition, TopicPartition
from tests.kit.gateway.kafka_admin import KafkaAdmin, address, produce, with_admin
from tests.kit.gateway.kafka_client import KafkaTestClient, kafka_client
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow


async def delete(client: KafkaTestClient, version: int, *asked: tuple[str, int, int]) -> list[tuple[int, int]]:
    """(low watermark, error code) of each, which is a topic of its own in the request."""
    topics = [
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=number, offset=offset)])
        for name, number, offset in asked
    ]
    answer: Any = await client.ask("DeleteRecords", version, DeleteRecordsRequest(topics=topics, timeout_ms=30_000))
    return [(each.partitions[0].low_watermark, each.partitions[0].error_code) for each in answer.topics]


async def written(admin: KafkaAdmin) -> TopicPartition:
    """A topic with ten records in its first partition."""
    topic = await admin.broker.create_topic("orders", 1)
    await produce(admin.cluster, topic, batch_of(*(b"%d" % number for number in range(10))))
    return TopicPartition(topic.id, Partition(0))


@pytest.mark.parametrize("version", range(3))
def test_the_log_starts_where_the_client_says_in_each_version(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        at = await written(admin)
        assert await delete(admin.client, version, ("orders", 0, 4)) == [(4, 0)]
        assert await delete(admin.client, version, ("orders", 0, 2)) == [(4, 0)]
        assert (await admin.broker.cluster_log.bounds(at)).log_start_offset == 4
        assert await delete(admin.client, version, ("orders", 0, -1)) == [(10, 0)]

    with_admin(tmp_path, scenario)


def test_each_partition_that_is_refused_has_its_own_error(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        at = await written(admin)
        partitions = [DeleteRecordsPartition(partition_index=number, offset=offset) for number, offset in ((0, 3), (5, 0))]
        topic = DeleteRecordsTopic(name="orders", partitions=partitions)
        answer = await admin.ask("DeleteRecords", 2, DeleteRecordsRequest(topics=[topic]))
        found = [(each.partition_index, each.low_watermark, each.error_code) for each in answer.topics[0].partitions]
        assert found == [(0, 3, 0), (5, -1, 3)]
        wrong = [("orders", 0, 11), ("orders", 0, -2), ("missing", 0, 0), ("bad name", 0, 0)]
        assert await delete(admin.client, 2, *wrong) == [(-1, 1), (-1, 1), (-1, 3), (-1, 17)]
        assert (await admin.broker.cluster_log.bounds(at)).log_start_offset == 3

    with_admin(tmp_path, scenario)


def test_a_broker_that_does_not_lead_sends_the_client_away_or_forwards(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        at = await written(admin)
        other = admin.cluster.other(at)
        async with kafka_client(address(other)) as direct, kafka_client(address(other, "forward")) as forward:
            assert await delete(direct, 2, ("orders", 0, 4)) == [(-1, 6)]
            assert (await admin.broker.cluster_log.bounds(at)).log_start_offset == 0
            assert await delete(forward, 2, ("orders", 0, 4)) == [(4, 0)]

    with_admin(tmp_path, scenario, count=2)
