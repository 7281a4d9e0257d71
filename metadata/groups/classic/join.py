"""Joins a member to a consumer group: as a new one, again, or under its instance id in place of its former process. Pure.

Each case ends at the barrier, or is answered at once where nothing changes. Invariant: what is refused has changed nothing.
Source: Kafka's group coordinator, KIP-345 (static members), KIP-394 (ids before joining), KIP-814 (static leaders).
"""

from __future__ import annotations

from msgspec.structs import replace

from metadata.errors import GroupFull, InconsistentProtocol, InvalidArgument, MemberIdRequired, RebalanceInProgress, TooLarge
from metadata.groups.classic.rebalance_barrier import (
    Answer,
    Step,
    chosen_protocol,
    fenced_instance,
    joined,
    offered_by_all,
    open_if_all_are_here,
    prepare,
    unknown,
    without,
)
from metadata.groups.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from metadata.groups.model import (
    NO_INSTANCE,
    NO_MEMBER,
    Group,
    GroupPhase,
    JoinRequest,
    Member,
    MemberId,
    Waiter,
    check_member_name,
    shown,
)
from metadata.groups.record import check_group_size
from metadata.groups.settings import GroupSettings


def join(
    group: Group, request: JoinRequest, waiter: Waiter, *, new_member_id: MemberId, now_ms: int, settings: GroupSettings
) -> Step:
    """Returns the group with the join. Raises what refuses it, with the group unchanged; MemberIdRequired is an answer."""
    step = _join(group, request, waiter, new_member_id=new_member_id, now_ms=now_ms, settings=settings)
    if step.group.members is not group.members:
        check_group_size(step.group, settings)
    return step


def _join(
    group: Group, request: JoinRequest, waiter: Waiter, *, new_member_id: MemberId, now_ms: int, settings: GroupSettings
) -> Step:
    _check_join(group, request, settings)
    if request.member_id == NO_MEMBER and group.static_member(request.instance_id) is None:
        _check_room(group, settings)
    if request.instance_id != NO_INSTANCE:
        return _join_static(group, request, waiter, new_member_id=new_member_id, now_ms=now_ms, settings=settings)
    if request.member_id == NO_MEMBER:
        if request.member_id_required:
            announced = {**group.announced, new_member_id: now_ms + request.session_timeout_ms}
            required = MemberIdRequired("join again with the member id in the details", member_id=new_member_id)
            return Step(replace(group, announced=announced), ((waiter, required),))
        return _enter(group, request, new_member_id, waiter, now_ms=now_ms, settings=settings)
    if request.member_id in group.announced:
        return _enter(group, request, request.member_id, waiter, now_ms=now_ms, settings=settings)
    if request.member_id in group.members:
        return _rejoin(group, request, waiter, now_ms=now_ms, settings=settings)
    raise unknown(request.member_id)


def _join_static(
    group: Group, request: JoinRequest, waiter: Waiter, *, new_member_id: MemberId, now_ms: int, settings: GroupSettings
) -> Step:
    held = group.static_member(request.instance_id)
    if request.member_id == NO_MEMBER:
        if held is None:
            return _enter(group, request, new_member_id, waiter, now_ms=now_ms, settings=settings)
        return _replace_static(group, held, request, waiter, new_member_id=new_member_id, now_ms=now_ms, settings=settings)
    if held is None:
        raise unknown(request.member_id)
    if held.member_id != request.member_id:
        raise fenced_instance(request.instance_id)
    return _rejoin(group, request, waiter, now_ms=now_ms, settings=settings)


def _check_join(group: Group, request: JoinRequest, settings: GroupSettings) -> None:
    lowest, highest = settings.group_session_timeout_ms_min, settings.group_session_timeout_ms_max
    if not lowest <= request.session_timeout_ms <= highest:
        raise InvalidArgument(
            f"a session timeout of {request.session_timeout_ms} ms is not between {lowest} and {highest} ms",
            hint="Choose one between, or change group_session_timeout_ms_min and …_max of the brokers.",
            field="session_timeout_ms",
        )
    if request.rebalance_timeout_ms < 1:
        raise InvalidArgument("the rebalance timeout must be at least 1 ms", field="rebalance_timeout_ms")
    for field, named in (("protocol_type", request.protocol_type), ("protocols", request.protocols)):
        if not named:
            raise InconsistentProtocol("who joins names a protocol type, and at least one protocol", field=field)
    for field in ("client_id", "client_host", "instance_id", "protocol_type"):
        check_member_name(field, getattr(request, field))
    size_bytes = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    if size_bytes > settings.group_metadata_bytes_max:
        raise TooLarge(
            f"what the member offers has {size_bytes} bytes; {settings.group_metadata_bytes_max} is the most",
            hint="Subscribe by pattern, or to fewer topics.",
            field="protocols",
        )
    names = [protocol.name for protocol in request.protocols]
    if len(set(names)) < len(names) or not all(names):
        raise InconsistentProtocol("each protocol has a name, and is offered once", field="protocols")
    for name in names:
        check_member_name("protocols", name)
    others = [member for member in group.members.values() if not _is_the_same(member, request)]
    if not others:
        return
    if request.protocol_type != group.protocol_type:
        raise InconsistentProtocol(
            f"the group's protocol type is {group.protocol_type!r}, not {request.protocol_type!r}",
            hint="Use another group: the members of one must be of the same kind.",
            field="protocol_type",
        )
    if not offered_by_all(others) & set(names):
        raise InconsistentProtocol(
            f"the others in the group offer {shown(', '.join(sorted(offered_by_all(others))))}; none of these is offered here",
            hint="Offer an assignor that all members know: change one member after the other, with both for a while.",
            field="protocols",
        )


