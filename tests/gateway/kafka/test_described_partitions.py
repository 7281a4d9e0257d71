"""DescribeTopicPartitions, which Java's admin client prefers to Metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.kafka.protocol.admin_messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsRequestTopicRequest
from tests.kit.gateway.kafka_admin import KafkaAdmin, with_admin

pytestmark = pytest.mark.slow


def test_lists_of_replicas_are_empty_and_never_null_for_clients_that_read_them(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 2)
        request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopicRequest(name="orders")])
        [topic] = (await admin.ask("DescribeTopicPartitions", 0, request)).topics
        assert [(each.eligible_leader_replicas, each.last_known_elr) for each in topic.partitions] == [([], []), ([], [])]

    with_admin(tmp_path, scenario)
