"""Runs one consumer group at its coordinator: decides a step (metadata/groups), stores it, then answers the waiting calls.

  decide ─▶ store, guarded by the revision of the group's record ─▶ the new state ─▶ answers
              ├ unavailable: the step has not happened; its caller gets the error, the others wait on
              └ written by another broker, or outcome unknown: the group is given up, all calls get NOT_COORDINATOR
  offsets, guarded likewise ─▶ outcome unknown: its caller gets that; the record is rewritten before others, which fences them
  offsets that only move forward ─▶ wait for writes of the same keys, compare with what has landed, and are sent in that same step

Invariants: stored steps happen one after the other, while it is proven that the group is coordinated here (coordinator_lease.py).
What a member learns of its group was stored before. Once given up, a group answers no call, and writes only what it leaves to the
next coordinator.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.concurrency.detached_tasks import DetachedTasks
from gateway.groups.deletion import Deletion, DeletionScope, half_deleted
from gateway.groups.group_topics import GroupTopics
from gateway.groups.landed_offsets import LandedOffsets, OffsetWrite, key_of, operation_of
from gateway.groups.member_rights import MemberRights
from gateway.groups.timer import GroupTimer, uptime_ms
from metadata.errors import NotCoordinator, OutcomeUnknown, TidelogError
from metadata.groups.classic.rebalance_barrier import Answer, Step, begun_when_stored
from metadata.groups.classic.state_machine import hang_up, tick, wakes_at_ms
from metadata.groups.model import NO_INSTANCE, Group, GroupPhase, Joined, Member, MemberId, Synced, Waiter
from metadata.groups.offsets import CommittedOffset
from metadata.groups.reconciliation.group import ReconciledGroup, as_reconciled, beaten, late_to_revoke, without_members
from metadata.groups.reconciliation.model import Beat, GroupTopic, Heartbeat
from metadata.groups.record import check_group_size, encode_group, encode_handover
from metadata.groups.settings import GroupSettings
from metadata.measurements import counter
from metadata.model import Revision, SessionId
from metadata.store.interface import OPERATIONS_MAX, Compare, Delete, Put
from metadata.store.write_batcher import CompareFailed, UnchangedSince, WriteBatcher

# Pause after a step of the timer that could not be stored.
STORE_AGAIN_MS: Final = 500
IDLE_MS: Final = 600_000
# How long a group without members stays in memory if it is not even stored.
IDLE_UNKNOWN_MS: Final = 10_000

StepOutcome = asyncio.Future[Joined | Synced]
log = logging.getLogger(__name__)
_waiters = itertools.count(1)


class _View(NamedTuple):
    """Holds what a subscription is resolved by."""

    topics: Mapping[str, GroupTopic]
    # The version of the members' rights.
    rights: int


@dataclass(slots=True)
class GroupCounts:
    """Counts what the groups of one broker have done since the process began."""

    rebalances: int = counter("tidelog_group_rebalances", "Generations that began at this broker.")
    commits: int = counter("tidelog_group_commits", "Commits that this broker has written.")
    offsets_committed: int = counter("tidelog_group_offsets_committed", "Offsets in the commits that this broker has written.")


class CoordinatedGroup:
    """Holds one loaded group: its state, its waiting calls, its member sessions and its writes."""

    def __init__(
        self,
        name: str,
        group: Group,
        revision: Revision,
        *,
        loaded_by: SessionId,
        key: str,
        settings: GroupSettings,
        writes: WriteBatcher,
        timer: GroupTimer,
        session: Callable[[], SessionId],
        verify: Callable[[], Awaitable[None]],
        now_ms: Callable[[], int],
        given_up: Callable[[CoordinatedGroup], None],
        work: DetachedTasks,
        counts: GroupCounts,
        read_offsets: Callable[[], Awaitable[Mapping[str, CommittedOffset]]],
        topics: GroupTopics,
        rights: MemberRights,
    ) -> None:
        """`read_offsets` reads from the store what the group has committed, by key. `topics`: all of the cluster. `rights` decides
        which of them a member may read."""
        self.name = name
        self.group = self._stored = replace(group, silent_in_ms={})
        # The session of this broker that loaded the group.
        self.loaded_by = loaded_by
        self.began_ms = uptime_ms()
        self.is_gone = False
        self._key = key
        self._revision = revision
        self._settings = settings
        self._writes = writes
        self._timer = timer
        self._session = session
        self._verify = verify
        self._now_ms = now_ms
        self._given_up = given_up
        self._work = work
        self._counts = counts
        self._steps = asyncio.Lock()
        self._in_doubt = False
        # Writes of offsets that a call waits for.
        self._committing: set[asyncio.Future[None]] = set()
        self._landed = LandedOffsets()
        self._read_offsets = read_offsets
        self._reading_offsets = asyncio.Lock()
        self._topics = topics
        self._rights = rights
        # The topics, and the version of the rights, that the target of a group of KIP-848 was computed for last.
        self._seen: _View | None = None
        # Offsets that are on their way to the store, by the future that ends with their write.
        self._sent: dict[asyncio.Future[None], Sequence[OffsetWrite | Delete]] = {}
        self._waiting: dict[Waiter, StepOutcome] = {}
        self._silent_at_ms: dict[MemberId, int] = {}  # when a silent member's session ends
        self.restart_sessions()
        for member_id, left_ms in group.silent_in_ms.items():
            if member_id in group.members:
                self._silent_at_ms[member_id] = max(uptime_ms(), group.alone_from_ms) + left_ms
        self._schedule()

    @property
    def is_stored(self) -> bool:
        return self._revision > 0

    @property
    def is_idle(self) -> bool:
        return self.group.phase is GroupPhase.EMPTY and not (self._waiting or self.group.announced or self._steps.locked())

    @property
    def waiting(self) -> int:
        """Returns the number of calls that wait for other members."""
        return len(self._waiting)

    # ── waiting calls ───────────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self) -> tuple[Waiter, StepOutcome]:
        waiter = Waiter(next(_waiters))
        outcome = self._waiting[waiter] = asyncio.get_running_loop().create_future()
        return waiter, outcome

    def waits(self, waiter: Waiter) -> bool:
        """Returns whether a call still waits for its answer."""
        return waiter in self._waiting

    def stop_waiting(self, waiter: Waiter) -> bool:
        """Ends the wait of a call. Returns whether it still waited: `tick` then tells the group."""
        outcome = self._waiting.pop(waiter, None)
        if outcome is not None:
            outcome.cancel()
        return outcome is not None

    def give_up(self, why: str) -> None:
        """Gives the group up, once: another of this name may be loaded afterwards."""
        if self.is_gone:
            return
        log.debug("group given up group=%s: %s", self.name, why)
        self.is_gone = True
        self._timer.forget(self.name)
        self._given_up(self)
        for waiter in list(self._waiting):
            self._deliver(waiter, not_coordinator(self.name))

    def hand_over(self, why: str) -> None:
        """Gives the group up, and records for the next coordinator which members are gone: else it would wait for them again.

        The record is true from now on, however late it lands; if the next coordinator was faster, it does not land.
        """
        if self.is_gone:
            return
        handover = encode_handover(
            self.group, self.loaded_by, stored=self._stored, silent_at_ms=self._silent_at_ms, now_ms=uptime_ms()
        )
        self.give_up(why)
        if handover is not None and self.is_stored and not self._steps.locked():
            self._work.start_background(self._leave_behind(handover), f"handover of group {self.name}")

    async def _leave_behind(self, record: bytes) -> None:
        try:
            await self._writes.write(Compare(self._key, self._revision), [Put(self._key, record)])
        except (CompareFailed, TidelogError) as error:
            log.debug("handover not stored group=%s: %s; the next coordinator waits for members that are gone", self.name, error)

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def step(self, decide: Callable[[Group], Step], *, heard: MemberId | None = None) -> None:
        """Takes a step. `heard` is the member that asks for it. Raises what refuses it, NotCoordinator, Unavailable."""
        async with self._steps:
            self.check_here()
            before = self.group
            step = self._decided(decide)
            after = step.group
            if step.stored:
                decided_ms = uptime_ms()
                await self._verify()
                self.check_here()
                if uptime_ms() > decided_ms:  # a late member may not be late now: sessions restart if no member could be answered
                    step = self._decided(decide)
                    after = step.group
            if step.stored:
                after = replace(after, changed_at_ms=self._now_ms())
                await self._put(after)
                self.check_here()
                after = begun_when_stored(before, after, now_ms=uptime_ms())
            self.group = after
            self._counts.rebalances += after.generation > before.generation
            delivered = {waiter: self._deliver(waiter, answer) for waiter, answer in step.answers}
            waited = {*before.joining, *before.syncing}
            for member_id in after.members:
                if member_id == heard or member_id in waited or member_id not in before.members:
                    self.heard(member_id)
            # these clients disconnected while their membership was stored: their sessions end at once
            for waiter, answer in step.answers:
                if (
                    isinstance(answer, Joined)
                    and not delivered[waiter]
                    and _knows_no_id(before, after.members.get(answer.member_id))
                ):
                    self._silent_at_ms[answer.member_id] = uptime_ms()
            for member_id in self._silent_at_ms.keys() - after.members.keys():
                del self._silent_at_ms[member_id]
            self._schedule()

    def _decided(self, decide: Callable[[Group], Step]) -> Step:
        """Decides a step after removing the calls whose clients have disconnected."""
        group, answers, stored = self.group, tuple[Answer, ...](), False
        for waiter in sorted({*group.joining.values(), *group.syncing.values()} - self._waiting.keys()):
            gone = hang_up(group, waiter, now_ms=uptime_ms(), settings=self._settings)
            group, answers, stored = gone.group, (*answers, *gone.answers), stored or gone.stored
        step = decide(group)
        return Step(step.group, (*answers, *step.answers), stored or step.stored)

    async def _put(self, group: Group) -> None:
        self._revision = await self._written(group)
        self._in_doubt = False

    async def _written(self, group: Group) -> Revision:
        """Stores the group. Raises NotCoordinator, and gives the group up, if another broker wrote it or the outcome is unknown."""
        put = Put(self._key, encode_group(group, self._session()))
        try:
            revision = await self._writes.write(Compare(self._key, self._revision), [put])
            self._stored = group
            return revision
        except (CompareFailed, OutcomeUnknown) as error:
            self.give_up("its record was written by another broker, or it is not known whether it was written")
            raise not_coordinator(self.name) from error

    def _deliver(self, waiter: Waiter, answer: Joined | Synced | TidelogError) -> bool:
        """Answers a waiting call. Returns whether it still waited."""
        outcome = self._waiting.pop(waiter, None)
        if outcome is None or outcome.done():
            return False
        if isinstance(answer, TidelogError):
            outcome.set_exception(answer)
            outcome.exception()  # marks the error as retrieved: the caller may get the same error from its step
        else:
            outcome.set_result(answer)
        return True

    # ── writes that the record guards without changing it ───────────────────────────────────────────────────────────────

    def doubt(self) -> None:
        """Notes that a write of offsets has an unknown outcome and may land later. Members need not know."""
        self._in_doubt = True
        self._landed.forget()

    async def settle(self) -> None:
        """Returns once no earlier write can land any more: after an unknown outcome the record is rewritten."""
        if self._in_doubt:
            await self._work.done(self._settled())

    async def fence(self) -> None:
        """Settles, and waits until every write under way has landed or never will: what is read afterwards stays true until a new
        request."""
        if self._committing:
            await asyncio.wait(self._committing.copy())
        await self.settle()

    async def _settled(self) -> None:
        async with self._steps:
            self.check_here()
            if self._in_doubt:
                await self._put(self.group)

    async def write_offsets(
        self,
        writes: Sequence[OffsetWrite | Delete],
        check: Callable[[Group], None],
        *,
        only_forward: bool = False,
        view: UnchangedSince | None = None,
    ) -> Sequence[OffsetWrite | Delete]:
        """Writes at most 128 offsets and returns those that were written. `check` raises what refuses them, and is called again if
        the group changed before the write. `only_forward` leaves out those below what was committed in their generation. Raises
        Outdated if `view` does not hold."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing.add(ended)
        try:
            return await self._write_offsets(writes, check, ended, only_forward=only_forward, view=view)
        finally:
            self._committing.discard(ended)
            self._sent.pop(ended, None)
            ended.set_result(None)

    async def _write_offsets(
        self,
        writes: Sequence[OffsetWrite | Delete],
        check: Callable[[Group], None],
        ended: asyncio.Future[None],
        *,
        only_forward: bool,
        view: UnchangedSince | None,
    ) -> Sequence[OffsetWrite | Delete]:
        while True:
            if self._in_doubt:
                await self.settle()
            self.check_here()
            check(self.group)
            if not self.is_stored:
                await self._work.done(self.step(lambda group: Step(group, stored=not self.is_stored)))
                continue
            if only_forward and await self._waited_to_compare(writes):
                continue
            due = self._landed.forward(writes) if only_forward else writes
            if not due:
                return []
            revision = self._revision
            self._sent[ended] = due
            try:  # nothing may come between the comparison and this call, which queues the write
                await self._writes.write(Compare(self._key, revision), [operation_of(write) for write in due], view=view)
                self._landed.note(due)
                return due
            except asyncio.CancelledError:
                self.doubt()  # the write proceeds all the same, and its end is not reported
                raise
            except CompareFailed as error:
                del self._sent[ended]
                if self._in_doubt:  # caused by an earlier write
                    continue
                if self._revision == revision and not self._steps.locked():
                    self.give_up("its record was written by another broker")
                    raise not_coordinator(self.name) from error
                async with self._steps:  # a step of this group has written its record meanwhile, or is about to
                    pass

    async def _waited_to_compare(self, writes: Sequence[OffsetWrite | Delete]) -> bool:
        """Waits until it is known what has landed of these keys. Returns whether it had to wait: then the caller compares again."""
        keys = {key_of(write) for write in writes}
        if others := [ended for ended, sent in self._sent.items() if not keys.isdisjoint(map(key_of, sent))]:
            await asyncio.wait(others)
            return True
        if self._landed.is_known:
            return False
        async with self._reading_offsets:
            if not self._landed.is_known:
                self._landed.begin()
                self._landed.read(await self._read_offsets())
        return True

    async def forget(
        self, check: Callable[[Group], None], choose: Callable[[Group], Awaitable[DeletionScope]], deletion: Deletion
    ) -> None:
        """Deletes the offsets that `choose` reads, and the record if it says so. `check` raises what refuses it.

        The record is rewritten first, so that no commit under way lands after its key was read or deleted. Until the end, commits
        compare
        with the earlier record, and wait. Raises OutcomeUnknown if some keys may be gone; the call may be repeated.
        """
        async with self._steps:
            self.check_here()
            check(self.group)
            revision = await self._written(self.group)
            self._in_doubt = False
            whole = False
            try:
                chosen = await choose(self.group)
                whole = chosen.group
                await self._delete([*map(Delete, chosen.offsets), *([Delete(self._key)] if whole else [])], revision, deletion)
            finally:
                self._revision = revision
                self._landed.forget()
                if whole and not self.is_gone:
                    self.give_up("it was deleted, at least in part: the next call reads what is left")

    async def _delete(self, deletes: Sequence[Delete], revision: Revision, deletion: Deletion) -> None:
        deletion.of = len(deletes)
        for start in range(0, len(deletes), OPERATIONS_MAX):
            part = deletes[start : start + OPERATIONS_MAX]
            try:
                deletion.is_sent = True
                await self._writes.write(Compare(self._key, revision), part)
                deletion.deleted, deletion.is_sent = start + len(part), False
            except (CompareFailed, TidelogError) as error:
                if isinstance(error, CompareFailed):
                    self.give_up("its record was written by another broker")
                if start or isinstance(error, OutcomeUnknown):
                    raise half_deleted(self.name, start, len(deletes)) from error
                if isinstance(error, CompareFailed):
                    raise not_coordinator(self.name) from error
                raise

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def heard(self, member_id: MemberId) -> None:
        if (member := self.group.members.get(member_id)) is not None:
            self._silent_at_ms[member_id] = max(uptime_ms(), self.group.alone_from_ms) + member.session_timeout_ms

    @property
    def shortest_ms(self) -> int | None:
        """Returns the least time after which something of a silent member may be given away; None without members."""
        members = self.group.members.values()
        return min((min(each.session_timeout_ms, each.rebalance_timeout_ms) for each in members), default=None)

    def restart_sessions(self) -> None:
        """Restarts the session of every member, after a time in which no heartbeat could arrive."""
        for member_id in self.group.members:
            self.heard(member_id)

    def beat_at_rest(self, request: Heartbeat) -> Beat | None:
        """Answers a heartbeat of KIP-848 that changes nothing. None where it takes a step. Raises what refuses it."""
        if self._steps.locked() or not isinstance(self.group, ReconciledGroup):
            return None
        self.check_here()
        view = self._view()
        after, answer = self._beaten(self.group, request, view)
        if after is not self.group:
            return None
        self._seen = view
        self.heard(request.member_id)
        return answer

    async def beat(self, request: Heartbeat) -> Beat:
        """Takes a heartbeat of KIP-848. Raises what refuses it, NotCoordinator, Unavailable."""
        answer: Beat | None = None
        view = self._view()

        def decide(group: Group) -> Step:
            nonlocal answer
            after, answer = self._beaten(as_reconciled(self.name, group), request, view)
            if len(after.members) >= len(group.members) and after is not group:  # who leaves need not fit
                check_group_size(after, self._settings)
            return Step(after, stored=after is not group)

        await self.step(decide, heard=request.member_id)
        self._seen = view
        assert answer is not None, "the step was decided"
        return answer

    def _view(self) -> _View:
        return _View(self._topics(), self._rights.version)

    def _beaten(self, group: ReconciledGroup, request: Heartbeat, view: _View) -> tuple[ReconciledGroup, Beat]:
        seen = self._seen
        return beaten(
            group,
            request,
            view.topics,
            readable=self._rights.readable,
            view_changed=seen is None or view.topics is not seen.topics or view.rights != seen.rights,
            now_ms=uptime_ms(),
            settings=self._settings,
        )

    @property
    def due_ms(self) -> int:
        group = self.group
        due_ms = [at for member, at in self._silent_at_ms.items() if member not in group.joining and member not in group.syncing]
        if (at_ms := wakes_at_ms(group)) is not None:
            due_ms.append(at_ms)
        if isinstance(group, ReconciledGroup):
            due_ms += group.revoke_by_ms.values()
        return min(due_ms, default=uptime_ms() + (IDLE_MS if self.is_stored else IDLE_UNKNOWN_MS))

    def _schedule(self) -> None:
        if not self.is_gone:
            self._timer.wake(self.name, self.due_ms)

    def wake_when_due(self) -> None:
        self._schedule()

    async def tick(self) -> None:
        """Takes the steps that are due: expired sessions and disconnected clients. It is tried again if it cannot be stored."""

        def decide(group: Group) -> Step:
            now_ms = uptime_ms()
            late = [member_id for member_id, at_ms in self._silent_at_ms.items() if at_ms <= now_ms]
            if isinstance(group, ReconciledGroup):
                late += late_to_revoke(group, now_ms=now_ms)
                left = without_members(
                    group, late, self._topics(), readable=self._rights.readable, now_ms=now_ms, settings=self._settings
                )
                return Step(left, stored=left is not group)
            return tick(group, late, now_ms=now_ms, settings=self._settings)

        try:
            await self.step(decide)
        except TidelogError as error:
            if not self.is_gone:
                log.warning("group step failed group=%s: %s; retrying", self.name, error)
                self._timer.wake(self.name, uptime_ms() + STORE_AGAIN_MS)

    def check_here(self) -> None:
        if self.is_gone:
            raise not_coordinator(self.name)


def not_coordinator(name: str) -> NotCoordinator:
    return NotCoordinator(f"this broker does not coordinate group {name}")


def _knows_no_id(before: Group, member: Member | None) -> bool:
    """Returns whether a member did not know its id before this step and has no instance id: such a member never calls again."""
    if member is None or member.instance_id != NO_INSTANCE or member.member_id in before.announced:
        return False
    return member.member_id in before.unnamed or member.member_id not in before.members
