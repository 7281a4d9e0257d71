"""Encodes a consumer group for the metadata store, under /{cluster}/groups/{group}. Pure.

    {"format_version":1,"coordinator":17,"phase":"Stable","generation":3,"protocol_type":"consumer","protocol":"range","leader":"c1-…",
     "changed_at_ms":1767225600000,
     "members":[{"member_id":"c1-…","instance_id":"","client_id":"c1","client_host":"10.0.0.7","session_timeout_ms":45000,
                 "rebalance_timeout_ms":300000,"protocols":[["range","<base64>"]],"assignment":"<base64>"}]}

A group of KIP-848 (metadata/groups/reconciliation) has no `members`, but a `consumer`, in format 2:

     "consumer":{"epoch":7,"assignor":"uniform","session_timeout_ms":45000,"topics":{"orders":["<topic id>",12]},
                 "unreadable":[["orgs"]],
                 "members":[{"member_id":"…","topics":["orders"],"epoch":7,"previous_epoch":6,"state":"stable", …
                             "pattern":"or.*","unreadable_set":0,"principal":["billing","<key id>"],
                             "assigned":{"<topic id>":[0,1]},"revoking":{},"target":{"<topic id>":[0,1]}}]}

`coordinator` is the session of the broker that wrote it. A new coordinator writes the group again before it answers any call,
which raises its revision: so every later write of a former coordinator compares false.

A coordinator that gives a group up in the middle of a rebalance writes it once more, if the next one has not come yet:

     "handed_over":{"alone_in_ms":0,"silent_in_ms":{"c1-…":31000}}

Invariant: waiting calls are not stored, and need not be: the next coordinator makes each member ask again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from metadata.errors import Corrupt, TooLarge
from metadata.groups.model import NO_INSTANCE, Barrier, Generation, Group, GroupPhase, InstanceId, Member, MemberId
from metadata.groups.reconciliation.group import ReconciledGroup, joined
from metadata.groups.reconciliation.model import ConsumerGroup, ConsumerMember, GroupTopic, MemberPrincipal, MemberState, Partitions
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, SessionId, TopicId, TopicPartition
from metadata.store.interface import KeyValue

FORMAT_VERSION: Final = 1
# Of groups of KIP-848.
CONSUMER_FORMAT_VERSION: Final = 2

_Numbers = dict[TopicId, list[int]]


class PendingHandover(msgspec.Struct, frozen=True):
    """Holds what a coordinator knew when it gave the group up; it has answered no call since.

    Members that left or were lost since the generation began are removed from the record.
    """

    # How long its own predecessor may still answer.
    alone_in_ms: int
    # How long each member may stay silent before it is lost.
    silent_in_ms: Mapping[MemberId, int]


class ConsumerMemberRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Is the stored form of a member of KIP-848."""

    member_id: MemberId
    instance_id: InstanceId = NO_INSTANCE
    rack: str = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    topics: list[str] = []
    pattern: str | None = None
    # Index of its unreadable topics in the sets of the record; -1: none.
    unreadable_set: int = -1
    principal: MemberPrincipal | None = None
    assignor: str = ""
    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: _Numbers = {}
    revoking: _Numbers = {}
    target: _Numbers = {}


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Is the stored form of what only groups of KIP-848 have."""

    epoch: int
    assignor: str
    session_timeout_ms: int
    topics: dict[str, GroupTopic]
    # Topics that members may not read: each set once, since members of one principal share theirs.
    unreadable: list[list[str]] = []
    members: list[ConsumerMemberRecord]


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Is the stored form of a group."""

    format_version: int = FORMAT_VERSION
    coordinator: SessionId
    phase: GroupPhase
    generation: Generation
    protocol_type: str
    protocol: str
    leader: MemberId
    changed_at_ms: int
    members: Sequence[Member]
    handed_over: PendingHandover | msgspec.UnsetType = msgspec.UNSET
    consumer: ConsumerRecord | msgspec.UnsetType = msgspec.UNSET


def encode_group(group: Group, coordinator: SessionId, handed_over: PendingHandover | msgspec.UnsetType = msgspec.UNSET) -> bytes:
    consumer = _consumer_record(group.consumer) if isinstance(group, ReconciledGroup) else msgspec.UNSET
    return msgspec.json.encode(
        GroupRecord(
            format_version=FORMAT_VERSION if consumer is msgspec.UNSET else CONSUMER_FORMAT_VERSION,
            coordinator=coordinator,
            phase=group.phase,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader,
            changed_at_ms=group.changed_at_ms,
            members=list(_named(group).values()) if consumer is msgspec.UNSET else [],
            handed_over=handed_over,
            consumer=consumer,
        )
    )


def _named(group: Group) -> dict[MemberId, Member]:
    """Returns the members without those that do not know their ids yet: they join again as new ones."""
    return {at: member for at, member in group.members.items() if at not in group.unnamed}


def check_group_size(group: Group, settings: GroupSettings) -> None:
    """Raises TooLarge where the group could not be stored."""
    named = replace(group, unnamed=frozenset())  # as the next generation is stored
    size_bytes = len(encode_group(named, SessionId(0)))
    if size_bytes > settings.group_bytes_max:
        raise TooLarge(
            f"the group takes {size_bytes} bytes with its {len(group.members)} members; {settings.group_bytes_max} is the most",
            hint="Subscribe to fewer topics by name, or use several groups.",
        )


