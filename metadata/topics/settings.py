"""The settings of topics: names, types, defaults, bounds, and what each does. Pure.

Names and meanings are Kafka's (https://kafka.apache.org/documentation/#topicconfigs); all topic configs of Kafka 4.3 are known.
Those that mean nothing on object storage are inert: they are checked as Kafka does, stored, and returned, since Kafka's tools
write and read back whole sets of them. A setting is text on the wire and in the store; here it has a type.

Invariant: a TopicSettings that was parsed is within its bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from metadata.errors import InvalidArgument, did_you_mean

CleanupPolicy = Literal["delete", "compact", "compact,delete"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
# As in Kafka's DescribeConfigs.
SettingType = Literal["boolean", "string", "int", "short", "long", "double", "list", "class"]
SettingValue = int | str | float
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
# The largest value of max.message.bytes: a larger batch would not fit a request.
MESSAGE_BYTES_LIMIT = 16 << 20
# Kafka's default of max.message.bytes: a record of 1 MiB, the limit of Kafka's clients, and the 12 bytes that a batch adds in it.
MESSAGE_BYTES_DEFAULT = (1 << 20) + 12


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Holds the effective settings of one topic, with defaults filled in. SETTINGS describes each."""

    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    cleanup_policy: CleanupPolicy = "delete"
    max_message_bytes: int = MESSAGE_BYTES_DEFAULT
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_after_max_ms: int = 3_600_000
    min_compaction_lag_ms: int = 0
    delete_retention_ms: int = 86_400_000

    @property
    def deletes(self) -> bool:
        """Returns True if retention by time and bytes applies."""
        return self.cleanup_policy != "compact"

    @property
    def compacts(self) -> bool:
        """Returns True if key compaction applies, which keeps the newest record of each key."""
        return self.cleanup_policy != "delete"

    @classmethod
    def parse(cls, settings: Mapping[str, str], *, skip_unknown: bool = False) -> TopicSettings:
        """Parses settings by Kafka's names to values as text. InvalidArgument names the setting, its bounds and its default.

        Inert settings are checked, and are not part of the result. `skip_unknown` is for what is stored: a newer version may have
        written a setting that this one does not have.
        """
        values: dict[str, SettingValue] = {}
        for name, text in settings.items():
            if skip_unknown and (name not in SETTINGS or SETTINGS[name].inert):
                continue
            definition = setting_definition(name)
            value = definition.parse(text)
            if not definition.inert:
                values[definition.attribute] = value
        return cls(**values)  # type: ignore[arg-type]  # each definition parses to the type of its attribute

    def differing(self) -> dict[str, str]:
        """Returns the settings that differ from their defaults, by name, in their canonical text."""
        default = TopicSettings()
        return {
            name: str(getattr(self, definition.attribute))
            for name, definition in SETTINGS.items()
            if not definition.inert and getattr(self, definition.attribute) != getattr(default, definition.attribute)
        }


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One row of the reference: what the setting means and what it may be."""

    name: str
    type: SettingType
    # As text, as users would write it.
    default: str
    unit: Literal["ms", "bytes", ""]
    meaning: str
    # The bounds in words, for messages and documentation.
    allowed: str
    # Returns the value of a text, or None where it is not allowed.
    value_of: Callable[[str], SettingValue | None]
    # It is checked, stored and returned, and changes nothing.
    inert: bool = False

    @property
    def attribute(self) -> str:
        """Returns the field of TopicSettings; inert settings have none."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> SettingValue:
        value = self.value_of(text)
        if value is None:
            shown = text if len(text) <= 60 else text[:57] + "…"
            raise InvalidArgument(
                f"{self.name}={shown!r}: must be {self.allowed} (default {self.default or 'empty'})",
                setting=self.name,
                allowed=self.allowed,
                default=self.default,
            )
        return value

    def canonical(self, text: str) -> str:
        """Returns the one form in which the value is stored. Raises InvalidArgument where it is not allowed."""
        value = self.parse(text)
        return str(value).lower() if isinstance(value, bool) else str(value)


