"""Changes a consumer group between two rebalances: assignments, heartbeats, commits, and lost members. Pure.

Each step takes the group, the request and the time, and returns the group that follows and the answers that may now be sent.

Invariants: at most one member of a generation leads it, and only it assigns; an assignment is sent only to members of its
generation, after it was stored; only members of the present generation commit offsets while the group has members.
Source: Kafka's group coordinator, KIP-62 (rebalance timeout).
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from metadata.errors import InconsistentProtocol, InvalidArgument, StaleGeneration, TooLarge, UnknownMember
from metadata.groups.classic.rebalance_barrier import (
    Answer,
    Step,
    fenced_instance,
    open_if_all_are_here,
    prepare,
    rebalancing,
    unknown,
    waiting,
    without,
)
from metadata.groups.model import (
    NO_GENERATION,
    NO_INSTANCE,
    NO_MEMBER,
    Generation,
    Group,
    GroupPhase,
    InstanceId,
    MemberId,
    Synced,
    SyncRequest,
    Waiter,
    shown,
)
from metadata.groups.record import check_group_size
from metadata.groups.settings import GroupSettings


def sync(group: Group, request: SyncRequest, waiter: Waiter, *, settings: GroupSettings) -> Step:
    """Returns the group with the request for an assignment. Raises what refuses it."""
    _check_member(group, request.member_id, request.instance_id)
    _check_generation(group, request.generation)
    for field, asked, held in (
        ("protocol_type", request.protocol_type, group.protocol_type),
        ("protocol", request.protocol, group.protocol),
    ):
        if asked and asked != held:
            raise InconsistentProtocol(
                f"the generation's {field} is {shown(held)!r}, not {shown(asked)!r}", hint="Join again.", field=field
            )
    if group.phase is GroupPhase.PREPARING:
        raise rebalancing()
    for assignment in request.assignments.values():
        _check_assignment(len(assignment), settings)
    group = replace(group, unsynced=group.unsynced - {request.member_id})
    if group.phase is GroupPhase.STABLE:
        return Step(group, ((waiter, _synced(group, request.member_id)),))
    answers: tuple[Answer, ...] = ()
    if (earlier := group.syncing.get(request.member_id)) is not None:
        answers = ((earlier, rebalancing()),)
    waits = replace(group, syncing={**group.syncing, request.member_id: waiter})
    if request.member_id != group.leader:
        return Step(waits, answers)
    unknown_ids = sorted(request.assignments.keys() - group.members.keys())
    if unknown_ids:
        raise InvalidArgument(
            f"the assignment names {shown(unknown_ids[0])!r}, which is not a member of generation {group.generation}",
            hint="Assign to the members that the answer to JoinGroup named.",
            field="assignments",
        )
    stable = replace(
        waits,
        phase=GroupPhase.STABLE,
        members={at: replace(member, assignment=request.assignments.get(at, b"")) for at, member in group.members.items()},
        syncing={},
    )
    check_group_size(stable, settings)
    answers += tuple((waiting_for_it, _synced(stable, at)) for at, waiting_for_it in waits.syncing.items())
    return Step(stable, answers, stored=True)


def _check_assignment(size_bytes: int, settings: GroupSettings) -> None:
    if size_bytes > settings.group_metadata_bytes_max:
        raise TooLarge(
            f"an assignment has {size_bytes} bytes; {settings.group_metadata_bytes_max} is the most",
            hint="Assign fewer partitions to one member.",
            field="assignments",
        )


def _synced(group: Group, member_id: MemberId) -> Synced:
    return Synced(group.protocol_type, group.protocol, group.members[member_id].assignment)


def check_heartbeat(group: Group, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
    """Raises RebalanceInProgress where the member must join again, or has joined and waits; and what refuses it.

    A member that waits may name an earlier generation: its answer was lost, and the next rebalance has begun.
    """
    _check_member(group, member_id, instance_id)
    if member_id in group.joining:
        raise waiting()
    _check_generation(group, generation)
    if group.phase is GroupPhase.PREPARING:
        raise rebalancing()


def check_commit(group: Group, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
    """Raises unless a member of the present generation commits, or a caller without an id in an empty group.

    A member commits until the next generation begins, so the last commit before it joins again still counts.
    """
    if generation == NO_GENERATION and member_id == NO_MEMBER:
        if group.phase is not GroupPhase.EMPTY:
            raise UnknownMember(
                "the group has members, and only they commit its offsets",
                hint="Commit as a member, use another group, or stop its members first.",
            )
        return
    _check_member(group, member_id, instance_id)
    _check_generation(group, generation)
    if group.phase is GroupPhase.COMPLETING:
        raise rebalancing()


def _check_member(group: Group, member_id: MemberId, instance_id: InstanceId) -> None:
    held = group.static_member(instance_id)
    if held is not None and held.member_id != member_id:
        raise fenced_instance(instance_id)
    if member_id not in group.members:
        raise unknown(member_id)


def _check_generation(group: Group, generation: Generation) -> None:
    if generation != group.generation:
        raise StaleGeneration(f"generation {generation} is not the present one, {group.generation}", generation=group.generation)


# ── going ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def leave(group: Group, member_id: MemberId, instance_id: InstanceId, *, now_ms: int, settings: GroupSettings) -> Step:
    """Returns the group without the member. Raises what refuses it. A static member may be named by its instance id alone."""
    if member_id in group.announced:
        return _continued(replace(group, announced=without(group.announced, member_id)), now_ms=now_ms)
    held = group.static_member(instance_id)
    if member_id == NO_MEMBER and held is not None:
        member_id = held.member_id
    _check_member(group, member_id, instance_id)
    return remove(group, [member_id], now_ms=now_ms, settings=settings)


def remove(group: Group, members: Collection[MemberId], *, now_ms: int, settings: GroupSettings) -> Step:
    """Removes members that left, or whose sessions have ended."""
    gone = [at for at in dict.fromkeys(members) if at in group.members]
    if not gone:
        return Step(group)
    answers: tuple[Answer, ...] = tuple(
        (calls[at], unknown(at)) for calls in (group.joining, group.syncing) for at in gone if at in calls
    )
    left = replace(
        group,
        members=without(group.members, *gone),
        joining=without(group.joining, *gone),
        syncing=without(group.syncing, *gone),
        unnamed=group.unnamed.difference(gone),
        hung_up=group.hung_up.difference(gone),
        unsynced=group.unsynced.difference(gone),
        leader=NO_MEMBER if group.leader in gone else group.leader,
    )
    if left.phase is not GroupPhase.PREPARING:
        left, more = prepare(left, now_ms=now_ms, settings=settings)
        answers += more
    step = _continued(left, now_ms=now_ms)
    return step._replace(answers=(*answers, *step.answers))


def _continued(group: Group, *, now_ms: int) -> Step:
    return open_if_all_are_here(group, now_ms=now_ms) if group.phase is GroupPhase.PREPARING else Step(group)


def tick(group: Group, late: Collection[MemberId], *, now_ms: int, settings: GroupSettings) -> Step:
    """Makes the changes that are due by time alone. `late`: members that were silent for their session timeout.

    A member that waits at the barrier, or for its assignment, is not late.
    """
    late = [at for at in late if at not in group.joining and at not in group.syncing]
    if group.unsynced and now_ms >= group.sync_by_ms:
        late += group.unsynced
    announced = {at: until_ms for at, until_ms in group.announced.items() if until_ms > now_ms}
    if len(announced) < len(group.announced):
        group = replace(group, announced=announced)
    step = remove(group, late, now_ms=now_ms, settings=settings)
    if step.stored or step.group.phase is not GroupPhase.PREPARING:
        return step
    opened = _continued(step.group, now_ms=now_ms)
    return opened._replace(answers=(*step.answers, *opened.answers))


def wakes_at_ms(group: Group) -> int | None:
    """Returns when `tick` has work, apart from members that fall silent; None for never."""
    at_ms = list(group.announced.values())
    if group.barrier is not None:
        at_ms.append(group.barrier.opens_ms)
    if group.unsynced:
        at_ms.append(group.sync_by_ms)
    return min(at_ms, default=None)


def hang_up(group: Group, waiter: Waiter, *, now_ms: int, settings: GroupSettings) -> Step:
    """Ends a call whose client no longer waits. The member stays until its session ends, since it may ask again.

    A member that does not know its id can't ask again, so it is removed.
    """
    for calls in (group.joining, group.syncing):
        for at, held in calls.items():
            if held == waiter:
                left = replace(group, joining=without(group.joining, at), syncing=without(group.syncing, at))
                if at in group.unnamed:
                    return remove(left, [at], now_ms=now_ms, settings=settings)
                if group.barrier is not None and not group.barrier.first and group.members[at].instance_id == NO_INSTANCE:
                    left = replace(left, hung_up=left.hung_up | {at})
                return Step(left)
    return Step(group)
