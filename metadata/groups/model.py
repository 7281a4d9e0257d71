"""Defines the values of a consumer group, as its coordinator knows it. Pure.

    Empty ──join──▶ PreparingRebalance ──barrier──▶ CompletingRebalance ──sync──▶ Stable
      ▲                   ▲     ▲                          │                        │
      └── none joined   ──┘     └──── a member is lost ────┴── join, leave, loss ───┘

record.py stores it, classic/ and reconciliation/ change it. Terms and states are Kafka's
(https://kafka.apache.org/protocol, KIP-62, KIP-345, KIP-394).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, NewType

import msgspec

from metadata.errors import InvalidArgument, InvalidGroupName
from metadata.plain_names import why_not_plain

MemberId = NewType("MemberId", str)
# A member's group.instance.id, which outlives its process; "" for members without.
InstanceId = NewType("InstanceId", str)
Generation = NewType("Generation", int)
# The number that the coordinator gave to a call that waits for its answer.
Waiter = NewType("Waiter", int)

NO_MEMBER = MemberId("")
NO_INSTANCE = InstanceId("")
# The generation of commits that name no member.
NO_GENERATION = Generation(-1)
# Bound on the name of a group, on client ids and on instance ids.
NAME_CHARACTERS_MAX: Final = 249


class GroupPhase(Enum):
    """Names the state of a group, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """Names an assignor that a member offers, with the member's metadata for it."""

    name: str
    # The member's subscription, opaque here.
    metadata: bytes


class Member(msgspec.Struct, frozen=True):
    """Describes one member of a group."""

    member_id: MemberId
    instance_id: InstanceId
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # The most preferred first.
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


class Barrier(NamedTuple):
    """Bounds a rebalance: members that join before it opens belong to the next generation."""

    began_ms: int
    # The latest time; but for the first barrier, it opens as soon as all members have joined.
    opens_ms: int
    # The group was empty: the barrier stays closed for a moment, so that members that start together join together.
    first: bool


class Group(msgspec.Struct, frozen=True):
    """Holds the state of a group; never changed in place. Fields below `changed_at_ms` live in memory only."""

    phase: GroupPhase = GroupPhase.EMPTY
    generation: Generation = Generation(0)
    protocol_type: str = ""
    protocol: str = ""
    # The member that computes the assignment.
    leader: MemberId = NO_MEMBER
    members: Mapping[MemberId, Member] = {}
    # When it was stored last with a change, in milliseconds since 1970-01-01 UTC; the coordinator sets it.
    changed_at_ms: int = 0
    # Calls that wait at the barrier.
    joining: Mapping[MemberId, Waiter] = {}
    # Calls that wait for the assignment.
    syncing: Mapping[MemberId, Waiter] = {}
    # Ids that were given to members that have not joined yet, each with the time of its expiry, in milliseconds.
    announced: Mapping[MemberId, int] = {}
    # Set while PREPARING.
    barrier: Barrier | None = None
    # Members at the barrier that do not know their ids yet: they can't ask again, so they are removed when their calls end.
    unnamed: frozenset[MemberId] = frozenset()
    # Dynamic members that joined at this barrier, not the first of an empty group, and whose calls have ended since.
    hung_up: frozenset[MemberId] = frozenset()
    # Members that received this generation and have not asked for its assignment yet.
    unsynced: frozenset[MemberId] = frozenset()
    # When `unsynced` members are lost.
    sync_by_ms: int = 0
    # When no former coordinator answers members any more: their deadlines move by as much.
    alone_from_ms: int = 0
    # From the handover of a former coordinator: how long each member may stay silent before it is lost.
    silent_in_ms: Mapping[MemberId, int] = {}

    def static_member(self, instance_id: InstanceId) -> Member | None:
        if instance_id == NO_INSTANCE:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)


class JoinRequest(NamedTuple):
    """Holds a member's request to join."""

    member_id: MemberId
    instance_id: InstanceId
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # A new member without an instance id receives its id first, and joins with it (KIP-394).
    member_id_required: bool = False


class SyncRequest(NamedTuple):
    """Holds a member's request for its assignment."""

    member_id: MemberId
    instance_id: InstanceId
    generation: Generation
    # Sent by the leader of the members only.
    assignments: Mapping[MemberId, bytes]
    protocol_type: str = ""
    protocol: str = ""


class JoinedMember(NamedTuple):
    """Describes a member to the leader of the members."""

    member_id: MemberId
    instance_id: InstanceId
    metadata: bytes


class Joined(NamedTuple):
    """Answers a request to join."""

    generation: Generation
    protocol_type: str
    protocol: str
    leader: MemberId
    member_id: MemberId
    # For the leader of the members, which computes the assignment.
    members: tuple[JoinedMember, ...] = ()
    # For a leader that rejoined under its instance id: the assignment stays (KIP-814).
    skip_assignment: bool = False


class Synced(NamedTuple):
    """Answers a request for the assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


def check_group_name(name: str) -> str:
    """Returns the name, or raises InvalidGroupName.

    Kafka takes any text. Here control and format characters are refused (metadata/plain_names.py): names are printed on terminals
    and in logs, and stand in URLs.
    """
    why = f"it has {len(name)} characters; 1 to {NAME_CHARACTERS_MAX} are taken" if not name else why_no_name(name)
    if why is not None:
        raise InvalidGroupName(f"{shown(name)!a} is not a name for a consumer group: {why}", field="group")
    return name


def why_no_name(text: str) -> str | None:
    """Returns why the text may not name a group, a client or an instance; None where it may."""
    if len(text) > NAME_CHARACTERS_MAX:
        return f"it has {len(text)} characters; {NAME_CHARACTERS_MAX} is the most"
    return why_not_plain(text)


def check_member_name(field: str, text: str) -> str:
    """Returns the client id or instance id. Raises InvalidArgument."""
    if (why := why_no_name(text)) is not None:
        raise InvalidArgument(
            f"{field} is {shown(text)!a}: {why}",
            hint=f"Use at most {NAME_CHARACTERS_MAX} characters, none of them a control or format character.",
            field=field,
        )
    return text


def shown(text: str) -> str:
    """Returns the text, shortened for an error message."""
    return text if len(text) <= 60 else text[:57] + "…"
