"""A consumer group as its coordinator knows it: values only. Pure.

    Empty ──join──▶ PreparingRebalance ──barrier──▶ CompletingRebalance ──sync──▶ Stable
      ▲                   ▲     ▲                          │                        │
      └── nobody joined ──┘     └──── a member is lost ────┴── join, leave, loss ───┘

What is stored of it is record.py's, and what happens to it state_machine.py's. Terms and states are Kafka's
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
# A call that waits for its answer, by the number that the coordinator gave it.
Waiter = NewType("Waiter", int)

NO_MEMBER = MemberId("")
NO_INSTANCE = InstanceId("")
# Of who commits without being a member.
NO_GENERATION = Generation(-1)
# Of a group, as of a topic; and of what its members call themselves.
NAME_CHARACTERS_MAX: Final = 249


class GroupPhase(Enum):
    """The values are Kafka's names of the states, as people meet them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """A way of assigning partitions that a member offers."""

    name: str
    # The member's subscription, opaque here.
    metadata: bytes


class Member(msgspec.Struct, frozen=True):
    member_id: MemberId
    instance_id: InstanceId
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # The best first.
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


class Barrier(NamedTuple):
    """Of a rebalance: who joins until it opens belongs to the next generation."""

    began_ms: int
    # At the latest; but for the first, it opens as soon as all members have joined.
    opens_ms: int
    # Of a group that was empty: it is held open for a moment, so that members that start together join together.
    first: bool


class Group(msgspec.Struct, frozen=True):
    """Never changed in place. What stands behind `changed_at_ms` lives in memory only."""

    phase: GroupPhase = GroupPhase.EMPTY
    generation: Generation = Generation(0)
    protocol_type: str = ""
    protocol: str = ""
    # The member that makes the assignment.
    leader: MemberId = NO_MEMBER
    members: Mapping[MemberId, Member] = {}
    # When it was stored last with a change, in milliseconds since 1970-01-01 UTC; the coordinator sets it.
    changed_at_ms: int = 0
    # Who waits at the barrier.
    joining: Mapping[MemberId, Waiter] = {}
    # Who waits for the assignment.
    syncing: Mapping[MemberId, Waiter] = {}
    # Ids that were given to members that have not joined yet, each with when it is given up, in milliseconds.
    announced: Mapping[MemberId, int] = {}
    # While PREPARING.
    barrier: Barrier | None = None
    # Who waits at the barrier and was not told its id yet: nobody can ask for it again, so it is gone when its call ends.
    unnamed: frozenset[MemberId] = frozenset()
    # Dynamic members that joined at this barrier, which is no first one, and whose call has ended since.
    hung_up: frozenset[MemberId] = frozenset()
    # Who was told of this generation, and has not asked for its assignment yet.
    unsynced: frozenset[MemberId] = frozenset()
    # Until then those must have asked, or they are lost.
    sync_by_ms: int = 0
    # From then on no former coordinator answers its members: what they have to do in time, they may do so much later.
    alone_from_ms: int = 0
    # By a former coordinator that handed it over: how long its members might be silent then before they were lost.
    silent_in_ms: Mapping[MemberId, int] = {}

    def static_member(self, instance_id: InstanceId) -> Member | None:
        if instance_id == NO_INSTANCE:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)


class JoinRequest(NamedTuple):
    member_id: MemberId
    instance_id: InstanceId
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # A new member without an instance id is told its id first, and joins with it (KIP-394).
    member_id_required: bool = False


class SyncRequest(NamedTuple):
    member_id: MemberId
    instance_id: InstanceId
    generation: Generation
    # From the leader of the members only.
    assignments: Mapping[MemberId, bytes]
    protocol_type: str = ""
    protocol: str = ""


class JoinedMember(NamedTuple):
    member_id: MemberId
    instance_id: InstanceId
    metadata: bytes


class Joined(NamedTuple):
    generation: Generation
    protocol_type: str
    protocol: str
    leader: MemberId
    member_id: MemberId
    # For the leader of the members, which makes the assignment.
    members: tuple[JoinedMember, ...] = ()
    # For a leader that came back under its instance id: the assignment stays as it was (KIP-814).
    skip_assignment: bool = False


class Synced(NamedTuple):
    protocol_type: str
    protocol: str
    assignment: bytes


def check_group_name(name: str) -> str:
    """Returns the name itself where it is one, else raises InvalidGroupName.

    Kafka takes any text. Here control and format characters are refused (metadata/plain_names.py): names are printed on terminals
    and in logs, and stand in URLs.
    """
    why = f"it has {len(name)} characters; 1 to {NAME_CHARACTERS_MAX} are taken" if not name else why_no_name(name)
    if why is not None:
        raise InvalidGroupName(f"{shown(name)!a} is not a name for a consumer group: {why}", field="group")
    return name


def why_no_name(text: str) -> str | None:
    """Why this may not be the name of a group, nor what a member calls itself; None where it may."""
    if len(text) > NAME_CHARACTERS_MAX:
        return f"it has {len(text)} characters; {NAME_CHARACTERS_MAX} is the most"
    return why_not_plain(text)


def check_member_name(field: str, text: str) -> str:
    """Returns what a member calls itself where it may, else raises InvalidArgument."""
    if (why := why_no_name(text)) is not None:
        raise InvalidArgument(
            f"{field} is {shown(text)!a}: {why}",
            hint=f"Use at most {NAME_CHARACTERS_MAX} characters, none of them a control or format character.",
            field=field,
        )
    return text


def shown(text: str) -> str:
    """As much of a client's own words as belongs into an error."""
    return text if len(text) <= 60 else text[:57] + "…"
