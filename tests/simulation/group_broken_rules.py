"""Rules of consumer groups that can be broken on purpose, to see that the judge would notice.

Each replaces one function of the real code while it is in force. Production code has no switch for any of this.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from typing import Any
from unittest.mock import patch

from gateway.groups import coordinator
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.group import CoordinatedGroup
from gateway.groups.landed_offsets import OffsetWrite, operation_of
from gateway.groups.timer import uptime_ms
from gateway.kafka.call import KafkaCall
from gateway.kafka.groups import KafkaGroups
from gateway.kafka.protocol.client_messages import OffsetCommitRequest, OffsetCommitResponse
from metadata.errors import NotCoordinator
from metadata.group_member.rebalance import MemberRebalance
from metadata.group_member.state import NOTHING, MemberState, Moves
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.classic import join, rebalance_barrier, state_machine
from metadata.groups.classic.rebalance_barrier import Step, open_if_all_are_here, rebalancing
from metadata.groups.model import Generation, Group, GroupPhase, InstanceId, MemberId, Synced
from metadata.groups.offsets import StoredOffsets
from metadata.groups.reconciliation import heartbeat
from metadata.groups.reconciliation.model import NO_PARTITIONS, ConsumerGroup, ConsumerMember, Partitions
from metadata.groups.reconciliation.reconcile import reconciled
from metadata.model import Revision
from metadata.store.interface import Compare, Delete, Put
from metadata.store.write_batcher import CompareFailed, UnchangedSince, WriteBatcher


class BrokenGroupRule(Enum):
    NOTHING = "nothing"
    # Who comes to coordinate a group does not write its record: the former one may go on writing.
    ADOPTED_UNWRITTEN = "adopted-unwritten"
    # Offsets are written whatever has become of the group's record.
    COMMITS_UNGUARDED = "commits-unguarded"
    # A former member may commit.
    OLD_GENERATION_COMMITS = "old-generation-commits"
    # The next generation begins with the first that joined.
    BARRIER_OPENS_EARLY = "barrier-opens-early"
    # Heartbeats are answered well, whatever generation they name.
    ANY_GENERATION_STAYS = "any-generation-stays"
    # Members learn of a generation, and of their assignment, before it is stored.
    REPORTED_BEFORE_STORED = "reported-before-stored"
    # A cooperative member goes on with what the new assignment gives to others.
    KEEPS_WHAT_MOVES = "keeps-what-moves"
    # A member that hears nothing goes on until an answer says otherwise.
    NO_SESSION_CLOCK = "no-session-clock"
    # A commit of unknown outcome is followed by others under the same compare.
    UNKNOWN_COMMIT_REPEATED = "unknown-commit-repeated"
    # A member that stays silent keeps what it owned.
    SESSIONS_NEVER_END = "sessions-never-end"
    # A member that has to give up partitions does not commit what it read of them.
    GIVEN_UP_UNCOMMITTED = "given-up-uncommitted"
    # A coordinator takes commits of a member of KIP-848 that it has removed, and of any epoch.
    FENCED_MEMBER_COMMITS = "fenced-member-commits"
    # A member of KIP-848 is given partitions that others have not given up yet.
    GIVEN_BEFORE_RELEASED = "given-before-released"
    # An answer to OffsetCommit has no error.
    COMMIT_ERRORS_HIDDEN = "commit-errors-hidden"
    # An answer to OffsetFetch has no offset of the last partition.
    OFFSET_LEFT_OUT = "offset-left-out"


@contextlib.contextmanager
def in_force(rule: BrokenGroupRule) -> Iterator[None]:
    """While this lasts, `rule` is broken everywhere in this process."""
    with contextlib.ExitStack() as patches:
        for target, name, broken in _patches(rule):
            patches.enter_context(patch.object(target, name, broken))
        yield


def _patches(rule: BrokenGroupRule) -> list[tuple[Any, str, Any]]:
    match rule:
        case BrokenGroupRule.NOTHING:
            return []
        case BrokenGroupRule.ADOPTED_UNWRITTEN:
            return [(GroupCoordinator, "_adopted", _adopted_unwritten(GroupCoordinator._adopted))]
        case BrokenGroupRule.COMMITS_UNGUARDED:
            return [(CoordinatedGroup, "write_offsets", _written_unguarded)]
        case BrokenGroupRule.OLD_GENERATION_COMMITS:
            return [(coordinator, "check_commit", _never_refused)]
        case BrokenGroupRule.BARRIER_OPENS_EARLY:
            return [(module, "open_if_all_are_here", _opened_early) for module in (join, state_machine)]
        case BrokenGroupRule.ANY_GENERATION_STAYS:
            return [(coordinator, "check_heartbeat", _refused_while_preparing)]
        case BrokenGroupRule.REPORTED_BEFORE_STORED:
            return [(CoordinatedGroup, "step", _reported_before_stored(CoordinatedGroup.step))]
        case BrokenGroupRule.KEEPS_WHAT_MOVES:
            return _kept_and_not_claimed()
        case BrokenGroupRule.NO_SESSION_CLOCK:
            return [(MemberState, "holds_until_s", float("inf"))]
        case BrokenGroupRule.UNKNOWN_COMMIT_REPEATED:
            return [(WriteBatcher, "_still_sound", _all_sound), (GroupCoordinator, "_outcome_unknown", _not_given_up)]
        case BrokenGroupRule.SESSIONS_NEVER_END:
            return [(CoordinatedGroup, "heard", _heard_endlessly)]
        case BrokenGroupRule.GIVEN_UP_UNCOMMITTED:
            return [(MemberRebalance, "_revoke", _reports_loss)]
        case BrokenGroupRule.FENCED_MEMBER_COMMITS:
            return [(coordinator, "check_member_commit", _any_member)]
        case BrokenGroupRule.GIVEN_BEFORE_RELEASED:
            return [(heartbeat, "reconciled", _as_if_released(reconciled))]
        case BrokenGroupRule.COMMIT_ERRORS_HIDDEN:
            return [(KafkaGroups, "commit", _without_errors(KafkaGroups.commit))]
        case BrokenGroupRule.OFFSET_LEFT_OUT:
            return [(KafkaGroups, "_all", _without_the_last(KafkaGroups._all))]


class _NeverWritten:
    def __init__(self, writes: WriteBatcher) -> None:
        self._writes = writes

    async def write(self, compare: Compare, operations: Sequence[Put | Delete]) -> Revision:
        return Revision(compare.mod_revision)


def _adopted_unwritten(adopted: Callable[[GroupCoordinator, str], Awaitable[CoordinatedGroup]]) -> Callable[..., Any]:
    async def only_read(self: GroupCoordinator, name: str) -> CoordinatedGroup:
        reading = copy.copy(self)
        reading._writes = _NeverWritten(self._writes)  # type: ignore[assignment]
        held = await adopted(reading, name)
        held._writes = self._writes
        return held

    return only_read


async def _written_unguarded(
    self: CoordinatedGroup,
    writes: Sequence[OffsetWrite | Delete],
    check: Callable[[Group], None],
    *,
    only_forward: bool = False,
    view: UnchangedSince | None = None,
) -> list[OffsetWrite | Delete]:
    self.check_here()
    check(self.group)
    if not self.is_stored:
        await self.step(lambda group: Step(group, stored=not self.is_stored))
    try:
        await self._writes.write(Compare(self._key, Revision(0), "!="), [operation_of(write) for write in writes])
    except CompareFailed as error:
        raise NotCoordinator(self.name) from error
    return list(writes)


def _never_refused(group: Group, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
    return


def _opened_early(group: Group, *, now_ms: int) -> Step:
    if group.joining and group.barrier is not None and not group.barrier.first:
        return rebalance_barrier._open(group, now_ms=now_ms)
    return open_if_all_are_here(group, now_ms=now_ms)


def _refused_while_preparing(group: Group, member_id: MemberId, instance_id: InstanceId, generation: Generation) -> None:
    state_machine._check_member(group, member_id, instance_id)
    if group.phase is GroupPhase.PREPARING:
        raise rebalancing()


def _reported_before_stored(real: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    async def step(self: CoordinatedGroup, decide: Callable[[Group], Step], *, heard: MemberId | None = None) -> None:
        def reported(group: Group) -> Step:
            decided = decide(group)
            for waiter, answer in decided.answers:
                self._deliver(waiter, answer)
            return decided

        await real(self, reported, heard=heard)

    return step


def _kept_and_not_claimed() -> list[tuple[Any, str, Any]]:
    """It says nothing of what it keeps, or the leader of the group would leave it there."""
    synced, subscription = MemberState.synced, MemberState._subscription
    kept: dict[int, frozenset[TopicPartitionName]] = {}

    def nothing_revoked(self: MemberState, answer: Synced) -> Moves:
        moves = synced(self, answer)
        kept[id(self)] = moves.revoked
        return moves._replace(revoked=NOTHING)

    def without_it(self: MemberState, assignor: str) -> bytes:
        owned, self.owned = self.owned, self.owned - kept.get(id(self), NOTHING)
        try:
            return subscription(self, assignor)
        finally:
            self.owned = owned

    return [(MemberState, "synced", nothing_revoked), (MemberState, "_subscription", without_it)]


def _all_sound(self: WriteBatcher, waiting: Sequence[Any], unknown: Sequence[Compare]) -> list[Any]:
    return list(waiting)


def _not_given_up(self: GroupCoordinator, key: str) -> None:
    return


def _heard_endlessly(self: CoordinatedGroup, member_id: MemberId) -> None:
    if member_id in self.group.members:
        self._silent_at_ms[member_id] = uptime_ms() + 10**9


async def _reports_loss(self: MemberRebalance, partitions: frozenset[TopicPartitionName]) -> None:
    if partitions:
        await self._reader.lost(partitions)
        self._member_state.gave_up(partitions)


def _any_member(group: ConsumerGroup, member_id: MemberId, epoch: int) -> None:
    return


def _as_if_released(real: Callable[..., ConsumerMember]) -> Callable[..., ConsumerMember]:
    def broken(member: ConsumerMember, *, epoch: int, owned: Partitions | None, held_by_others: Partitions) -> ConsumerMember:
        return real(member, epoch=epoch, owned=owned, held_by_others=NO_PARTITIONS)

    return broken


def _without_errors(commit: Callable[..., Awaitable[OffsetCommitResponse]]) -> Callable[..., Awaitable[OffsetCommitResponse]]:
    async def broken(self: KafkaGroups, call: KafkaCall, request: OffsetCommitRequest) -> OffsetCommitResponse:
        answer = await commit(self, call, request)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.error_code = 0
        return answer

    return broken


def _without_the_last(everything: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def broken(self: KafkaGroups, stored: StoredOffsets) -> list[Any]:
        committed = dict(stored.committed)
        if committed:
            del committed[max(committed)]
        return everything(self, StoredOffsets(committed, stored.damaged))

    return broken
