"""Lists the APIs of Kafka's protocol that a broker serves, with their versions and handlers. No I/O.

The versions are those of Apache Kafka 4, as far as they are implemented: clients are tested against these ranges (KIP-896). An
API that is missing here is not advertised, so clients do not call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.access.permissions import KAFKA_CALLS
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.access.acls import KafkaAcls
from gateway.kafka.access.client_quotas import KafkaClientQuotas
from gateway.kafka.access.scram_users import KafkaScramUsers
from gateway.kafka.admin.configs import KafkaConfigs
from gateway.kafka.admin.delete_records import KafkaDeleteRecords
from gateway.kafka.admin.replicas import KafkaReplicas
from gateway.kafka.admin.topics import KafkaTopics
from gateway.kafka.call import Handler, KafkaCall
from gateway.kafka.consumer_groups.descriptions import KafkaGroupDescriptions
from gateway.kafka.consumer_groups.heartbeats import KafkaHeartbeats
from gateway.kafka.fetch import KafkaFetch
from gateway.kafka.group_admin import KafkaGroupAdmin
from gateway.kafka.groups import KafkaGroups
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.list_offsets import KafkaOffsets
from gateway.kafka.listener_config import ListenerConfig
from gateway.kafka.metadata import KafkaMetadata
from gateway.kafka.producer_ids import KafkaProducerIds
from gateway.kafka.protocol.apis import APIS


def kafka_handlers(
    broker: BrokerApi, leaders: KafkaLeaders, waits: InterruptibleWaits, listeners: Sequence[ListenerConfig]
) -> Mapping[int, Handler]:
    """Returns the handlers by API key; requests.py adds Produce and ApiVersions. `listeners`: all of this broker."""
    fetch = KafkaFetch(broker, leaders, waits)
    offsets = KafkaOffsets(broker, leaders)
    metadata = KafkaMetadata(broker, leaders)
    groups = KafkaGroups(broker, leaders, waits)
    group_admin = KafkaGroupAdmin(broker)
    heartbeats = KafkaHeartbeats(broker)
    consumer_groups = KafkaGroupDescriptions(broker)
    acls = KafkaAcls(broker)
    quotas = KafkaClientQuotas(broker)
    producer_ids = KafkaProducerIds(broker)
    topics = KafkaTopics(broker)
    records = KafkaDeleteRecords(broker, leaders)
    configs = KafkaConfigs(broker, listeners, fetch.room)
    replicas = KafkaReplicas(broker)
    scram_users = KafkaScramUsers(broker)
    served: dict[str, tuple[int, int, Callable[[KafkaCall, Any], Awaitable[Any]]]] = {
        "Fetch": (4, 17, fetch.fetch),
        "ListOffsets": (1, 11, offsets.list_offsets),
        "OffsetCommit": (2, 10, groups.commit),
        "OffsetFetch": (1, 10, groups.fetch_offsets),
        "FindCoordinator": (0, 6, groups.find_coordinator),
        "JoinGroup": (0, 9, groups.join),
        "SyncGroup": (0, 5, groups.sync),
        "Heartbeat": (0, 4, groups.heartbeat),
        "LeaveGroup": (0, 5, groups.leave),
        "ConsumerGroupHeartbeat": (0, 1, heartbeats.heartbeat),
        "ConsumerGroupDescribe": (0, 1, consumer_groups.describe),
        "DescribeGroups": (0, 6, group_admin.describe),
        "ListGroups": (0, 5, group_admin.list),
        "DeleteGroups": (0, 2, group_admin.delete),
        "OffsetDelete": (0, 0, group_admin.delete_offsets),
        "DescribeAcls": (1, 3, acls.describe),
        "CreateAcls": (1, 3, acls.create),
        "DeleteAcls": (1, 3, acls.delete),
        "DescribeClientQuotas": (0, 1, quotas.describe),
        "AlterClientQuotas": (0, 1, quotas.alter),
        "Metadata": (0, 13, metadata.metadata),
        "CreateTopics": (2, 7, topics.create_topics),
        "DeleteTopics": (1, 6, topics.delete_topics),
        "CreatePartitions": (0, 3, topics.create_partitions),
        "DeleteRecords": (0, 2, records.delete_records),
        "DescribeConfigs": (1, 4, configs.describe),
        "ListConfigResources": (0, 1, configs.list_resources),
        "AlterConfigs": (0, 2, configs.alter),
        "IncrementalAlterConfigs": (0, 1, configs.alter_incrementally),
        "DescribeLogDirs": (1, 4, replicas.describe_log_dirs),
        "ElectLeaders": (0, 2, replicas.elect_leaders),
        "ListPartitionReassignments": (0, 0, replicas.list_partition_reassignments),
        "InitProducerId": (0, 5, producer_ids.init_producer_id),
        "OffsetForLeaderEpoch": (2, 4, offsets.offset_for_leader_epoch),
        "DescribeUserScramCredentials": (0, 0, scram_users.describe),
        "AlterUserScramCredentials": (0, 0, scram_users.alter),
        "DescribeCluster": (0, 2, metadata.describe_cluster),
        "DescribeTopicPartitions": (0, 0, metadata.describe_topic_partitions),
    }
    keys = {api.name: key for key, api in APIS.items()}
    at_once: dict[str, Callable[[KafkaCall, Any], Any]] = {
        "Heartbeat": groups.heartbeat_at_once,
        "ConsumerGroupHeartbeat": heartbeats.heartbeat_at_once,
    }
    return {
        keys[name]: Handler(low, high, KAFKA_CALLS[name], handle, at_once.get(name)) for name, (low, high, handle) in served.items()
    }