def encode_handover(
    group: Group, coordinator: SessionId, *, stored: Group, silent_at_ms: Mapping[MemberId, int], now_ms: int
) -> bytes | None:
    """Encodes what the next coordinator can't know otherwise; None for a group at rest, whose record suffices.

    Where every member of the `stored` generation remains, it goes on until a new member joins again. Members that do not know
    their ids
    are left out. Each member keeps at least half of its session, since it has to find the next coordinator.
    """
    if group.barrier is None or group.barrier.first:
        return None
    left = stored if _named(stored).keys() <= group.members.keys() else group
    silent_in_ms: dict[MemberId, int] = {}
    for at, member in _named(left).items():
        session_ms, began_ms = member.session_timeout_ms, max(now_ms, group.alone_from_ms)
        left_ms = silent_at_ms[at] - began_ms if at in silent_at_ms and at not in group.joining else session_ms
        silent_in_ms[at] = max(left_ms, session_ms // 2)
    handed_over = PendingHandover(max(group.alone_from_ms - now_ms, 0), silent_in_ms)
    return encode_group(left, coordinator, handed_over)


def decode_group(kept: KeyValue, *, now_ms: int, proof_ms: int = 0) -> Group:
    """Decodes a group for its next coordinator: a barrier, and the time to sync, begin again. Raises Corrupt.

    The former one may still answer for `proof_ms`, unless it has handed the group over. In a generation without an assignment it is
    unknown which members wait for it: dynamic members and the leader must ask again.
    """
    try:
        record = msgspec.json.decode(kept.value, type=GroupRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{kept.key} holds no consumer group: {error}", key=kept.key) from error
    if record.format_version > CONSUMER_FORMAT_VERSION:
        raise Corrupt(
            f"{kept.key} was written by a newer version of Tidelog (format {record.format_version})",
            hint="Upgrade this broker.",
            key=kept.key,
        )
    handed_over = record.handed_over
    alone_from_ms = now_ms + (proof_ms if isinstance(handed_over, msgspec.UnsetType) else handed_over.alone_in_ms)
    if not isinstance(record.consumer, msgspec.UnsetType):
        held = ReconciledGroup(
            changed_at_ms=record.changed_at_ms, alone_from_ms=alone_from_ms, consumer=_consumer_group(record.consumer)
        )
        return joined(held, now_ms=now_ms)
    unsynced = frozenset[MemberId]()
    if record.phase is GroupPhase.COMPLETING:
        unsynced = frozenset(
            member.member_id for member in record.members if member.instance_id == NO_INSTANCE or member.member_id == record.leader
        )
    longest_ms = max((member.rebalance_timeout_ms for member in record.members), default=0)
    return Group(
        phase=record.phase,
        generation=record.generation,
        protocol_type=record.protocol_type,
        protocol=record.protocol,
        leader=record.leader,
        members={member.member_id: member for member in record.members},
        changed_at_ms=record.changed_at_ms,
        barrier=Barrier(alone_from_ms, alone_from_ms + longest_ms, first=False) if record.phase is GroupPhase.PREPARING else None,
        unsynced=unsynced,
        sync_by_ms=alone_from_ms + longest_ms if record.phase is GroupPhase.COMPLETING else 0,
        alone_from_ms=alone_from_ms,
        silent_in_ms={} if isinstance(handed_over, msgspec.UnsetType) else handed_over.silent_in_ms,
    )


# ── groups of KIP-848 ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _consumer_record(group: ConsumerGroup) -> ConsumerRecord:
    sets = list(dict.fromkeys(member.unreadable for member in group.members.values() if member.unreadable))
    indexes = {each: index for index, each in enumerate(sets)}
    return ConsumerRecord(
        epoch=group.epoch,
        assignor=group.assignor,
        session_timeout_ms=group.session_timeout_ms,
        topics=dict(group.topics),
        unreadable=[sorted(each) for each in sets],
        members=[
            ConsumerMemberRecord(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack=member.rack,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=sorted(member.topics),
                pattern=member.pattern,
                unreadable_set=indexes.get(member.unreadable, -1),
                principal=member.principal,
                assignor=member.assignor,
                epoch=member.epoch,
                previous_epoch=member.previous_epoch,
                state=member.state,
                assigned=_numbers(member.assigned),
                revoking=_numbers(member.revoking),
                target=_numbers(member.target),
            )
            for member in group.members.values()
        ],
    )


def _consumer_group(record: ConsumerRecord) -> ConsumerGroup:
    sets = [frozenset(each) for each in record.unreadable]
    members = [
        ConsumerMember(
            member_id=each.member_id,
            instance_id=each.instance_id,
            rack=each.rack,
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            topics=frozenset(each.topics),
            pattern=each.pattern,
            unreadable=sets[each.unreadable_set] if 0 <= each.unreadable_set < len(sets) else frozenset(),
            principal=each.principal,
            assignor=each.assignor,
            epoch=each.epoch,
            previous_epoch=each.previous_epoch,
            state=each.state,
            assigned=_partitions(each.assigned),
            revoking=_partitions(each.revoking),
            target=_partitions(each.target),
        )
        for each in record.members
    ]
    return ConsumerGroup(
        epoch=record.epoch,
        assignor=record.assignor,
        session_timeout_ms=record.session_timeout_ms,
        topics=record.topics,
        members={member.member_id: member for member in members},
    )


def _numbers(partitions: Partitions) -> _Numbers:
    found: _Numbers = {}
    for at in sorted(partitions):
        found.setdefault(at.topic_id, []).append(at.partition)
    return found


def _partitions(numbers: _Numbers) -> Partitions:
    return frozenset(TopicPartition(topic_id, Partition(number)) for topic_id, each in numbers.items() for number in each)
