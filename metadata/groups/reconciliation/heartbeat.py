"""Takes a heartbeat of a member: it joins, follows its target, changes its subscription, or leaves. Pure.

    epoch  0      joins; a known member begins again and owns nothing
    epoch  n      has received epoch n; the epoch before is accepted where the answer with n may have been lost
    epoch -1      leaves for good
    epoch -2      a static member leaves for now, and keeps its partitions until its session ends

Fencing: an epoch that the member cannot have is FencedMemberEpoch, and the member must give everything up and join again.
Source: KIP-848, GroupMetadataManager in Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from metadata.errors import (
    FencedMemberEpoch,
    GroupFull,
    InstanceFenced,
    InvalidArgument,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from metadata.groups.model import NO_INSTANCE, NO_MEMBER, InstanceId, MemberId, check_member_name, shown
from metadata.groups.reconciliation.model import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    NO_PARTITIONS,
    Beat,
    ConsumerGroup,
    ConsumerMember,
    GroupTopic,
    Heartbeat,
    MemberPrincipal,
    MemberState,
    ReadableTopics,
    all_readable,
)
from metadata.groups.reconciliation.reconcile import reconciled
from metadata.groups.reconciliation.target import SERVER_ASSIGNORS, preferred_assignor, target_assignment
from metadata.groups.reconciliation.topic_pattern import TopicPattern

# Bytes of the names of topics, or of the pattern, that one member subscribes to.
SUBSCRIPTION_CHARACTERS_MAX: Final = 256 << 10


def heartbeat(
    group: ConsumerGroup,
    request: Heartbeat,
    topics: Mapping[str, GroupTopic],
    *,
    members_max: int,
    readable: ReadableTopics = all_readable,
    view_changed: bool = True,
) -> tuple[ConsumerGroup, Beat]:
    """Returns the group after the heartbeat, the same object where nothing changed, and the answer. Raises what refuses it.

    `topics`: all topics of the cluster, by name. `view_changed`: whether these or rights have changed since the group's last step.
    """
    _check(request)
    if request.epoch == LEAVING:
        return remove(group, [_found(group, request).member_id], topics, readable), Beat(request.member_id, LEAVING)
    if request.epoch == LEAVING_FOR_NOW:
        return _left_for_now(group, request)
    if request.epoch == JOINING:
        known, others = _joining(group, request, members_max=members_max)
    else:
        known, others = _found(group, request), group.members
        _check_epoch(known, request)
    member = _updated(known, request, group)
    is_new = known.rebalance_timeout_ms == 0
    changes_target = is_new or _subscription(member) != _subscription(known)
    after = group
    if others.get(member.member_id) is not member:
        after = replace(group, members={**others, member.member_id: member})
    if changes_target:
        after = replace(after, epoch=group.epoch + 1)
    if changes_target or view_changed or member.principal != known.principal:
        after = refreshed(after, topics, readable, must=changes_target)
    member = after.members[member.member_id]
    if member.epoch != after.epoch or member.state is not MemberState.STABLE:
        held_by_others = frozenset(each for other in after.members.values() if other is not member for each in other.held)
        moved = reconciled(member, epoch=after.epoch, owned=request.owned, held_by_others=held_by_others)
        if moved != member:
            member = moved
            after = replace(after, members={**after.members, member.member_id: member})
    says_all = request.epoch == JOINING or request.is_full or member.assigned != known.assigned
    return after, Beat(member.member_id, member.epoch, member.assigned if says_all else None)


def remove(
    group: ConsumerGroup, members: Collection[MemberId], topics: Mapping[str, GroupTopic], readable: ReadableTopics = all_readable
) -> ConsumerGroup:
    """Removes members that left, or whose time is over. The others are given what these owned."""
    left = {at: member for at, member in group.members.items() if at not in members}
    if len(left) == len(group.members):
        return group
    return refreshed(replace(group, members=left, epoch=group.epoch + 1), topics, readable, must=True)


def refreshed(
    group: ConsumerGroup, topics: Mapping[str, GroupTopic], readable: ReadableTopics = all_readable, *, must: bool = False
) -> ConsumerGroup:
    """Computes the target again where the subscribed topics, or a member's share of them, have changed; `must`: in any case.

    A pattern subscribes to the topics that the member may read. A member whose rights are not known keeps what it subscribes to.
    """
    names = frozenset(topics)
    by_pattern: dict[str, frozenset[str]] = {}
    by_rights: dict[tuple[str, MemberPrincipal | None], frozenset[str] | None] = {}
    subscriptions = dict[MemberId, frozenset[str]]()
    for member in group.members.values():
        wanted = member.topics
        if (pattern := member.pattern) is not None:
            if pattern not in by_pattern:
                by_pattern[pattern] = TopicPattern(pattern).matching(names)
            rights = pattern, member.principal
            if rights not in by_rights:
                by_rights[rights] = readable(member.principal, by_pattern[pattern])
            matched = by_rights[rights]
            if matched is None:
                matched = by_pattern[pattern].intersection(group.topics) - member.unreadable
            wanted |= matched
        subscriptions[member.member_id] = wanted
    seen = {name: topics[name] for name in sorted(frozenset().union(*subscriptions.values()) & names)}
    unreadable = {
        at: by_pattern[member.pattern].intersection(seen) - subscriptions[at] if member.pattern is not None else frozenset[str]()
        for at, member in group.members.items()
    }
    if not must and seen == group.topics and all(unreadable[at] == each.unreadable for at, each in group.members.items()):
        return group
    assignor = preferred_assignor(group.members)
    target = target_assignment(assignor, group.members, subscriptions, seen)
    members = {
        at: member
        if member.target == target[at] and member.unreadable == unreadable[at]
        else replace(member, target=target[at], unreadable=unreadable[at])
        for at, member in group.members.items()
    }
    epoch = group.epoch if must else group.epoch + 1
    return replace(group, epoch=epoch, assignor=assignor, topics=seen, members=members)


def check_member_commit(group: ConsumerGroup, member_id: MemberId, epoch: int) -> None:
    """Raises unless the member may commit in this epoch, or a caller without an id in a group without members.

    A member that has not received its newest epoch must do so first: StaleMemberEpoch.
    """
    if member_id == NO_MEMBER and epoch < 0:
        if group.members:
            raise UnknownMember(
                "the group has members, and only they commit its offsets",
                hint="Commit as a member, use another group, or stop its members first.",
            )
        return
    member = group.members.get(member_id)
    if member is None:
        raise _unknown(member_id)
    if epoch != member.epoch:
        raise StaleMemberEpoch(f"epoch {epoch} is not the present one of the member, {member.epoch}", epoch=member.epoch)


def member_to_remove(group: ConsumerGroup, member_id: MemberId, instance_id: InstanceId) -> MemberId:
    """Returns the member that an operator removes; one with an instance id may be named by that alone. Raises what refuses it."""
    held = group.static_member(instance_id)
    if held is not None and member_id in (NO_MEMBER, held.member_id):
        return held.member_id
    if held is not None:
        raise InstanceFenced(f"another process has joined under the instance id {shown(instance_id)!r}")
    if member_id not in group.members or instance_id != NO_INSTANCE:
        raise _unknown(member_id)
    return member_id


# ── what is wrong with a request ────────────────────────────────────────────────────────────────────────────────────────────


def _check(request: Heartbeat) -> None:
    if request.member_id == NO_MEMBER:
        raise InvalidArgument("a heartbeat names its member", field="member_id")
    for field in ("member_id", "instance_id", "client_id", "client_host", "rack"):
        check_member_name(field, getattr(request, field) or "")
    if request.rack == "":
        raise InvalidArgument("the rack is empty", hint="Leave it out.", field="rack")
    if request.epoch < LEAVING_FOR_NOW:
        raise InvalidArgument(f"a member has no epoch {request.epoch}", field="epoch")
    if request.epoch == LEAVING_FOR_NOW and request.instance_id == NO_INSTANCE:
        raise InvalidArgument("only a member with an instance id can leave for now", field="instance_id")
    if request.epoch == JOINING:
        if request.rebalance_timeout_ms is None:
            raise InvalidArgument("a member that joins names its rebalance timeout", field="rebalance_timeout_ms")
        if request.owned is None or request.owned:
            raise InvalidArgument("a member that joins owns nothing", hint="Send an empty list.", field="topic_partitions")
        if request.topics is None and request.pattern is None:
            raise InvalidArgument("a member that joins names the topics that it subscribes to", field="subscribed_topic_names")
    if request.rebalance_timeout_ms is not None and request.rebalance_timeout_ms < 1:
        raise InvalidArgument("the rebalance timeout must be at least 1 ms", field="rebalance_timeout_ms")
    if sum(map(len, request.topics or ())) + len(request.pattern or "") > SUBSCRIPTION_CHARACTERS_MAX:
        raise InvalidArgument(
            f"the subscription has more than {SUBSCRIPTION_CHARACTERS_MAX} characters",
            hint="Subscribe by a pattern, or to fewer topics.",
            field="subscribed_topic_names",
        )
    if request.assignor is not None and request.assignor not in SERVER_ASSIGNORS:
        raise UnsupportedAssignor(
            f"there is no assignor {shown(request.assignor)!r}", hint=f"Use one of {', '.join(SERVER_ASSIGNORS)}.", field="assignor"
        )
    if request.pattern:
        TopicPattern(request.pattern)


def _found(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
    if request.instance_id != NO_INSTANCE:
        held = group.static_member(request.instance_id)
        if held is None:
            raise _unknown(request.member_id)
        if held.member_id != request.member_id:
            raise InstanceFenced(f"another process has joined under the instance id {shown(request.instance_id)!r}")
        return held
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown(request.member_id)
    return member


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    """Raises FencedMemberEpoch unless the member has received its epoch, or the answer with it may have been lost."""
    if request.epoch == member.epoch:
        return
    if request.epoch == member.previous_epoch != JOINING and request.owned is not None and request.owned <= member.assigned:
        return
    raise FencedMemberEpoch(f"epoch {request.epoch} is not the present one of the member, {member.epoch}", epoch=member.epoch)


def _unknown(member_id: MemberId) -> UnknownMember:
    return UnknownMember(f"the group has no member {shown(member_id)!r}")


# ── coming, changing, going ─────────────────────────────────────────────────────────────────────────────────────────────────


def _joining(
    group: ConsumerGroup, request: Heartbeat, *, members_max: int
) -> tuple[ConsumerMember, Mapping[MemberId, ConsumerMember]]:
    """Returns the member that joins, and the others. A new member has no rebalance timeout yet.

    A member that comes back keeps its target, and owns what it is given by this answer.
    """
    held = group.static_member(request.instance_id)
    if held is not None and held.member_id != request.member_id and held.epoch != LEAVING_FOR_NOW:
        raise UnreleasedInstance(
            f"the instance id {shown(request.instance_id)!r} belongs to another member", hint="Wait until its session has ended."
        )
    held = held or group.members.get(request.member_id)
    if held is None:
        if len(group.members) >= members_max:
            raise GroupFull(f"the group has {members_max} members", hint="Raise group_members_max of the brokers.")
        return ConsumerMember(member_id=request.member_id, rebalance_timeout_ms=0), group.members
    if held.instance_id != request.instance_id:
        raise InvalidArgument("a member keeps its instance id", field="instance_id")
    member = replace(
        held,
        member_id=request.member_id,
        epoch=JOINING,
        previous_epoch=JOINING,
        state=MemberState.STABLE,
        assigned=held.assigned & held.target,
        revoking=NO_PARTITIONS,
    )
    return member, {at: each for at, each in group.members.items() if at not in (held.member_id, request.member_id)}


def _left_for_now(group: ConsumerGroup, request: Heartbeat) -> tuple[ConsumerGroup, Beat]:
    member = _found(group, request)
    if member.epoch != LEAVING_FOR_NOW:
        left = replace(member, epoch=LEAVING_FOR_NOW, previous_epoch=JOINING, state=MemberState.STABLE, revoking=NO_PARTITIONS)
        group = replace(group, members={**group.members, left.member_id: left})
    return group, Beat(member.member_id, LEAVING_FOR_NOW)


def _updated(member: ConsumerMember, request: Heartbeat, group: ConsumerGroup) -> ConsumerMember:
    is_joining = request.epoch == JOINING
    topics, pattern = member.topics, member.pattern
    if request.topics is not None or is_joining:
        topics = request.topics or frozenset()
    if request.pattern is not None or is_joining:
        pattern = request.pattern or None
    unreadable, was, now = member.unreadable, member.principal, request.principal
    if pattern != member.pattern or (was is not None and now is not None and was.principal != now.principal):
        # Until its rights are found, the member gets nothing of what others were found to read.
        unreadable = frozenset(group.topics) if pattern is not None else frozenset()
    after = replace(
        member,
        instance_id=request.instance_id if is_joining else member.instance_id,
        rack=member.rack if request.rack is None else request.rack,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms or member.rebalance_timeout_ms,
        topics=topics,
        pattern=pattern,
        unreadable=unreadable,
        principal=now,
        assignor=member.assignor if request.assignor is None else request.assignor,
    )
    return member if after == member else after


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.topics, member.pattern, member.assignor
