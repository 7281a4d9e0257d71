"""DescribeLogDirs, ElectLeaders and ListPartitionReassignments, as Kafka's tools send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.admin_messages import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from metadata.errors import NoLeader
from metadata.model import Partition, TopicPartition
from tests.kit.gateway.kafka_admin import KafkaAdmin, produce, with_admin
from tests.kit.gateway.kafka_client import KafkaTestClient
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow


async def sizes(client: KafkaTestClient, version: int = 4, topics: Any = None) -> tuple[Any, dict[tuple[str, int], int]]:
    answer = await client.ask("DescribeLogDirs", version, DescribeLogDirsRequest(topics=topics))
    [directory] = answer.results
    found = {(topic.name, each.partition_index): each.partition_size for topic in directory.topics for each in topic.partitions}
    return directory, found


@pytest.mark.parametrize("version", range(1, 5))
def test_the_bucket_is_the_one_directory_of_a_broker(tmp_path: Path, version: int) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        topic = await admin.broker.create_topic("orders", 2)
        await admin.broker.create_topic("others", 1)
        batch = batch_of(b"some", b"records")
        await produce(admin.cluster, topic, batch)
        directory, found = await sizes(admin.client, version)
        assert (directory.error_code, directory.log_dir) == (0, admin.broker.bucket_url)
        assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
        assert found == {("orders", 0): len(batch), ("orders", 1): 0, ("others", 0): 0}
        asked = [DescribableLogDirTopic(topic="orders", partitions=[0, 7]), DescribableLogDirTopic(topic="no", partitions=[0])]
        assert (await sizes(admin.client, version, asked))[1] == {("orders", 0): len(batch)}

    with_admin(tmp_path, scenario)


def test_describe_log_dirs_lists_only_partitions_that_the_broker_leads(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        topic = await admin.broker.create_topic("orders", 4)
        led = set()
        for number in range(4):
            at = TopicPartition(topic.id, Partition(number))
            await admin.cluster.led(at)
            if admin.cluster.leader(at) is admin.broker:
                led.add(("orders", number))
        assert 0 < len(led) < 4
        assert (await sizes(admin.client))[1].keys() == led

    with_admin(tmp_path, scenario, count=2)


def test_a_broker_between_two_sessions_says_that_its_directory_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        def log(_: object) -> None:
            raise NoLeader("there is no session")

        with monkeypatch.context() as patched:
            patched.setattr(type(admin.broker), "log", property(log))
            directory, found = await sizes(admin.client)
        assert (directory.error_code, found) == (56, {})

    with_admin(tmp_path, scenario)


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_ever_needed(tmp_path: Path, version: int) -> None:
    async def elect(admin: KafkaAdmin, topics: Any, election_type: int = 0) -> tuple[int, dict[tuple[str, int], int]]:
        request = ElectLeadersRequest(topic_partitions=topics, election_type=election_type)
        answer = await admin.ask("ElectLeaders", version, request)
        found = {
            (topic.topic, each.partition_id): each.error_code
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }
        return answer.error_code, found

    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 2)
        asked = [
            ElectLeadersRequestTopicPartitions(topic="orders", partitions=[0, 1, 2]),
            ElectLeadersRequestTopicPartitions(topic="missing", partitions=[0]),
        ]
        wanted = {("orders", 0): 84, ("orders", 1): 84, ("orders", 2): 3, ("missing", 0): 3}
        assert await elect(admin, asked) == (0, wanted)
        assert await elect(admin, None) == (0, {})
        if version >= 1:
            assert await elect(admin, asked[:1], 1) == (0, {at: code for at, code in wanted.items() if at[0] == "orders"})
            assert (await elect(admin, asked, 2))[0] == 42

    with_admin(tmp_path, scenario)


def test_no_partition_is_ever_reassigned(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        for topics in (None, [ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0])]):
            answer = await admin.ask("ListPartitionReassignments", 0, ListPartitionReassignmentsRequest(topics=topics))
            assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])

    with_admin(tmp_path, scenario)
