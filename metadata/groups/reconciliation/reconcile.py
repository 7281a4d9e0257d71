"""Moves one member a step towards its target: it gives up first, and then receives what others have given up. Pure.

    STABLE ──new target──▶ UNREVOKED ──owns none of it any more──▶ UNRELEASED ──others gave it up──▶ STABLE
                 │                                                     ▲  │
                 └──── nothing to give up, all is free ──▶ STABLE      └──┘ part of it is free

The epoch of a member rises to the group's as soon as it has nothing to give up. Source: KIP-848, CurrentAssignmentBuilder in Kafka.
"""

from __future__ import annotations

from collections.abc import Set

from msgspec.structs import replace

from metadata.groups.reconciliation.model import NO_PARTITIONS, ConsumerMember, MemberState, Partitions
from metadata.model import TopicPartition


def reconciled(
    member: ConsumerMember, *, epoch: int, owned: Partitions | None, held_by_others: Set[TopicPartition]
) -> ConsumerMember:
    """Returns the member after its heartbeat. `epoch`: of the target. `owned`: what the member owns; None: it did not say."""
    if member.state is MemberState.STABLE and member.epoch == epoch:
        return member
    if member.state is MemberState.UNREVOKED and (owned is None or owned & member.revoking):
        return member
    kept = member.assigned & member.target
    revoking = member.assigned - member.target
    if revoking and (owned is None or owned & revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    wanted = member.target - kept
    free = frozenset(each for each in wanted if each not in held_by_others)
    return replace(
        member,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED,
        epoch=epoch,
        previous_epoch=member.epoch if epoch != member.epoch else member.previous_epoch,
        assigned=kept | free,
        revoking=NO_PARTITIONS,
    )