class DescribedSetting(NamedTuple):
    """Describes a setting of one topic as Kafka's DescribeConfigs returns it."""

    definition: SettingDefinition
    value: str
    # Kafka's ConfigSource: the topic has a value of its own, or the default.
    source: Literal["dynamic topic", "default"]


class ListChange(NamedTuple):
    """Changes a setting that is a list: elements to append, and elements to remove."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def applied(self, text: str) -> str:
        """Returns the list after the change. Elements that are there are not added again; the others keep their order."""
        present = [element for element in list_elements(text) if element not in self.removed]
        return ",".join([*present, *(element for element in dict.fromkeys(self.added) if element not in present)])


# What becomes of one setting: another value, the default (None), or a list with other elements.
SettingChange = str | ListChange | None


def list_elements(text: str) -> tuple[str, ...]:
    """Returns the elements of a setting that is a list."""
    return tuple(element for part in text.split(",") if (element := part.strip()))


def describe_settings(settings: Mapping[str, str]) -> list[DescribedSetting]:
    """Returns every setting, in the order of the reference. `settings`: those of the topic that differ from the defaults."""
    return [
        DescribedSetting(definition, settings[name], "dynamic topic")
        if name in settings
        else DescribedSetting(definition, definition.default, "default")
        for name, definition in SETTINGS.items()
    ]


def differing_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the given settings that are not at their default, in the form in which they are stored.

    InvalidArgument names the setting, its bounds and its default.
    """
    canonical = {name: setting_definition(name).canonical(text) for name, text in given.items()}
    return {name: text for name, text in canonical.items() if text != SETTINGS[name].default}


def setting_definition(name: str) -> SettingDefinition:
    """Returns the definition of a setting. Raises InvalidArgument, with the nearest name, if there is none of this name."""
    definition = SETTINGS.get(name)
    if definition is None:
        hint = did_you_mean(name, SETTINGS) or f"Known settings: {', '.join(SETTINGS)}."
        raise InvalidArgument(f"{name[:60]!r} is not a setting of a topic", hint=hint, setting=name[:60])
    return definition


def _whole_number(least: int, most: int) -> Callable[[str], int | None]:
    def value_of(text: str) -> int | None:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            return None
        value = int(text)
        return value if least <= value <= most else None

    return value_of


