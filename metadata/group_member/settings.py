"""How one member of a consumer group behaves: every setting with its unit. Pure; checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from metadata.errors import InvalidArgument, did_you_mean
from metadata.groups.assignors import ASSIGNORS
from metadata.groups.model import check_member_name


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    session_timeout_ms: int = 45_000
    """Who is not heard of for so long is lost to the group: its partitions go to others. Kafka's session.timeout.ms."""
    heartbeat_interval_ms: int = 3_000
    """At most; a third of the session timeout, and of the rebalance timeout, where that is less. Kafka's heartbeat.interval.ms."""
    max_poll_interval_ms: int = 300_000
    """A member whose caller takes no records for so long leaves, and joins again when they are taken. It is also how long a member
    has to join again when the group rebalances (the rebalance timeout). Kafka's max.poll.interval.ms."""
    assignors: tuple[str, ...] = ("cooperative-sticky", "range")
    """Ways of sharing partitions that this member offers, the best first: range, roundrobin, sticky, cooperative-sticky. The group
    takes one that all its members offer. Kafka's partition.assignment.strategy."""
    instance_id: str = ""
    """A name of this member that outlives its process: so it may restart within the session timeout without a rebalance. Kafka's
    group.instance.id."""
    client_id: str = "tidelog"
    """The first part of the member's id, for people. Kafka's client.id."""
    topics_interval_ms: int = 30_000
    """How often the member that makes the assignment looks for new partitions of topics that only others read."""

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
        """Between two heartbeats: so that three may be lost before anybody else owns what this member reads."""
        return min(self.heartbeat_interval_ms, self.session_timeout_ms / 3, self.rebalance_timeout_ms / 3)
