"""What Kafka's clients see of configs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.kafka.admin.config_entries import BROKER_SYNONYMS, ConfigSource, Synonym, broker_configs, topic_configs
from gateway.kafka.listener_config import parse_listeners
from gateway.settings import GatewaySettings
from metadata.cluster.broker_registry import BrokerRegistration, KafkaListener
from metadata.groups.settings import GroupSettings
from metadata.model import SessionId
from metadata.topics.settings import MESSAGE_BYTES_DEFAULT, SETTINGS, ListChange, differing_settings

LIMIT = MESSAGE_BYTES_DEFAULT
REGISTRATION = BrokerRegistration(
    broker_id="broker-1",
    session=SessionId(1),
    node_id=7,
    kafka_listeners=(KafkaListener(name="external", host="kafka.example.com", port=9094, security_protocol="SSL"),),
)


def test_every_setting_of_a_topic_is_described_with_where_it_comes_from() -> None:
    entries = {entry.name: entry for entry in topic_configs({"cleanup.policy": "compact"}, message_bytes_max=LIMIT)}
    assert entries.keys() == SETTINGS.keys()
    assert len(entries) == 33
    own = entries.pop("cleanup.policy")
    assert (own.value, own.source) == ("compact", ConfigSource.DYNAMIC_TOPIC)
    assert own.synonyms == [
        Synonym("cleanup.policy", "compact", ConfigSource.DYNAMIC_TOPIC),
        Synonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT),
    ]
    for name, entry in entries.items():
        assert (entry.value, entry.source) == (SETTINGS[name].default, ConfigSource.DEFAULT)
        assert entry.documentation
        assert [each.name for each in entry.synonyms] == ([BROKER_SYNONYMS[name]] if name in BROKER_SYNONYMS else [])


def test_configs_that_are_described_can_be_set_again() -> None:
    given = {"retention.ms": "1", "segment.bytes": "1048576"}
    described = {entry.name: entry.value or "" for entry in topic_configs(given, message_bytes_max=LIMIT)}
    assert differing_settings(described) == given


def test_a_lower_limit_of_the_brokers_is_the_default_of_topics() -> None:
    [entry] = [each for each in topic_configs({}, message_bytes_max=4096) if each.name == "max.message.bytes"]
    assert (entry.value, entry.source) == ("4096", ConfigSource.STATIC_BROKER)
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("4096", ConfigSource.STATIC_BROKER),
        (str(LIMIT), ConfigSource.DEFAULT),
    ]


def test_a_broker_is_described_by_what_holds_there() -> None:
    settings = replace(
        GatewaySettings(), kafka_auto_create_topics=True, kafka_auto_create_partitions=3, kafka_session_ms_max=60_000
    )
    groups = replace(GroupSettings(), offsets_retention_ms=120_000, group_session_timeout_ms_min=1_000)
    listeners = parse_listeners("external=0.0.0.0:9094/forward", "external=kafka.example.com:9094")
    entries = broker_configs(REGISTRATION, settings, groups, listeners, bucket_url="s3://bucket/prefix")
    assert all(entry.read_only for entry in entries)
    assert [entry.name for entry in entries] == sorted({entry.name for entry in entries})
    found = {entry.name: (entry.value, entry.source) for entry in entries}
    wanted = {
        "broker.id": ("7", ConfigSource.STATIC_BROKER),
        "node.id": ("7", ConfigSource.STATIC_BROKER),
        "broker.rack": (None, ConfigSource.DEFAULT),
        "listeners": ("EXTERNAL://0.0.0.0:9094", ConfigSource.STATIC_BROKER),
        "advertised.listeners": ("EXTERNAL://kafka.example.com:9094", ConfigSource.STATIC_BROKER),
        "listener.security.protocol.map": ("EXTERNAL:SSL", ConfigSource.STATIC_BROKER),
        "log.dirs": ("s3://bucket/prefix", ConfigSource.STATIC_BROKER),
        "num.partitions": ("3", ConfigSource.STATIC_BROKER),
        "auto.create.topics.enable": ("true", ConfigSource.STATIC_BROKER),
        "connections.max.reauth.ms": ("60000", ConfigSource.STATIC_BROKER),
        "group.consumer.session.timeout.ms": ("45000", ConfigSource.DEFAULT),
        "group.consumer.heartbeat.interval.ms": ("5000", ConfigSource.DEFAULT),
        "default.replication.factor": ("1", ConfigSource.DEFAULT),
        "delete.topic.enable": ("true", ConfigSource.DEFAULT),
        "message.max.bytes": (str(LIMIT), ConfigSource.DEFAULT),
        "log.retention.ms": ("604800000", ConfigSource.DEFAULT),
        "log.retention.hours": ("168", ConfigSource.DEFAULT),
        "log.cleanup.policy": ("delete", ConfigSource.DEFAULT),
        "min.insync.replicas": ("1", ConfigSource.DEFAULT),
        "transaction.max.timeout.ms": ("900000", ConfigSource.DEFAULT),
        "offsets.retention.minutes": ("2", ConfigSource.STATIC_BROKER),
        "group.min.session.timeout.ms": ("1000", ConfigSource.STATIC_BROKER),
        "group.max.session.timeout.ms": ("1800000", ConfigSource.DEFAULT),
        "inter.broker.protocol.version": ("4.0", ConfigSource.DEFAULT),
    }
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (ListChange(added=("compact",)), "delete", "delete,compact"),
        (ListChange(added=("delete", "delete")), "delete", "delete"),
        (ListChange(removed=("delete",)), "compact,delete", "compact"),
        (ListChange(removed=("compact",)), "delete", "delete"),
        (ListChange(added=("0:1", "1:1")), "", "0:1,1:1"),
        (ListChange(removed=("0:1",)), "0:1", ""),
    ],
)
def test_a_list_gains_and_loses_elements(change: ListChange, before: str, after: str) -> None:
    assert change.applied(before) == after