def _number(least: float, most: float) -> Callable[[str], float | None]:
    def value_of(text: str) -> float | None:
        if not re.fullmatch(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", text, re.ASCII):
            return None
        value = float(text)
        return value if least <= value <= most else None

    return value_of


def _true_or_false(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _throttled_replicas(text: str) -> str | None:
    """Returns the text if Kafka's ThrottledReplicaListValidator accepts it; else None."""
    return text if text in {"", "*"} or re.fullmatch(r"[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*", text, re.ASCII) else None


def _gzip_level(text: str) -> int | None:
    value = _whole_number(-1, 9)(text)
    return value if value != 0 else None


def _cleanup_policy(text: str) -> str | None:
    policies = [policy.strip() for policy in text.split(",")]
    if len(set(policies)) != len(policies) or not set(policies) <= {"compact", "delete"}:
        return None
    return ",".join(sorted(policies))


def _one_of(*names: str) -> Callable[[str], str | None]:
    return lambda text: text if text in names else None


# All settings by name: those that take effect, then those that do not.
SETTINGS: Final[Mapping[str, SettingDefinition]] = {
    definition.name: definition
    for definition in (
        SettingDefinition(
            "retention.ms",
            "long",
            "604800000",
            "ms",
            "How long records are kept after their timestamp, where cleanup.policy includes delete.",
            "a whole number of milliseconds from 0, or -1 for no limit",
            _whole_number(-1, INT64_MAX),
        ),
        SettingDefinition(
            "retention.bytes",
            "long",
            "-1",
            "bytes",
            "How large a partition may grow before its oldest records are deleted, where cleanup.policy includes delete.",
            "a whole number of bytes from 0, or -1 for no limit",
            _whole_number(-1, INT64_MAX),
        ),
        SettingDefinition(
            "cleanup.policy",
            "list",
            "delete",
            "",
            "What becomes of old records: delete drops them by time and size, compact keeps the newest of each key.",
            "delete, compact, or compact,delete",
            _cleanup_policy,
        ),
        SettingDefinition(
            "max.message.bytes",
            "int",
            str(MESSAGE_BYTES_DEFAULT),
            "bytes",
            "The largest record batch that is taken, compressed as it arrives, its header included.",
            f"a whole number of bytes from 1024 to {MESSAGE_BYTES_LIMIT}",
            _whole_number(1024, MESSAGE_BYTES_LIMIT),
        ),
        SettingDefinition(
            "message.timestamp.type",
            "string",
            "CreateTime",
            "",
            "Whose clock stamps a record: the producer's (CreateTime) or the broker's (LogAppendTime).",
            "CreateTime or LogAppendTime",
            _one_of("CreateTime", "LogAppendTime"),
        ),
        SettingDefinition(
            "message.timestamp.after.max.ms",
            "long",
            "3600000",
            "ms",
            "How far ahead of the broker's clock a producer may date a record: further ahead, it would outlive retention.ms.",
            f"a whole number of milliseconds from 0 ({INT64_MAX}: any)",
            _whole_number(0, INT64_MAX),
        ),
        SettingDefinition(
            "min.compaction.lag.ms",
            "long",
            "0",
            "ms",
            "How long a record stays after its timestamp before a newer one of the same key may replace it.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
        ),
        SettingDefinition(
            "delete.retention.ms",
            "long",
            "86400000",
            "ms",
            "How long a record without a value (a tombstone) stays after compaction, so that readers see the deletion.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
        ),
        SettingDefinition(
            "compression.type",
            "string",
            "producer",
            "",
            "The codec of stored batches. Batches are kept as producers send them, whatever is set.",
            "producer, uncompressed, gzip, snappy, lz4 or zstd",
            _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            inert=True,
        ),
        SettingDefinition(
            "compression.gzip.level",
            "int",
            "-1",
            "",
            "The level of gzip, where a broker compresses. Brokers here do not.",
            "a whole number from 1 to 9, or -1 for the codec's default",
            _gzip_level,
            inert=True,
        ),
        SettingDefinition(
            "compression.lz4.level",
            "int",
            "9",
            "",
            "The level of lz4, where a broker compresses. Brokers here do not.",
            "a whole number from 1 to 17",
            _whole_number(1, 17),
            inert=True,
        ),
        SettingDefinition(
            "compression.zstd.level",
            "int",
            "3",
            "",
            "The level of zstd, where a broker compresses. Brokers here do not.",
            "a whole number from -131072 to 22",
            _whole_number(-131_072, 22),
            inert=True,
        ),
        SettingDefinition(
            "file.delete.delay.ms",
            "long",
            "60000",
            "ms",
            "How long Kafka waits before it deletes a file. Objects of the bucket have a delay of their own.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "flush.messages",
            "long",
            str(INT64_MAX),
            "",
            "After how many records Kafka calls fsync. Every commit is on the bucket here.",
            "a whole number from 1",
            _whole_number(1, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "flush.ms",
            "long",
            str(INT64_MAX),
            "ms",
            "After what time Kafka calls fsync. Every commit is on the bucket here.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "follower.replication.throttled.replicas",
            "list",
            "",
            "",
            "Followers whose replication is throttled. The bucket replicates here.",
            "partition:broker pairs with commas between them, *, or empty",
            _throttled_replicas,
            inert=True,
        ),
        SettingDefinition(
            "leader.replication.throttled.replicas",
            "list",
            "",
            "",
            "Leaders whose replication is throttled. The bucket replicates here.",
            "partition:broker pairs with commas between them, *, or empty",
            _throttled_replicas,
            inert=True,
        ),
        SettingDefinition(
            "index.interval.bytes",
            "int",
            "4096",
            "bytes",
            "How densely Kafka indexes a segment. Segments here have an index of every batch.",
            "a whole number of bytes from 0",
            _whole_number(0, INT32_MAX),
            inert=True,
        ),
        SettingDefinition(
            "local.retention.bytes",
            "long",
            "-2",
            "bytes",
            "How much of a partition Kafka keeps on its disks with remote storage. All records lie on the bucket here.",
            "a whole number of bytes from 0, -1 for no limit, or -2 for retention.bytes",
            _whole_number(-2, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "local.retention.ms",
            "long",
            "-2",
            "ms",
            "How long Kafka keeps records on its disks with remote storage. All records lie on the bucket here.",
            "a whole number of milliseconds from 0, -1 for no limit, or -2 for retention.ms",
            _whole_number(-2, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "max.compaction.lag.ms",
            "long",
            str(INT64_MAX),
            "ms",
            "After what time Kafka compacts a record at the latest. Compaction here follows its own plan.",
            "a whole number of milliseconds from 1",
            _whole_number(1, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "message.timestamp.before.max.ms",
            "long",
            str(INT64_MAX),
            "ms",
            "How far before the broker's clock a producer may date a record. Any distance is taken here.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "min.cleanable.dirty.ratio",
            "double",
            "0.5",
            "",
            "The share of a log that Kafka's cleaner waits for. Compaction here follows its own plan.",
            "a number from 0 to 1",
            _number(0, 1),
            inert=True,
        ),
        SettingDefinition(
            "min.insync.replicas",
            "int",
            "1",
            "",
            "How many replicas must hold a record that acks=all confirms. The bucket holds it before it is confirmed here.",
            "a whole number from 1",
            _whole_number(1, INT32_MAX),
            inert=True,
        ),
        SettingDefinition(
            "preallocate",
            "boolean",
            "false",
            "",
            "Whether Kafka allocates the file of a segment in advance.",
            "true or false",
            _true_or_false,
            inert=True,
        ),
        SettingDefinition(
            "remote.storage.enable",
            "boolean",
            "false",
            "",
            "Whether Kafka copies segments to remote storage. All records lie on the bucket here.",
            "true or false",
            _true_or_false,
            inert=True,
        ),
        SettingDefinition(
            "remote.log.copy.disable",
            "boolean",
            "false",
            "",
            "Whether Kafka stops copying to remote storage. All records lie on the bucket here.",
            "true or false",
            _true_or_false,
            inert=True,
        ),
        SettingDefinition(
            "remote.log.delete.on.disable",
            "boolean",
            "false",
            "",
            "Whether Kafka deletes remote segments once remote storage is off. All records lie on the bucket here.",
            "true or false",
            _true_or_false,
            inert=True,
        ),
        SettingDefinition(
            "segment.bytes",
            "int",
            "1073741824",
            "bytes",
            "The size of a Kafka segment. Segments here hold many partitions; segment_bytes_max of the brokers bounds them.",
            "a whole number of bytes from 1048576",
            _whole_number(1 << 20, INT32_MAX),
            inert=True,
        ),
        SettingDefinition(
            "segment.index.bytes",
            "int",
            "10485760",
            "bytes",
            "The size of the index of a Kafka segment.",
            "a whole number of bytes from 4",
            _whole_number(4, INT32_MAX),
            inert=True,
        ),
        SettingDefinition(
            "segment.jitter.ms",
            "long",
            "0",
            "ms",
            "By how much Kafka spreads the times at which segments are rolled.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "segment.ms",
            "long",
            "604800000",
            "ms",
            "After what time Kafka rolls a segment. Brokers here do so after linger_ms.",
            "a whole number of milliseconds from 1",
            _whole_number(1, INT64_MAX),
            inert=True,
        ),
        SettingDefinition(
            "unclean.leader.election.enable",
            "boolean",
            "false",
            "",
            "Whether a replica that lacks records may lead. Every leader here has all records.",
            "true or false",
            _true_or_false,
            inert=True,
        ),
    )
}