def _check_room(group: Group, settings: GroupSettings) -> None:
    if len(group.members) + len(group.announced) >= settings.group_members_max:
        raise GroupFull(
            f"the group has {len(group.members) + len(group.announced)} members, which is as many as it may have",
            hint="Let some leave, or raise group_members_max of the brokers.",
        )


def _is_the_same(member: Member, request: JoinRequest) -> bool:
    return member.member_id == request.member_id or (
        request.instance_id != NO_INSTANCE and member.instance_id == request.instance_id
    )


def _enter(
    group: Group, request: JoinRequest, member_id: MemberId, waiter: Waiter, *, now_ms: int, settings: GroupSettings
) -> Step:
    """Adds a new member."""
    entered = replace(group, protocol_type=request.protocol_type, announced=without(group.announced, member_id))
    if request.member_id == NO_MEMBER and request.instance_id == NO_INSTANCE:
        entered = replace(entered, unnamed=entered.unnamed | {member_id})
    return _wait_at_barrier(entered, _member(request, member_id), waiter, entering=True, now_ms=now_ms, settings=settings)


def _rejoin(group: Group, request: JoinRequest, waiter: Waiter, *, now_ms: int, settings: GroupSettings) -> Step:
    held = group.members[request.member_id]
    member = replace(_member(request, held.member_id), instance_id=held.instance_id, assignment=held.assignment)
    unchanged = (member.protocols, request.protocol_type) == (held.protocols, group.protocol_type)
    if unchanged and group.phase is GroupPhase.COMPLETING:
        return Step(group, ((waiter, joined(group, held.member_id)),))  # its answer was lost
    if unchanged and group.phase is GroupPhase.STABLE and held.member_id != group.leader:
        return Step(group, ((waiter, joined(group, held.member_id)),))
    group = replace(group, protocol_type=request.protocol_type)  # of another kind only where there are no others
    return _wait_at_barrier(group, member, waiter, entering=False, now_ms=now_ms, settings=settings)


def _replace_static(
    group: Group,
    held: Member,
    request: JoinRequest,
    waiter: Waiter,
    *,
    new_member_id: MemberId,
    now_ms: int,
    settings: GroupSettings,
) -> Step:
    """Gives the place of a static member to its new process, under a new id, and ends the calls of the former one."""
    fenced = tuple(
        (waiting[held.member_id], fenced_instance(held.instance_id))
        for waiting in (group.joining, group.syncing)
        if held.member_id in waiting
    )
    member = replace(_member(request, new_member_id), assignment=held.assignment)
    members = {
        (new_member_id if at == held.member_id else at): (member if at == held.member_id else kept)
        for at, kept in group.members.items()
    }
    was_leader = group.leader == held.member_id
    replaced = replace(
        group,
        members=members,
        leader=new_member_id if was_leader else group.leader,
        joining=without(group.joining, held.member_id),
        syncing=without(group.syncing, held.member_id),
        unsynced=frozenset(new_member_id if at == held.member_id else at for at in group.unsynced),
    )
    if group.phase is GroupPhase.STABLE and chosen_protocol(members) == group.protocol and _asks_for_the_same(group, held, member):
        rejoined = joined(replaced, new_member_id)._replace(skip_assignment=was_leader)
        return Step(replaced, (*fenced, (waiter, rejoined)), stored=True)
    step = _wait_at_barrier(replaced, member, waiter, entering=False, now_ms=now_ms, settings=settings)
    return step._replace(answers=(*fenced, *step.answers), stored=True)


def _asks_for_the_same(group: Group, held: Member, member: Member) -> bool:
    """Returns whether the assignment still fits a static member that came back.

    Kafka's consumers also send what they own, which after a restart is nothing: only their topics count. The metadata of other
    protocol types are opaque and compared whole.
    """
    before, now = held.metadata(group.protocol), member.metadata(group.protocol)
    if before == now or group.protocol_type != PROTOCOL_TYPE:
        return before == now
    try:
        return set(decode_subscription(before).topics) == set(decode_subscription(now).topics)
    except InvalidArgument:
        return False


def _wait_at_barrier(group: Group, member: Member, waiter: Waiter, *, entering: bool, now_ms: int, settings: GroupSettings) -> Step:
    members = {**group.members, member.member_id: member}
    group = replace(group, members=members)
    began, answers = group, tuple[Answer, ...]()
    if group.phase is not GroupPhase.PREPARING:
        began, answers = prepare(group, now_ms=now_ms, settings=settings)
    assert began.barrier is not None, "it is preparing"
    if (earlier := began.joining.get(member.member_id)) is not None:
        answers += ((earlier, RebalanceInProgress("the same member has asked to join again")),)
    barrier = began.barrier
    if barrier.first and entering:
        longest_ms = barrier.began_ms + max(each.rebalance_timeout_ms for each in members.values())
        barrier = barrier._replace(opens_ms=min(now_ms + settings.group_initial_rebalance_delay_ms, longest_ms))
    elif not barrier.first:
        longest_ms = barrier.began_ms + max(each.rebalance_timeout_ms for each in members.values())
        barrier = barrier._replace(opens_ms=longest_ms)
    joining = {**began.joining, member.member_id: waiter}
    waiting = replace(began, joining=joining, hung_up=began.hung_up - {member.member_id}, barrier=barrier)
    step = open_if_all_are_here(waiting, now_ms=now_ms)
    return step._replace(answers=(*answers, *step.answers))


def _member(request: JoinRequest, member_id: MemberId) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
    )
