"""Runs one member of a consumer group: it joins, receives its partitions, stays, and gives them up in time.

    run() ─┬─ one stay after the other: rebalance.py
           ├─ heartbeats, however slow the caller and the reader are: heartbeats.py
           └─ new partitions, where it leads the group's members

A stay is ended from outside where it waits: by a heartbeat whose answer removes the member, or by the clock. Then `lost` is called.
The member stands on CoordinatorClient: the SDK's goes over gRPC, a broker's through its router, a test's to a coordinator.
Decisions are made in state.py (pure) and leader_assignment.py (pure).

Invariants: the reader gets one call at a time; `lost` comes before another member can own what is lost; no task outlives run().
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from metadata.errors import Fenced, StaleMember, TidelogError
from metadata.group_member.heartbeats import MemberHeartbeats
from metadata.group_member.interfaces import RETRY_S, RETRY_S_MAX, CoordinatorClient, RebalanceListener
from metadata.group_member.rebalance import MemberRebalance, OwnershipMayHaveEnded
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import NOTHING, MemberPhase, MemberState
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_INSTANCE, NO_MEMBER, Generation, MemberId
from metadata.retry import RetryPauses

LEAVE_S: Final = 5.0

log = logging.getLogger(__name__)


class _CallerAway(Exception):
    """Ends a stay: the caller took no records for max_poll_interval_ms."""


class _Ended(Exception):
    """Marks that run() has ended."""


class GroupMember:
    """Runs one member of a group. Its owner runs `run()` as a task."""

    def __init__(
        self,
        calls: CoordinatorClient,
        reader: RebalanceListener,
        settings: MemberSettings,
        *,
        group: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` returns numbers between 0 and 1, for pauses before a call is tried again."""
        self._calls = calls
        self._reader = reader
        self._settings = settings
        self._group = group
        self._jitter = jitter
        self._member_state = MemberState(settings)
        self._rebalance = MemberRebalance(calls, reader, settings, self._member_state, group=group, jitter=jitter, took=self._arm)
        self._heartbeats = MemberHeartbeats(
            calls, reader, settings, self._member_state, self._rebalance, group=group, jitter=jitter, end=self._end
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polled_s = float("inf")
        self._has_polled = asyncio.Event()
        self._stay: asyncio.Timeout | None = None
        # Why the stay was ended from outside.
        self._ended_by: Exception | None = None
        self._clock: asyncio.TimerHandle | None = None

    # ── calls of its owner ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def member_id(self) -> MemberId:
        """Returns the member's id; empty before it has joined, and once the group does not know it any more."""
        return self._member_state.member_id

    @property
    def generation(self) -> Generation:
        """Returns the generation for commits; NO_GENERATION while the member is in none."""
        return self._member_state.generation

    @property
    def owned(self) -> frozenset[TopicPartitionName]:
        """Returns the owned partitions; none once the session may have ended by this process's clock.

        A process that was frozen asks here before it hands out what it had read before, even if `lost` was not called yet.
        """
        if self._loop is None or self._loop.time() >= self._member_state.holds_until_s:
            return NOTHING
        return self._member_state.owned

    def polls(self) -> None:
        """Notes that the caller waits for records: until `polled()`, max_poll_interval_ms does not count."""
        self._polled_s = float("inf")
        self._has_polled.set()

    def polled(self) -> None:
        """Notes that the caller took records: max_poll_interval_ms counts from here. A member that left for that joins again."""
        if self._loop is not None:
            self._polled_s = self._loop.time()
            self._arm()
        self._has_polled.set()

    def subscription_changed(self) -> None:
        """Joins again, as `reader.subscribed()` has changed. Without this call the next heartbeat notices."""
        self._rebalance.join_again.set()

    def stop(self) -> None:
        """Makes run() call `revoked`, leave the group and return. A static member does not leave: its session runs on."""
        self._rebalance.stopping.set()
        self._rebalance.join_again.set()
        self._has_polled.set()
        self._rebalance.repeat_call()

    async def leave(self) -> None:
        """Leaves the group after run() has ended, so that the group need not wait for the session's end. Static members too.

        Raises no error of the coordinator: the session ends by itself.
        """
        if self._member_state.member_id == NO_MEMBER:
            return
        leaving = [(self._member_state.member_id, self._member_state.instance_id)]
        self._member_state.left()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._calls.leave(self._group, leaving)
        except (TidelogError, TimeoutError) as error:
            log.info("leaving failed group=%s member=%s: %s; its session ends by itself", self._group, leaving[0][0], error)

    async def run(self) -> None:
        """Runs until `stop()`, or until cancelled; then no task is left, the reader is not called, and the group not left.

        Raises errors that a retry can't help (InstanceFenced, GroupFull, Denied, InvalidArgument …), and errors of the reader.
        Unavailable brokers are retried without end: `lost` is called in time.
        """
        self._loop = asyncio.get_running_loop()
        if not self._has_polled.is_set():
            self._polled_s = self._loop.time()
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._heartbeats.run(), name=f"heartbeats of a member of group {self._group}"),
                    tasks.create_task(self._watch_topics(), name=f"topics of group {self._group}"),
                ]
                failure = await self._live()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._member_state.lost(_Ended())
        if failure is not None:
            raise failure

    # ── one stay in the group after the other ───────────────────────────────────────────────────────────────────────────

    async def _live(self) -> Exception | None:
        """Takes part until it ends, and returns what ended it."""
        again = RetryPauses(RETRY_S, RETRY_S_MAX, jitter=self._jitter)
        while not self._rebalance.stopping.is_set():
            ended_by = await self._take_part_until_it_ends()
            if ended_by is None:
                break
            if self._member_state.phase is MemberPhase.STAYING:
                again = RetryPauses(RETRY_S, RETRY_S_MAX, jitter=self._jitter)
            if (failure := await self._give_up(ended_by)) is not None:
                await self._leave_unless_fenced(failure)
                return failure
            if isinstance(ended_by, _CallerAway):
                if self._member_state.instance_id == NO_INSTANCE:
                    await self.leave()
                if not self._rebalance.stopping.is_set():
                    await self._has_polled.wait()
            else:
                await self._rebalance.pause(again.next_s(ended_by))
        if self._member_state.instance_id == NO_INSTANCE:
            await self.leave()
        return None

    async def _take_part_until_it_ends(self) -> Exception | None:
        """Takes part once, and returns why it ended; None where `stop()` did it."""
        self._ended_by = None
        try:
            async with asyncio.timeout(None) as self._stay:
                self._arm()
                await self._rebalance.take_part()
        except TimeoutError as error:
            return error if self._ended_by is None else self._ended_by
        except Exception as error:  # noqa: BLE001  # also the reader's own error, which the caller gets once the group is left
            return error
        finally:
            self._stay = None
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None
        return None

    async def _give_up(self, why: Exception) -> Exception | None:
        """Gives up all partitions at once. Returns the error that ends the member, if any."""
        self._rebalance.leads_no_more()
        lost = self._member_state.lost(why)
        failure = None if isinstance(why, StaleMember | _CallerAway | OwnershipMayHaveEnded) else why
        if lost:
            log.warning("partitions lost group=%s count=%d: %s", self._group, len(lost), why)
            try:
                await self._reader.lost(lost)
            except Exception as error:
                if failure is None:
                    return error
                log.exception("calling `lost` failed group=%s", self._group)
        return failure

    async def _leave_unless_fenced(self, failure: Exception) -> None:
        if not isinstance(failure, Fenced):
            await self.leave()

    def _end(self, why: Exception) -> None:
        """Ends the stay, wherever it waits."""
        if self._stay is not None and not self._stay.expired() and self._ended_by is None:
            self._ended_by = why
            self._stay.reschedule(self._now_s)

    async def _watch_topics(self) -> None:
        while True:
            await asyncio.sleep(self._settings.topics_interval_ms / 1000)
            try:
                await self._rebalance.refresh_partitions()
            except Exception as error:  # noqa: BLE001  # as if it had been raised in the member's own call
                self._end(error)

    # ── the clock ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _now_s(self) -> float:
        assert self._loop is not None, "run() has begun"
        return self._loop.time()

    def _due_s(self) -> float:
        return min(self._member_state.holds_until_s, self._polled_s + self._settings.max_poll_interval_ms / 1000)

    def _arm(self) -> None:
        """Arms the timer, which is never late. An early one is armed again, so that heartbeats and polls cost no timer each."""
        due_s = self._due_s()
        if self._stay is None or self._loop is None or due_s == float("inf"):
            return
        if self._clock is None or self._clock.when() > due_s:
            if self._clock is not None:
                self._clock.cancel()
            self._clock = self._loop.call_at(due_s, self._strike)

    def _strike(self) -> None:
        self._clock = None
        if self._now_s < self._due_s():
            self._arm()
        elif self._now_s >= self._member_state.holds_until_s:
            self._end(OwnershipMayHaveEnded(self._member_state.why_not_held))
        else:
            self._has_polled.clear()
            self._end(_CallerAway(f"no records were taken for {self._settings.max_poll_interval_ms} ms"))
