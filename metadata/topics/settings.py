"""What can be set per topic: names, units, defaults and bounds. Pure.

Names and meanings are Kafka's (https://kafka.apache.org/documentation/#topicconfigs). A setting is text on the wire and in the
store; here it has a type. Invariant: a TopicSettings that was parsed is within its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from metadata.errors import InvalidArgument, did_you_mean

CleanupPolicy = Literal["delete", "compact", "compact,delete"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
INT64_MAX = 2**63 - 1
# The largest value of max.message.bytes: a larger batch would not fit a request.
MESSAGE_BYTES_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic, defaults filled in. SETTINGS describes each."""

    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    cleanup_policy: CleanupPolicy = "delete"
    max_message_bytes: int = 1 << 20
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_after_max_ms: int = 3_600_000
    min_compaction_lag_ms: int = 0
    delete_retention_ms: int = 86_400_000

    @property
    def deletes(self) -> bool:
        """Whether retention by time and bytes applies."""
        return self.cleanup_policy != "compact"

    @property
    def compacts(self) -> bool:
        """Whether only the newest record of each key is kept in the long run."""
        return self.cleanup_policy != "delete"

    @classmethod
    def parse(cls, settings: Mapping[str, str], *, skip_unknown: bool = False) -> TopicSettings:
        """From Kafka's names to values as text. InvalidArgument names the setting, its bounds and its default.

        `skip_unknown` is for what is stored: a newer version may have written a setting that this one does not have.
        """
        values: dict[str, int | str] = {}
        for name, text in settings.items():
            if skip_unknown and name not in SETTINGS:
                continue
            definition = setting_definition(name)
            values[definition.attribute] = definition.parse(text)
        return cls(**values)  # type: ignore[arg-type]  # each definition parses to the type of its attribute

    def differing(self) -> dict[str, str]:
        """The settings that are not at their default, as text in its one canonical form, by name."""
        default = TopicSettings()
        return {
            name: str(getattr(self, definition.attribute))
            for name, definition in SETTINGS.items()
            if getattr(self, definition.attribute) != getattr(default, definition.attribute)
        }


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One row of the reference: what the setting means and what it may be."""

    name: str
    unit: Literal["ms", "bytes", ""]
    meaning: str
    # The bounds in words, for messages and documentation.
    allowed: str
    # Returns the value of a text, or None where it is not allowed.
    value_of: Callable[[str], int | str | None]

    @property
    def attribute(self) -> str:
        """The field of TopicSettings."""
        return self.name.replace(".", "_")

    @property
    def default(self) -> str:
        """As text, as users would write it."""
        return str(getattr(TopicSettings(), self.attribute))

    def parse(self, text: str) -> int | str:
        value = self.value_of(text)
        if value is None:
            shown = text if len(text) <= 60 else text[:57] + "…"
            raise InvalidArgument(
                f"{self.name}={shown!r}: must be {self.allowed} (default {self.default})",
                setting=self.name,
                allowed=self.allowed,
                default=self.default,
            )
        return value


def setting_definition(name: str) -> SettingDefinition:
    """The definition of the setting that has this name; InvalidArgument, with the nearest name, where none has."""
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


def _cleanup_policy(text: str) -> str | None:
    policies = [policy.strip() for policy in text.split(",")]
    if len(set(policies)) != len(policies) or not set(policies) <= {"compact", "delete"}:
        return None
    return ",".join(sorted(policies))


def _one_of(*names: str) -> Callable[[str], str | None]:
    return lambda text: text if text in names else None


# All settings by name, in the order of the reference.
SETTINGS: Mapping[str, SettingDefinition] = {
    definition.name: definition
    for definition in (
        SettingDefinition(
            "retention.ms",
            "ms",
            "How long records are kept after their timestamp, where cleanup.policy includes delete.",
            "a whole number of milliseconds from 0, or -1 for ever",
            _whole_number(-1, INT64_MAX),
        ),
        SettingDefinition(
            "retention.bytes",
            "bytes",
            "How large a partition may grow before its oldest records are deleted, where cleanup.policy includes delete.",
            "a whole number of bytes from 0, or -1 for no limit",
            _whole_number(-1, INT64_MAX),
        ),
        SettingDefinition(
            "cleanup.policy",
            "",
            "What becomes of old records: delete drops them by time and size, compact keeps the newest of each key.",
            "delete, compact, or compact,delete",
            _cleanup_policy,
        ),
        SettingDefinition(
            "max.message.bytes",
            "bytes",
            "The largest record batch that is taken, compressed as it arrives, its header included.",
            f"a whole number of bytes from 1024 to {MESSAGE_BYTES_LIMIT}",
            _whole_number(1024, MESSAGE_BYTES_LIMIT),
        ),
        SettingDefinition(
            "message.timestamp.type",
            "",
            "Whose clock stamps a record: the producer's (CreateTime) or the broker's (LogAppendTime).",
            "CreateTime or LogAppendTime",
            _one_of("CreateTime", "LogAppendTime"),
        ),
        SettingDefinition(
            "message.timestamp.after.max.ms",
            "ms",
            "How far ahead of the broker's clock a producer may date a record: further ahead, it would outlive retention.ms.",
            f"a whole number of milliseconds from 0 ({INT64_MAX}: any)",
            _whole_number(0, INT64_MAX),
        ),
        SettingDefinition(
            "min.compaction.lag.ms",
            "ms",
            "How long a record stays after its timestamp before a newer one of the same key may replace it.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
        ),
        SettingDefinition(
            "delete.retention.ms",
            "ms",
            "How long a record without a value (a tombstone) stays after compaction, so that readers see the deletion.",
            "a whole number of milliseconds from 0",
            _whole_number(0, INT64_MAX),
        ),
    )
}
