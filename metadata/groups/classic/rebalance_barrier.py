"""Implements the barrier of a rebalance: members that have joined when it opens belong to the next generation. Pure.

    first, of a group that was empty    opens when no new member has come for the initial delay (KIP-134)
    every other                         opens when all members have joined again, and all announced ids have joined
    both                                open at the latest when the slowest member has had its rebalance timeout

A member whose call ends before the barrier opens still belongs to the next generation, with what it claims: the coordinator
answered
its heartbeats that it waits, so it keeps what it owns.

Invariants: a generation is never given twice, since it is stored before it is answered; every call that waits is answered by
the step that removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from metadata.errors import InstanceFenced, RebalanceInProgress, TidelogError, UnknownMember
from metadata.groups.model import (
    NO_INSTANCE,
    Barrier,
    Generation,
    Group,
    GroupPhase,
    InstanceId,
    Joined,
    JoinedMember,
    Member,
    MemberId,
    Synced,
    Waiter,
    shown,
)
from metadata.groups.settings import GroupSettings

Answer = tuple[Waiter, Joined | Synced | TidelogError]
_Kept = TypeVar("_Kept")


class Step(NamedTuple):
    """Holds the group after a step, and the answers that may now be sent."""

    group: Group
    answers: tuple[Answer, ...] = ()
    # The group must be durable before the answers are sent. Where storing it fails, the step has not happened.
    stored: bool = False


def prepare(group: Group, *, now_ms: int, settings: GroupSettings) -> tuple[Group, tuple[Answer, ...]]:
    """Begins a rebalance. Calls that wait for an assignment are answered that they must join again."""
    answers = tuple((waiter, rebalancing()) for waiter in group.syncing.values())
    first = group.phase is GroupPhase.EMPTY
    wait_ms = max((member.rebalance_timeout_ms for member in group.members.values()), default=0)
    if first:
        wait_ms = min(wait_ms, settings.group_initial_rebalance_delay_ms)
    began_ms = now_ms if first else max(now_ms, group.alone_from_ms)
    barrier = Barrier(began_ms, began_ms + wait_ms, first)
    return replace(group, phase=GroupPhase.PREPARING, syncing={}, unsynced=frozenset(), sync_by_ms=0, barrier=barrier), answers


def open_if_all_are_here(group: Group, *, now_ms: int) -> Step:
    assert group.barrier is not None, "it is preparing"
    is_due = now_ms >= group.barrier.opens_ms
    all_are_here = not group.announced and group.joining.keys() == group.members.keys()
    if is_due or (all_are_here and not group.barrier.first):
        return _open(group, now_ms=now_ms)
    return Step(group)


def _open(group: Group, *, now_ms: int) -> Step:
    """Opens the barrier: joined members form the next generation. Static members may come later, until their sessions end."""
    assert group.barrier is not None, "it is preparing"
    joined_here = group.joining.keys() | group.hung_up
    members = {at: member for at, member in group.members.items() if at in joined_here or member.instance_id != NO_INSTANCE}
    if members and not group.joining:  # only absent static members, or calls that ended: no member could lead
        wait_ms = max(member.rebalance_timeout_ms for member in members.values())
        barrier = Barrier(now_ms, now_ms + wait_ms, first=False)
        return Step(replace(group, members=members, barrier=barrier, hung_up=frozenset()))
    generation = Generation(group.generation + 1)
    if not members:
        return Step(_emptied(group, generation), stored=True)
    leader = group.leader if group.leader in group.joining else next(iter(group.joining))
    opened = replace(
        group,
        phase=GroupPhase.COMPLETING,
        generation=generation,
        protocol=chosen_protocol(members),
        leader=leader,
        members={at: replace(member, assignment=b"") for at, member in members.items()},
        joining={},
        barrier=None,
        unnamed=frozenset(),
        hung_up=frozenset(),
        unsynced=frozenset(joined_here & members.keys()),
    )
    opened = replace(opened, sync_by_ms=_sync_by_ms(opened, now_ms=now_ms))
    answers = tuple((waiter, joined(opened, member_id)) for member_id, waiter in group.joining.items())
    return Step(opened, answers, stored=True)


def _sync_by_ms(group: Group, *, now_ms: int) -> int:
    return max(now_ms, group.alone_from_ms) + max(member.rebalance_timeout_ms for member in group.members.values())


def begun_when_stored(before: Group, after: Group, *, now_ms: int) -> Group:
    """Returns `after`, just stored, with rebalance timeouts that begin now instead of when the step was decided.

    Until now members were answered from `before`, and each may keep what it owns for a rebalance timeout from then on.
    """
    if after.barrier is not None and after.barrier != before.barrier:
        began_ms = max(now_ms, after.alone_from_ms)
        opens_ms = began_ms + after.barrier.opens_ms - after.barrier.began_ms
        after = replace(after, barrier=after.barrier._replace(began_ms=began_ms, opens_ms=opens_ms))
    if after.unsynced and after.generation > before.generation:
        after = replace(after, sync_by_ms=_sync_by_ms(after, now_ms=now_ms))
    return after


def _emptied(group: Group, generation: Generation) -> Group:
    return Group(generation=generation, protocol_type=group.protocol_type, announced=group.announced)


def chosen_protocol(members: Mapping[MemberId, Member]) -> str:
    """Returns the assignor with the most votes, by name where votes tie. A member votes for its first that all offer."""
    offered = offered_by_all(members.values())
    votes = Counter(next(protocol.name for protocol in member.protocols if protocol.name in offered) for member in members.values())
    return min(votes, key=lambda name: (-votes[name], name))


def offered_by_all(members: Iterable[Member]) -> set[str]:
    offers = [{protocol.name for protocol in member.protocols} for member in members]
    return set.intersection(*offers) if offers else set()


def joined(group: Group, member_id: MemberId) -> Joined:
    members: tuple[JoinedMember, ...] = ()
    if member_id == group.leader:
        members = tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(group.protocol)) for member in group.members.values()
        )
    return Joined(group.generation, group.protocol_type, group.protocol, group.leader, member_id, members)


def without(mapping: Mapping[MemberId, _Kept], *keys: MemberId) -> dict[MemberId, _Kept]:
    return {key: value for key, value in mapping.items() if key not in keys}


def unknown(member_id: MemberId) -> UnknownMember:
    return UnknownMember(f"{shown(member_id)!r} is not a member of the group: its session has ended, or it has left")


def fenced_instance(instance_id: InstanceId) -> InstanceFenced:
    return InstanceFenced(f"another process has joined the group as instance {instance_id!r}")


def rebalancing() -> RebalanceInProgress:
    return RebalanceInProgress("the group is rebalancing")


def waiting() -> RebalanceInProgress:
    """Answers the heartbeat of a member that has joined: no generation begins without it, unless its session ends."""
    return RebalanceInProgress(
        "the group is rebalancing, and this member waits for the others", hint="Wait for the answer to JoinGroup.", waits=True
    )
