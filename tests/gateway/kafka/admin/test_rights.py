"""A client may change what it has the right to; each refusal stands in the place of its resource, and in the audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.access.settings import AccessSettings
from gateway.kafka.access.authorized_operations import CREATE, DESCRIBE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE, WRITE
from gateway.kafka.protocol.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from gateway.kafka.protocol.hot_messages import (
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from gateway.settings import GatewaySettings
from metadata.access.acl import Acl
from tests.kit.gateway.kafka_admin import KafkaAdmin, allow, authenticate, with_admin
from tests.kit.metadata.stores import until
from tests.kit.segments.batches import batch_of

pytestmark = pytest.mark.slow
TOPIC, BROKER = 2, 4
ADMIN_KEY = "tlk_" + "ad" * 8 + "_" + "5e" * 32


def with_rights(tmp_path: Path, scenario: Any, *rights: tuple[str, str, str], gateway: GatewaySettings | None = None) -> None:
    """Runs the scenario as alice, who has these rights."""
    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN_KEY + "\n")
    access = AccessSettings(authentication=True, admin_key_file=key_file, audit_log=str(tmp_path / "audit.jsonl"))

    async def authenticated(admin: KafkaAdmin) -> None:
        await allow(admin, "alice", *rights)
        await authenticate(admin, "alice")
        await scenario(admin)

    with_admin(tmp_path, authenticated, access=access, gateway=gateway)


async def audited(admin: KafkaAdmin, tmp_path: Path) -> list[tuple[str, str, list[str], bool]]:
    """Call, outcome, resources and validate_only of each line about alice."""
    assert admin.broker.guard is not None
    audit = admin.broker.guard.audit
    assert audit is not None
    await until(lambda: not audit.waiting)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    return sorted(
        (line["call"], line["outcome"], line.get("resources", []), line.get("validate_only", False))
        for line in lines
        if line.get("principal") == "alice" and line["listener"] == "kafka"
    )


def test_topics_are_changed_where_the_client_may_and_the_audit_log_has_each(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        names = ["mine", "theirs", "bad name"]
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics, validate_only=True))
        assert [each.error_code for each in answer.topics] == [0, 29, 29]
        answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics))
        assert [each.error_code for each in answer.topics] == [0, 29, 29]
        theirs = await admin.broker.create_topic("theirs", 1)
        answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics))
        assert [each.error_code for each in answer.topics] == [36, 29, 29]

        grown = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names[:2]]
        answer = await admin.ask("CreatePartitions", 3, CreatePartitionsRequest(topics=grown))
        assert [each.error_code for each in answer.results] == [0, 29]

        records = [DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(offset=0)] * 2) for name in names[:2]]
        answer = await admin.ask("DeleteRecords", 2, DeleteRecordsRequest(topics=records))
        assert [[each.error_code for each in topic.partitions] for topic in answer.topics] == [[0, 0], [29, 29]]

        deleted = [
            DeleteTopicState(name="theirs"),
            DeleteTopicState(topic_id=bytes.fromhex(theirs.id)),
            DeleteTopicState(name="mine"),
        ]
        answer = await admin.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=deleted))
        assert [(each.name, each.error_code) for each in answer.responses] == [("theirs", 29), (None, 29), ("mine", 0)]
        assert answer.responses[1].error_message is None

        mine, others, bad = ["topic:mine"], ["topic:theirs"], ["topic:bad name"]
        assert await audited(admin, tmp_path) == sorted(
            [
                ("CreateTopics", "ok", mine, True),
                ("CreateTopics", "PERMISSION_DENIED", others, True),
                ("CreateTopics", "PERMISSION_DENIED", bad, True),
                ("CreateTopics", "ok", mine, False),
                ("CreateTopics", "PERMISSION_DENIED", others, False),
                ("CreateTopics", "PERMISSION_DENIED", bad, False),
                ("CreateTopics", "ALREADY_EXISTS", mine, False),
                ("CreateTopics", "PERMISSION_DENIED", others, False),
                ("CreateTopics", "PERMISSION_DENIED", bad, False),
                ("CreatePartitions", "ok", mine, False),
                ("CreatePartitions", "PERMISSION_DENIED", others, False),
                ("DeleteRecords", "ok", mine, False),
                ("DeleteRecords", "PERMISSION_DENIED", others, False),
                ("DeleteTopics", "PERMISSION_DENIED", others, False),
                ("DeleteTopics", "PERMISSION_DENIED", others, False),
                ("DeleteTopics", "ok", mine, False),
            ]
        )

    with_rights(tmp_path, scenario, ("admin", "topic", "mine"), ("describe", "topic", "mine"))


def test_a_client_that_may_not_describe_a_topic_is_not_shown_what_it_has_created(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        denied = Acl(principal="alice", operation="describe", resource="topic", name="hidden", effect="deny")
        await admin.broker.access.add_acl(denied, validate_only=False)
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("hidden", "shown")]
        hidden, shown = (await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics))).topics
        assert (hidden.error_code, shown.error_code) == (0, 0)
        assert (hidden.topic_config_error_code, hidden.configs, hidden.num_partitions) == (29, None, -1)
        assert (shown.topic_config_error_code, len(shown.configs), shown.num_partitions) == (0, 33, 1)

    with_rights(tmp_path, scenario, ("admin", "topic", "*"))


def test_configs_are_described_and_altered_where_the_client_may(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        for name in ("mine", "theirs"):
            await admin.broker.create_topic(name, 1)
        named = [(TOPIC, "mine"), (TOPIC, "theirs"), (TOPIC, "missing"), (BROKER, "0")]
        described = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in named
        ]
        answer = await admin.ask("DescribeConfigs", 4, DescribeConfigsRequest(resources=described))
        assert [(each.error_code, bool(each.configs)) for each in answer.results] == [
            (0, True),
            (29, False),
            (29, False),
            (31, False),
        ]
        altered = [AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name) for kind, name in named]
        answer = await admin.ask("AlterConfigs", 2, AlterConfigsRequest(resources=altered))
        assert [each.error_code for each in answer.responses] == [0, 29, 29, 31]
        changed = [
            IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name) for kind, name in named
        ]
        answer = await admin.ask("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest(resources=changed))
        assert [each.error_code for each in answer.responses] == [0, 29, 29, 31]
        assert ("AlterConfigs", "ok", ["topic:mine"], False) in await audited(admin, tmp_path)
        assert ("IncrementalAlterConfigs", "PERMISSION_DENIED", ["cluster:cluster"], False) in await audited(admin, tmp_path)

    with_rights(tmp_path, scenario, ("admin", "topic", "mine"), ("describe", "topic", "mine"))


def test_a_producer_that_may_create_its_topics_writes_to_them_and_changes_none(tmp_path: Path) -> None:
    """It has what `kafka-acls --producer --resource-pattern-type prefixed` adds."""

    async def scenario(admin: KafkaAdmin) -> None:
        await allow(
            admin, "alice", *((operation, "topic", "team-") for operation in ("write", "describe", "create")), pattern="prefix"
        )
        name = "team-orders"
        topics = [CreatableTopic(name=each, num_partitions=1, replication_factor=1) for each in (name, "orders")]
        answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics))
        assert [each.error_code for each in answer.topics] == [0, 29]
        assert len(answer.topics[0].configs) > 0, "the client may describe it"

        data = PartitionProduceData(index=0, records=memoryview(batch_of(b"first")))
        wanted = [TopicProduceData(name=name, partition_data=[data])]
        answer = await admin.ask("Produce", 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=wanted))
        assert [each.error_code for topic in answer.responses for each in topic.partition_responses] == [0]

        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], include_topic_authorized_operations=True)
        [described] = (await admin.ask("Metadata", 12, asked)).topics
        allowed = [WRITE, CREATE, DESCRIBE, DESCRIBE_CONFIGS]
        assert described.topic_authorized_operations == sum(1 << operation for operation in allowed)

        answer = await admin.ask("DeleteTopics", 6, DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]))
        assert [each.error_code for each in answer.responses] == [29]
        altered = [AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name=name)]
        answer = await admin.ask("AlterConfigs", 2, AlterConfigsRequest(resources=altered))
        assert [each.error_code for each in answer.responses] == [29]
        changed = [IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name=name)]
        answer = await admin.ask("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest(resources=changed))
        assert [each.error_code for each in answer.responses] == [29]
        grown = [CreatePartitionsTopic(name=name, count=2, assignments=None)]
        answer = await admin.ask("CreatePartitions", 3, CreatePartitionsRequest(topics=grown))
        assert [each.error_code for each in answer.results] == [29]
        records = [DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(offset=0)])]
        answer = await admin.ask("DeleteRecords", 2, DeleteRecordsRequest(topics=records))
        assert [each.error_code for topic in answer.topics for each in topic.partitions] == [29]

    with_rights(tmp_path, scenario)


@pytest.mark.parametrize("pattern", ["cluster", "prefix"])
def test_a_right_to_create_is_none_to_look(tmp_path: Path, pattern: str) -> None:
    """On the cluster, and on all topics. As in Kafka, Create does not imply Describe."""

    async def scenario(admin: KafkaAdmin) -> None:
        if pattern == "cluster":
            await allow(admin, "alice", ("create", "cluster", "cluster"))
        else:
            await allow(admin, "alice", ("create", "topic", "o"), pattern="prefix")
        secret = Acl(principal="alice", operation="create", resource="topic", name="orders-secret", effect="deny")
        await admin.broker.access.add_acl(secret, validate_only=False)
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("orders", "orders-secret")]
        answer = await admin.ask("CreateTopics", 7, CreateTopicsRequest(topics=topics))
        assert [each.error_code for each in answer.topics] == [0, 29]
        assert (answer.topics[0].topic_config_error_code, answer.topics[0].configs) == (29, None)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], include_cluster_authorized_operations=True)
        answer = await admin.ask("Metadata", 10, asked)
        assert [topic.error_code for topic in answer.topics] == [29]
        of_cluster = {IDEMPOTENT_WRITE, CREATE} if pattern == "cluster" else {IDEMPOTENT_WRITE}
        assert answer.cluster_authorized_operations == sum(1 << operation for operation in of_cluster)

    with_rights(tmp_path, scenario)


@pytest.mark.parametrize("is_admin", [False, True])
def test_a_request_about_the_cluster_needs_a_right_to_it(tmp_path: Path, is_admin: bool) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        await admin.broker.create_topic("orders", 1)
        answer = await admin.ask("DescribeLogDirs", 4, DescribeLogDirsRequest(topics=None))
        assert (answer.error_code, len(answer.results)) == ((0, 1) if is_admin else (31, 0))
        answer = await admin.ask("ListConfigResources", 1, ListConfigResourcesRequest())
        assert (answer.error_code, len(answer.config_resources)) == ((0, 2) if is_admin else (31, 0))
        asked = [ElectLeadersRequestTopicPartitions(topic="orders", partitions=[0])]
        answer = await admin.ask("ElectLeaders", 2, ElectLeadersRequest(topic_partitions=asked))
        codes = [each.error_code for topic in answer.replica_election_results for each in topic.partition_result]
        assert (answer.error_code, codes) == ((0, [84]) if is_admin else (31, [31]))
        answer = await admin.ask("ListPartitionReassignments", 0, ListPartitionReassignmentsRequest())
        assert answer.error_code == 0
        broker = DescribeConfigsResource(resource_type=BROKER, resource_name="", configuration_keys=None)
        answer = await admin.ask("DescribeConfigs", 4, DescribeConfigsRequest(resources=[broker]))
        assert [each.error_code for each in answer.results] == ([0] if is_admin else [31])

    rights = [("admin", "cluster", "cluster"), ("describe", "cluster", "cluster")] if is_admin else []
    with_rights(tmp_path, scenario, ("describe", "topic", "orders"), *rights)


def test_topics_that_metadata_creates_are_in_the_audit_log(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        asked = [MetadataRequestTopic(name=name) for name in ("mine", "others")]
        answer = await admin.ask("Metadata", 12, MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        assert [topic.error_code == 0 for topic in answer.topics] == [True, False]
        assert await audited(admin, tmp_path) == [
            ("Metadata", "PERMISSION_DENIED", ["topic:others"], False),
            ("Metadata", "ok", ["topic:mine"], False),
        ]

    rights = [("create", "topic", "mine"), ("write", "topic", "mine")]
    with_rights(tmp_path, scenario, *rights, gateway=GatewaySettings(kafka_auto_create_topics=True))
