"""Lists the configs of topics and brokers as Kafka's clients see them: values, sources, types, synonyms, documentation. Pure.

A topic's config has a value of its own, or the default, which Kafka calls by the name of a broker config (its synonym). Configs of
brokers are those that Kafka's tools look for, with the values in force here; they are read only, since a broker reads its settings
when it starts.

Source: org.apache.kafka.common.requests.DescribeConfigsResponse, org.apache.kafka.server.config.ServerTopicConfigSynonyms
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.kafka.listener_config import ListenerConfig
from gateway.settings import GatewaySettings
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.groups.settings import GroupSettings
from metadata.topics.settings import SETTINGS, SettingType, describe_settings


class ConfigSource(enum.IntEnum):
    """Kafka's numbers of the sources that a value may come from."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


TYPES: Final[Mapping[SettingType, int]] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
}
# The broker config that holds the default of a topic's config.
BROKER_SYNONYMS: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
# The replication factor of topics whose creator asked for none: the bucket replicates.
DEFAULT_REPLICATION_FACTOR: Final = 1
# Kafka's default of transaction.max.timeout.ms.
TRANSACTION_TIMEOUT_MS_MAX: Final = 900_000
# The release of Kafka whose protocol is spoken, in the form that tools parse.
PROTOCOL_VERSION: Final = "4.0"
# As server.py closes idle connections.
CONNECTIONS_IDLE_MS_MAX: Final = 600_000
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000


class Synonym(NamedTuple):
    """A config that a value may come from, with its value and source."""

    name: str
    value: str
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config of a topic or a broker."""

    name: str
    # None if it is not set and has no default.
    value: str | None
    source: ConfigSource
    type: SettingType
    documentation: str
    # In the order from the source in force to the default.
    synonyms: Sequence[Synonym]
    read_only: bool = False


def topic_configs(settings: Mapping[str, str], *, message_bytes_max: int) -> list[ConfigEntry]:
    """Returns all configs of a topic. `settings`: its own; `message_bytes_max`: the brokers' limit, which bounds the default."""
    found = []
    for definition, value, source in describe_settings(settings):
        synonym = BROKER_SYNONYMS.get(definition.name)
        defaults = [Synonym(synonym, definition.default, ConfigSource.DEFAULT)] if synonym is not None else []
        if definition.name == MAX_MESSAGE_BYTES and message_bytes_max < int(definition.default):
            assert synonym is not None
            defaults.insert(0, Synonym(synonym, str(message_bytes_max), ConfigSource.STATIC_BROKER))
        if source == "dynamic topic":
            own = Synonym(definition.name, value, ConfigSource.DYNAMIC_TOPIC)
            held: Synonym = own
            synonyms = [own, *defaults]
        else:
            held = defaults[0] if defaults else Synonym(definition.name, value, ConfigSource.DEFAULT)
            synonyms = defaults
        found.append(ConfigEntry(definition.name, held.value, held.source, definition.type, definition.meaning, synonyms))
    return found


