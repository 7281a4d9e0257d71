"""Bounds and times of consumer groups. Pure. A broker that runs groups reads these with its other settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from metadata.errors import InvalidArgument

RECORD_BYTES_MAX: Final = 1 << 20
"""Of one group as it is stored: one value of etcd."""
MAY_BE_ZERO: Final = frozenset({"group_initial_rebalance_delay_ms", "offset_metadata_bytes_max", "commit_linger_ms"})


@dataclass(frozen=True, slots=True)
class GroupSettings:
    group_initial_rebalance_delay_ms: int = 500
    """So long a group that was empty waits for more members after each one that joins, so that those that start together join
    together; at most the longest rebalance timeout. Kafka's group.initial.rebalance.delay.ms."""
    group_session_timeout_ms_min: int = 6_000
    """Kafka's group.min.session.timeout.ms."""
    group_session_timeout_ms_max: int = 1_800_000
    """Kafka's group.max.session.timeout.ms."""
    group_members_max: int = 1_000
    """Of one group. Kafka's group.max.size."""
    group_metadata_bytes_max: int = 64 << 10
    """Of one member: the protocols that it offers, with their metadata, together; and likewise its assignment."""
    group_bytes_max: int = 700 << 10
    """Of one group with all its members, their metadata and assignments, as it is stored: it must fit one value of etcd (1 MiB)."""
    groups_max: int = 100_000
    """That one broker coordinates at a time."""
    offset_metadata_bytes_max: int = 4_096
    """What a member may keep with a committed offset. Kafka's offset.metadata.max.bytes."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """Offsets of a group that has been without members for so long are forgotten, and then the group. Kafka's
    offsets.retention.minutes, in milliseconds here."""
    group_scan_interval_ms: int = 300_000
    """So often a broker looks for what has expired in the groups that it coordinates. Kafka's
    offsets.retention.check.interval.ms."""
    group_metrics_interval_ms: int = 15_000
    """So often the figures of groups at /metrics are refreshed."""
    commit_linger_ms: int = 5
    """So long a commit of offsets waits for others to be written with it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in MAY_BE_ZERO else 1
            if (value := getattr(self, field.name)) < least:
                raise InvalidArgument(f"{field.name} is {value}; it must be at least {least}", field=field.name)
        for low, high in (
            ("group_session_timeout_ms_min", "group_session_timeout_ms_max"),
            ("group_metadata_bytes_max", "group_bytes_max"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise InvalidArgument(f"{low} ({getattr(self, low)}) is above {high} ({getattr(self, high)})", field=low)
        if self.group_bytes_max > RECORD_BYTES_MAX:
            raise InvalidArgument(
                f"group_bytes_max is {self.group_bytes_max}; a group must fit one value of etcd, {RECORD_BYTES_MAX} bytes",
                field="group_bytes_max",
            )
