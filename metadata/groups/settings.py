"""Holds the bounds and times of consumer groups. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metadata.errors import InvalidArgument
from metadata.setting_fields import check_numbers, fixed

# Stored bytes of one group: it must fit one value of etcd.
RECORD_BYTES_MAX: Final = 1 << 20
MAY_BE_ZERO: Final = frozenset({"group_initial_rebalance_delay_ms", "offset_metadata_bytes_max", "commit_linger_ms"})


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Holds the limits and times of consumer groups."""

    # How long an empty group waits for more members after each one that joins, so that members that start together join together.
    # It waits for the longest rebalance timeout at most. Kafka's group.initial.rebalance.delay.ms.
    group_initial_rebalance_delay_ms: int = 500
    # Shortest session timeout that a member may ask for. Kafka's group.min.session.timeout.ms.
    group_session_timeout_ms_min: int = 6_000
    # Longest session timeout that a member may ask for. Kafka's group.max.session.timeout.ms.
    group_session_timeout_ms_max: int = 1_800_000
    # How long a member of the consumer protocol (KIP-848) may be silent. Kafka's group.consumer.session.timeout.ms.
    group_consumer_session_timeout_ms: int = 45_000
    # How often members of the consumer protocol send heartbeats. Kafka's group.consumer.heartbeat.interval.ms.
    group_consumer_heartbeat_interval_ms: int = 5_000
    # Members of one group. Kafka's group.max.size.
    group_members_max: int = 1_000
    # Bytes of the protocols that one member offers, with their metadata; and as many bytes of its assignment. Those of Streams and
    # Connect can pass 64 KiB.
    group_metadata_bytes_max: int = fixed(256 << 10)
    # Stored bytes of one group with its members, their metadata and assignments. It must fit one value of etcd (1 MiB).
    group_bytes_max: int = fixed(700 << 10)
    # Groups that one broker coordinates at a time.
    groups_max: int = 100_000
    # Bytes of metadata that a member may commit with an offset. Kafka's offset.metadata.max.bytes.
    offset_metadata_bytes_max: int = 4_096
    # Committed offsets of a group without members are deleted after this time, and then the group. Kafka's
    # offsets.retention.minutes, in milliseconds here.
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    # How often a broker deletes what has expired in the groups that it coordinates. Kafka's offsets.retention.check.interval.ms.
    group_scan_interval_ms: int = fixed(300_000)
    # How often the metrics of groups are computed.
    group_metrics_interval_ms: int = fixed(15_000)
    # How long a commit of offsets waits for others to be written with it.
    commit_linger_ms: int = fixed(5)

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero=MAY_BE_ZERO)
        for low, high in (
            ("group_session_timeout_ms_min", "group_session_timeout_ms_max"),
            ("group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms"),
            ("group_metadata_bytes_max", "group_bytes_max"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise InvalidArgument(f"{low} ({getattr(self, low)}) is above {high} ({getattr(self, high)})", field=low)
        if self.group_bytes_max > RECORD_BYTES_MAX:
            raise InvalidArgument(
                f"group_bytes_max is {self.group_bytes_max}; a group must fit one value of etcd, {RECORD_BYTES_MAX} bytes",
                field="group_bytes_max",
            )
