"""Defines the values of a consumer group of KIP-848. Pure.

    Empty ──join──▶ Reconciling ──every member has its target──▶ Stable
                         ▲                                          │
                         └────── join, leave, loss, new topics ─────┘

Source: KIP-848
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from metadata.groups.model import NO_INSTANCE, InstanceId, MemberId
from metadata.model import Partition, TopicId, TopicPartition

Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()

# Epochs in a heartbeat that are no epochs.
JOINING: Final = 0
LEAVING: Final = -1
# A static member stops for a moment, and comes back under its instance id.
LEAVING_FOR_NOW: Final = -2


class MemberState(Enum):
    """Names what a member still has to do for its target."""

    # It has its target, as far as the coordinator knows.
    STABLE = "stable"
    # It has to give partitions up first.
    UNREVOKED = "unrevoked_partitions"
    # It waits for partitions that others have to give up.
    UNRELEASED = "unreleased_partitions"


class GroupTopic(NamedTuple):
    """Describes a topic to the assignors."""

    topic_id: TopicId
    partition_count: int

    @property
    def last_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, Partition(self.partition_count - 1))


class MemberPrincipal(NamedTuple):
    """Names whose rights a member has, as the broker found that authenticated its last heartbeat."""

    # Empty for a client of a broker without authentication, which may do everything.
    principal: str
    # The API key of that heartbeat, whose scopes may narrow the rights; empty for other credentials.
    key_id: str = ""


# Returns those of the names of topics that a member may read; None while its rights are not known. The member's principal is None
# where no broker has authenticated it.
ReadableTopics = Callable[[MemberPrincipal | None, frozenset[str]], frozenset[str] | None]


def all_readable(principal: MemberPrincipal | None, names: frozenset[str]) -> frozenset[str]:
    """Returns all names, for a coordinator without authentication."""
    return names


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one member, and how far it has followed the target."""

    member_id: MemberId
    instance_id: InstanceId = NO_INSTANCE
    rack: str = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    topics: frozenset[str] = frozenset()
    # A regular expression; None where the member has none.
    pattern: str | None = None
    # Topics of the group that the pattern matches, and that the member may not read or did not ask for by an earlier pattern.
    unreadable: frozenset[str] = frozenset()
    # None until its first heartbeat at this coordinator, where the record does not name it; without authentication, always.
    principal: MemberPrincipal | None = None
    # The assignor that the member prefers; empty where it has no preference.
    assignor: str = ""
    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    # What the member has to give up, and still owns.
    revoking: Partitions = NO_PARTITIONS
    target: Partitions = NO_PARTITIONS

    @property
    def held(self) -> Partitions:
        """Returns what no other member may be given."""
        return self.assigned | self.revoking


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of a group; never changed in place."""

    epoch: int = 0
    assignor: str = ""
    # How long a member may be silent, as the coordinator that changed the group last has it.
    session_timeout_ms: int = 45_000
    # The topics that the target was computed for, by name.
    topics: Mapping[str, GroupTopic] = {}
    members: Mapping[MemberId, ConsumerMember] = {}

    @property
    def is_reconciling(self) -> bool:
        return any(each.epoch != self.epoch or each.state is not MemberState.STABLE for each in self.members.values())

    def static_member(self, instance_id: InstanceId) -> ConsumerMember | None:
        if instance_id == NO_INSTANCE:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)


class Heartbeat(NamedTuple):
    """Holds a member's heartbeat. None: as in its last one."""

    member_id: MemberId
    epoch: int
    instance_id: InstanceId = NO_INSTANCE
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    # Whose heartbeat it is; None without authentication.
    principal: MemberPrincipal | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Returns whether the member says everything again, as after an answer that it did not receive."""
        has_subscription = self.topics is not None or self.pattern is not None
        return has_subscription and self.rebalance_timeout_ms is not None and self.owned is not None


class Beat(NamedTuple):
    """Answers a heartbeat."""

    member_id: MemberId
    epoch: int
    # None: as before.
    assignment: Partitions | None = None
    # When the next heartbeat is due; the coordinator sets it.
    interval_ms: int = 0
