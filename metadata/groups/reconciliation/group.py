"""Joins a group of KIP-848 to what all groups have: sessions, storage, operators' views, and steps of its coordinator. Pure.

`ReconciledGroup` is a Group whose members stand there in the form that Kafka's consumers give them, so that sessions, lags,
descriptions and expiry need not know which protocol a group has. Its steps are decided here.

A group has one protocol at a time: a group without members becomes one of the other protocol by its first member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from metadata.errors import InconsistentProtocol, UnknownGroup
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, Subscription, encode_assignment, encode_subscription
from metadata.groups.model import Generation, Group, GroupPhase, Member, MemberId, Protocol
from metadata.groups.reconciliation.heartbeat import heartbeat, remove
from metadata.groups.reconciliation.model import (
    Beat,
    ConsumerGroup,
    ConsumerMember,
    GroupTopic,
    Heartbeat,
    MemberState,
    Partitions,
    ReadableTopics,
)
from metadata.groups.settings import GroupSettings
from metadata.model import TopicId

# States that only groups of KIP-848 have, in Kafka's words.
RECONCILING: Final = "Reconciling"
# The two types of groups.
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


class ReconciledGroup(Group, frozen=True):
    """Holds a group of KIP-848."""

    consumer: ConsumerGroup = ConsumerGroup()
    # When members are removed that have to give partitions up; in memory only.
    revoke_by_ms: Mapping[MemberId, int] = {}


def as_reconciled(name: str, group: Group) -> ReconciledGroup:
    """Returns the group; an empty one of the classic protocol becomes one of KIP-848. Raises UnknownGroup where it has members."""
    if isinstance(group, ReconciledGroup):
        return group
    if group.phase is not GroupPhase.EMPTY or group.announced:
        raise UnknownGroup(
            f"group {name} uses the classic protocol", hint="Stop its members first, or use group.protocol=classic.", group=name
        )
    return ReconciledGroup(
        generation=group.generation,
        changed_at_ms=group.changed_at_ms,
        alone_from_ms=group.alone_from_ms,
        consumer=ConsumerGroup(epoch=group.generation),
    )


def as_classic(name: str, group: Group) -> Group:
    """Returns the group; an empty one of KIP-848 becomes one of the classic protocol. Raises InconsistentProtocol."""
    if not isinstance(group, ReconciledGroup):
        return group
    if group.members:
        raise InconsistentProtocol(
            f"group {name} uses the consumer protocol", hint="Stop its members first, or use group.protocol=consumer.", group=name
        )
    return Group(generation=group.generation, changed_at_ms=group.changed_at_ms, alone_from_ms=group.alone_from_ms)


def state_of(group: Group) -> str:
    """Returns the state of a group in Kafka's words."""
    if isinstance(group, ReconciledGroup) and group.members and group.consumer.is_reconciling:
        return RECONCILING
    return group.phase.value


def type_of(group: Group) -> str:
    """Returns the type of a group in Kafka's words."""
    return CONSUMER if isinstance(group, ReconciledGroup) else CLASSIC


def beaten(
    group: ReconciledGroup,
    request: Heartbeat,
    topics: Mapping[str, GroupTopic],
    *,
    readable: ReadableTopics,
    view_changed: bool,
    now_ms: int,
    settings: GroupSettings,
) -> tuple[ReconciledGroup, Beat]:
    """Returns the group after a heartbeat, the same object where nothing changed, and the answer. Raises what refuses it."""
    after, beat = heartbeat(
        group.consumer,
        request,
        topics,
        members_max=settings.group_members_max,
        readable=readable,
        view_changed=view_changed,
    )
    return changed(group, after, now_ms=now_ms, settings=settings), beat


def without_members(
    group: ReconciledGroup,
    members: Collection[MemberId],
    topics: Mapping[str, GroupTopic],
    *,
    readable: ReadableTopics,
    now_ms: int,
    settings: GroupSettings,
) -> ReconciledGroup:
    """Returns the group without members that left, that were silent for too long, or that gave nothing up in time."""
    return changed(group, remove(group.consumer, members, topics, readable), now_ms=now_ms, settings=settings)


def late_to_revoke(group: ReconciledGroup, *, now_ms: int) -> list[MemberId]:
    """Returns the members that had their rebalance timeout to give partitions up."""
    return [at for at, by_ms in group.revoke_by_ms.items() if by_ms <= now_ms]


def changed(group: ReconciledGroup, after: ConsumerGroup, *, now_ms: int, settings: GroupSettings) -> ReconciledGroup:
    if after is group.consumer:
        return group
    return joined(
        replace(group, consumer=replace(after, session_timeout_ms=settings.group_consumer_session_timeout_ms)), group, now_ms=now_ms
    )


def joined(group: ReconciledGroup, before: ReconciledGroup | None = None, *, now_ms: int) -> ReconciledGroup:
    """Returns the group with its members in the form of all groups, and with the times by which they must give partitions up."""
    consumer = group.consumer
    names = {topic.topic_id: name for name, topic in consumer.topics.items()}
    known = before.consumer if before is not None and before.consumer.topics == consumer.topics else None
    members, revoke_by_ms = dict[MemberId, Member](), dict[MemberId, int]()
    for at, member in consumer.members.items():
        if before is not None and known is not None and known.members.get(at) is member and at in before.members:
            members[at] = before.members[at]
        else:
            members[at] = _member(member, consumer, names)
        if member.state is MemberState.UNREVOKED:
            began_ms = max(now_ms, group.alone_from_ms)
            earlier = None if before is None else before.revoke_by_ms.get(at)
            revoke_by_ms[at] = earlier if earlier is not None else began_ms + member.rebalance_timeout_ms
    return replace(
        group,
        phase=GroupPhase.STABLE if members else GroupPhase.EMPTY,
        generation=Generation(consumer.epoch),
        protocol_type=PROTOCOL_TYPE,
        protocol=consumer.assignor,
        members=members,
        revoke_by_ms=revoke_by_ms,
    )


def _member(member: ConsumerMember, consumer: ConsumerGroup, names: Mapping[TopicId, str]) -> Member:
    subscription = encode_subscription(Subscription(tuple(sorted(member.topics)), rack=member.rack))
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=consumer.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=(Protocol(consumer.assignor, subscription),),
        assignment=encode_assignment(by_name(member.assigned, names)),
    )


def by_name(partitions: Partitions, names: Mapping[TopicId, str]) -> dict[str, list[int]]:
    """Returns the partitions by the name of their topic, without those of topics that are gone."""
    found: dict[str, list[int]] = {}
    for at in sorted(partitions):
        if (name := names.get(at.topic_id)) is not None:
            found.setdefault(name, []).append(at.partition)
    return found