def broker_configs(
    registration: BrokerRegistration,
    settings: GatewaySettings,
    groups: GroupSettings,
    listeners: Sequence[ListenerConfig],
    *,
    bucket_url: str,
) -> list[ConfigEntry]:
    """Returns the configs of one broker. `listeners`: where it listens; `bucket_url`: without credentials."""
    advertised = registration.kafka_listeners
    retention_ms = int(SETTINGS["retention.ms"].default)
    protocols = {each.name.upper(): each.security_protocol for each in advertised}
    found = [
        _own("broker.id", registration.node_id, "int", "The number of this broker."),
        _own("node.id", registration.node_id, "int", "The number of this broker."),
        (_own if registration.rack else _default)(
            "broker.rack", registration.rack or None, "string", "Where this broker runs: its setting rack."
        ),
        _own("listeners", _urls((each.name, each.address) for each in listeners), "list", "Where this broker listens."),
        _own(
            "advertised.listeners",
            _urls((each.name, f"{each.host}:{each.port}") for each in advertised),
            "list",
            "Where clients reach this broker: its setting advertise_kafka.",
        ),
        _own(
            "listener.security.protocol.map",
            ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "string",
            "What is spoken at each listener.",
        ),
        _own("log.dir", bucket_url, "string", "The bucket that holds all records."),
        _own("log.dirs", bucket_url, "string", "The bucket that holds all records."),
        _default("inter.broker.protocol.version", PROTOCOL_VERSION, "string", "The release of Kafka whose protocol is spoken."),
        _default("default.replication.factor", DEFAULT_REPLICATION_FACTOR, "int", "The bucket replicates."),
        _default("delete.topic.enable", "true", "boolean", "Topics can be deleted."),
        _default(
            "transaction.max.timeout.ms", TRANSACTION_TIMEOUT_MS_MAX, "int", "The longest time that a transaction may be open."
        ),
        _default("connections.max.idle.ms", CONNECTIONS_IDLE_MS_MAX, "long", "When an idle connection is closed."),
        _default("log.retention.hours", retention_ms // _HOUR_MS, "int", "As log.retention.ms, in hours."),
        _default("log.retention.minutes", retention_ms // _MINUTE_MS, "int", "As log.retention.ms, in minutes."),
        _set(
            "num.partitions", settings, "kafka_auto_create_partitions", "int", "Partitions of a topic whose creator names no count."
        ),
        _set(
            "auto.create.topics.enable",
            settings,
            "kafka_auto_create_topics",
            "boolean",
            "Whether a client creates a topic by asking for it.",
        ),
        _set("message.max.bytes", settings, "message_bytes_max", "int", "The largest record batch."),
        _set("socket.request.max.bytes", settings, "request_bytes_max", "int", "The longest request."),
        _set("fetch.max.bytes", settings, "fetch_bytes_max", "int", "The most bytes of records in one answer."),
        _set("max.connections", settings, "kafka_connections_max", "int", "Open connections of Kafka clients."),
        _set("max.connections.per.ip", settings, "kafka_connections_per_address_max", "int", "The same of one address."),
        _set(
            "connections.max.reauth.ms",
            settings,
            "kafka_session_ms_max",
            "long",
            "How long a client may go on before it must authenticate again.",
        ),
        _set("group.min.session.timeout.ms", groups, "group_session_timeout_ms_min", "int", "The shortest session timeout."),
        _set("group.max.session.timeout.ms", groups, "group_session_timeout_ms_max", "int", "The longest session timeout."),
        _set(
            "group.initial.rebalance.delay.ms",
            groups,
            "group_initial_rebalance_delay_ms",
            "int",
            "How long an empty group waits for more members.",
        ),
        _set(
            "group.consumer.session.timeout.ms",
            groups,
            "group_consumer_session_timeout_ms",
            "int",
            "The session timeout of members of the consumer protocol.",
        ),
        _set(
            "group.consumer.heartbeat.interval.ms",
            groups,
            "group_consumer_heartbeat_interval_ms",
            "int",
            "The heartbeat interval of members of the consumer protocol.",
        ),
        _set("group.max.size", groups, "group_members_max", "int", "Members of one group."),
        _set("offset.metadata.max.bytes", groups, "offset_metadata_bytes_max", "int", "Bytes of metadata of one committed offset."),
    ]
    offsets_minutes = groups.offsets_retention_ms // _MINUTE_MS
    is_default = groups.offsets_retention_ms == GroupSettings().offsets_retention_ms
    make = _default if is_default else _own
    found.append(make("offsets.retention.minutes", offsets_minutes, "int", "When offsets of a group without members are deleted."))
    names = {entry.name for entry in found}
    for name, synonym in BROKER_SYNONYMS.items():
        if synonym not in names:
            found.append(_default(synonym, SETTINGS[name].default, SETTINGS[name].type, SETTINGS[name].meaning))
    return sorted(found)


def _urls(named: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{name.upper()}://{address}" for name, address in named)


def _own(name: str, value: object, kind: SettingType, documentation: str) -> ConfigEntry:
    return _entry(name, value, kind, documentation, ConfigSource.STATIC_BROKER)


def _default(name: str, value: object, kind: SettingType, documentation: str) -> ConfigEntry:
    return _entry(name, value, kind, documentation, ConfigSource.DEFAULT)


def _set(name: str, settings: GatewaySettings | GroupSettings, setting: str, kind: SettingType, meaning: str) -> ConfigEntry:
    value = getattr(settings, setting)
    is_default = value == getattr(type(settings)(), setting)
    text = str(value).lower() if isinstance(value, bool) else value
    documentation = f"{meaning} The setting {setting} of a broker."
    return _entry(name, text, kind, documentation, ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER)


def _entry(name: str, value: object, kind: SettingType, documentation: str, source: ConfigSource) -> ConfigEntry:
    text = None if value is None else str(value)
    synonyms = [] if text is None else [Synonym(name, text, source)]
    return ConfigEntry(name, text, source, kind, documentation, synonyms, read_only=True)
