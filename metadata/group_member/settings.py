"""Holds the settings of one member of a consumer group, each with its unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.errors import InvalidArgument, did_you_mean
from metadata.groups.assignors import ASSIGNORS
from metadata.groups.model import check_member_name


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Holds the settings of one member of a consumer group."""

    # A member whose heartbeats stop for this long loses its partitions to others. Kafka's session.timeout.ms.
    session_timeout_ms: int = 45_000
    # Time between heartbeats, or a third of the session timeout or of the rebalance timeout, where that is less. Kafka's
    # heartbeat.interval.ms.
    heartbeat_interval_ms: int = 3_000
    # A member whose caller takes no records for this long leaves the group, and joins again when the caller takes some. It is also
    # the rebalance timeout: how long a member has to join again when the group rebalances. Kafka's max.poll.interval.ms.
    max_poll_interval_ms: int = 300_000
    # Ways of sharing partitions that this member offers, the best first: range, roundrobin, sticky, cooperative-sticky. The group
    # uses one that all its members offer. Kafka's partition.assignment.strategy.
    assignors: tuple[str, ...] = ("cooperative-sticky", "range")
    # A name of this member that outlives its process, so that the process may restart within the session timeout without a
    # rebalance. Kafka's group.instance.id.
    instance_id: str = ""
    # The first part of the member's id, for people. Kafka's client.id.
    client_id: str = "tidelog"
    # How often the member that makes the assignment checks for new partitions of topics that only others read.
    topics_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "topics_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it must be at least 1 ms")
        if not self.assignors or len(set(self.assignors)) < len(self.assignors):
            raise InvalidArgument("assignors names at least one, and each once", hint=f"There are: {', '.join(ASSIGNORS)}.")
        for name in self.assignors:
            if name not in ASSIGNORS:
                raise InvalidArgument(
                    f"there is no assignor {name!r}", hint=did_you_mean(name, ASSIGNORS) or f"There are: {', '.join(ASSIGNORS)}."
                )

        for name in ("instance_id", "client_id"):
            check_member_name(name, getattr(self, name))

    @property
    def rebalance_timeout_ms(self) -> int:
        return self.max_poll_interval_ms

    @property
    def beat_ms(self) -> float:
        """Returns the time between heartbeats: three may be lost before another member owns what this one reads."""
        return min(self.heartbeat_interval_ms, self.session_timeout_ms / 3, self.rebalance_timeout_ms / 3)
