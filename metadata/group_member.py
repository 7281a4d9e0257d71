"""The life of one member of a consumer group: it joins, hears what it owns, stays, and gives up in time.

    run() ─┬─ one stay after the other: join ─▶ sync ─▶ revoked, assigned ─▶ until there is something new ─▶ join …
           ├─ heartbeats, however slow the caller and the reader are
           └─ new partitions, where it leads the group's members

A stay is ended from outside where it waits: by a heartbeat that tells that it is out, or by the clock. Then the reader is told
`lost`. It stands on GroupCalls (the SDK's go over gRPC, a broker's own through its router, a test's to a coordinator): all members
are this one. What is decided stands in membership.py (pure) and leader_assignment.py (pure).

Invariants: the reader is told one thing at a time; `lost` comes before anybody else can own what is lost; no task outlives run().
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from metadata.assignors import TopicPartitionName
from metadata.errors import (
    Fenced,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    StaleMember,
    Throttled,
    TidelogError,
    Unavailable,
)
from metadata.group_calls import GroupCalls as GroupCalls
from metadata.group_model import (
    NO_INSTANCE,
    NO_MEMBER,
    Generation,
    Joined,
    MemberId,
)
from metadata.leader_assignment import assignments, has_grown, subscribers
from metadata.member_settings import MemberSettings
from metadata.membership import NOTHING, Heard, Membership, Moves, Phase
from metadata.partition_reader import PartitionReader as PartitionReader

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
"""Between two attempts; it doubles from the one to the other."""
WAIT_LONGER_S: Final = 5.0
"""Than the rebalance timeout, for a call that waits for all members. Others may have a longer one: then it is asked again."""
COUNTS_S: Final = 10.0
LEAVE_S: Final = 5.0

_Answer = TypeVar("_Answer")
log = logging.getLogger(__name__)


class _CallerAway(Exception):
    """The caller took no records for max_poll_interval_ms."""


class _SessionMayHaveEnded(Exception):
    """By this process's clock: no answer came for so long."""


class _Ended(Exception):
    """run() has."""


class GroupMember:
    """Its owner runs `run()` as a task."""

    def __init__(
        self,
        calls: GroupCalls,
        reader: PartitionReader,
        settings: MemberSettings,
        *,
        group: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` gives numbers between 0 and 1, for pauses before a call is tried again."""
        self._calls = calls
        self._reader = reader
        self._settings = settings
        self._group = group
        self._jitter = jitter
        self._place = Membership(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polled_s = float("inf")
        self._has_polled = asyncio.Event()
        self._join_again = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stay: asyncio.Timeout | None = None
        self._ended_by: Exception | None = None
        """Why the stay was ended from outside."""
        self._call: asyncio.Timeout | None = None
        """Of the call that waits for the group."""
        self._clock: asyncio.TimerHandle | None = None
        self._assigned_counts: Mapping[str, int] | None = None
        """While it leads: of the topics that its generation reads, as they were assigned."""
        self._assigned_topics: frozenset[str] = frozenset()
        """The same topics, and those that are not there yet."""

    # ── what its owner asks ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def member_id(self) -> MemberId:
        """Empty before it has joined, and once the group does not know it any more."""
        return self._place.member_id

    @property
    def generation(self) -> Generation:
        """That commits name; NO_GENERATION while it is in none."""
        return self._place.generation

    @property
    def owned(self) -> frozenset[TopicPartitionName]:
        """Nothing once the session may have ended by this process's clock, even before `lost` was told: a process that was frozen
        asks here before it hands out what it had read before."""
        if self._loop is None or self._loop.time() >= self._place.holds_until_s:
            return NOTHING
        return self._place.owned

    def polls(self) -> None:
        """The caller waits for records: until `polled()`, max_poll_interval_ms does not count."""
        self._polled_s = float("inf")
        self._has_polled.set()

    def polled(self) -> None:
        """The caller took records: max_poll_interval_ms counts from here. A member that left because it did not joins again."""
        if self._loop is not None:
            self._polled_s = self._loop.time()
            self._arm()
        self._has_polled.set()

    def subscription_changed(self) -> None:
        """`reader.subscribed()` gives something else: join again with it. Unsaid, it is seen at the next heartbeat."""
        self._join_again.set()

    def stop(self) -> None:
        """run() tells `revoked`, leaves the group (a static member does not: its session runs on), and returns."""
        self._stopping.set()
        self._join_again.set()
        self._has_polled.set()
        self._repeat_call()

    async def leave(self) -> None:
        """Once run() has ended: so the group need not wait for the session to end. A static member leaves as well.

        Raises nothing that a coordinator answers: the session ends by itself.
        """
        if self._place.member_id == NO_MEMBER:
            return
        leaving = [(self._place.member_id, self._place.instance_id)]
        self._place.left()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._calls.leave(self._group, leaving)
        except (TidelogError, TimeoutError) as error:
            log.info("group %s: could not tell that %s leaves: %s; its session ends by itself", self._group, leaving[0][0], error)

    async def run(self) -> None:
        """Until `stop()`, or cancelled, which leaves no task, tells the reader nothing, and does not leave the group.

        Raises what no trying again can mend (InstanceFenced, GroupFull, Denied, InvalidArgument …), and what the reader raised.
        Brokers that are unavailable are asked again for ever: the reader is told `lost` in time.
        """
        self._loop = asyncio.get_running_loop()
        if not self._has_polled.is_set():
            self._polled_s = self._loop.time()
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._beat(), name=f"heartbeats of a member of group {self._group}"),
                    tasks.create_task(self._watch_topics(), name=f"topics of group {self._group}"),
                ]
                failure = await self._live()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._place.lost(_Ended())
        if failure is not None:
            raise failure

    # ── one stay in the group after the other ───────────────────────────────────────────────────────────────────────────

    async def _live(self) -> Exception | None:
        """Answers what ended it."""
        again = _Pauses(self._jitter)
        while not self._stopping.is_set():
            ended_by = await self._take_part_until_it_ends()
            if ended_by is None:
                break
            if self._place.phase is Phase.STAYING:
                again = _Pauses(self._jitter)
            if (failure := await self._give_up(ended_by)) is not None:
                await self._leave_unless_fenced(failure)
                return failure
            if isinstance(ended_by, _CallerAway):
                if self._place.instance_id == NO_INSTANCE:
                    await self.leave()
                if not self._stopping.is_set():
                    await self._has_polled.wait()
            else:
                await self._pause(again.next_s(ended_by))
        if self._place.instance_id == NO_INSTANCE:
            await self.leave()
        return None

    async def _take_part_until_it_ends(self) -> Exception | None:
        """Why it ended; None where `stop()` did it."""
        self._ended_by = None
        try:
            async with asyncio.timeout(None) as self._stay:
                self._arm()
                await self._take_part()
        except TimeoutError as error:
            return error if self._ended_by is None else self._ended_by
        except Exception as error:  # noqa: BLE001  # the reader's own, too, which reaches the caller when the group is left
            return error
        finally:
            self._stay = None
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None
        return None

    async def _give_up(self, why: Exception) -> Exception | None:
        """All that it owns, at once. Answers what ends the member for good."""
        self._assigned_counts = None
        lost = self._place.lost(why)
        failure = None if isinstance(why, StaleMember | _CallerAway | _SessionMayHaveEnded) else why
        if lost:
            log.warning("group %s: %d partitions are lost: %s", self._group, len(lost), why)
            try:
                await self._reader.lost(lost)
            except Exception as error:
                if failure is None:
                    return error
                log.exception("group %s: its reader could not be told what is lost", self._group)
        return failure

    async def _leave_unless_fenced(self, failure: Exception) -> None:
        if not isinstance(failure, Fenced):
            await self.leave()

    def _end(self, why: Exception) -> None:
        """The stay, wherever it waits."""
        if self._stay is not None and not self._stay.expired() and self._ended_by is None:
            self._ended_by = why
            self._stay.reschedule(self._now_s)

    # ── within a stay ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_part(self) -> None:
        while not self._stopping.is_set():
            if self._place.revokes_before_joining:
                await self._revoke(self._place.owned)
            joined = await self._join()
            moves = None if joined is None else await self._sync(joined)
            if moves is None:
                continue
            if moves.strange:
                log.warning("group %s: assigned %s, which it has not asked for", self._group, sorted(moves.strange)[:3])
            await self._revoke(moves.revoked)
            await self._take(moves.assigned)
            if moves.revoked:  # so that others are given it
                continue
            await self._join_again.wait()
        await self._revoke(self._place.owned)

    async def _join(self) -> Joined | None:
        """None where it is stopped meanwhile."""
        again = _Pauses(self._jitter)
        while not self._stopping.is_set():
            self._join_again.clear()
            self._assigned_counts = None
            request = self._place.join_request(self._reader.subscribed(), now_s=self._now_s)
            try:
                joined = await self._answered(self._calls.join(self._group, request), "JoinGroup")
                self._place.joined(joined)
            except MemberIdRequired as error:
                self._place.named(error)
                if request.member_id == NO_MEMBER:
                    continue
                pause_s = again.next_s(error)
            except InconsistentProtocol:
                if not self._place.owned:
                    raise
                await self._revoke(self._place.owned)  # then it can offer all that it knows
                continue
            except RebalanceInProgress as error:
                pause_s = again.next_s(error)
            except TidelogError as error:
                if not error.retryable:
                    raise
                pause_s = again.next_s(error)
            else:
                return joined
            await self._pause(pause_s)
        return None

    async def _sync(self, joined: Joined) -> Moves | None:
        """None where it has to join again, or is stopped."""
        again = _Pauses(self._jitter)
        assignments: dict[MemberId, bytes] | None = None
        while not self._stopping.is_set():
            try:
                if assignments is None:
                    assignments = await self._assignments(joined)
                request = self._place.sync_request(assignments, now_s=self._now_s)
                return self._place.synced(await self._answered(self._calls.sync(self._group, request), "SyncGroup"))
            except RebalanceInProgress:
                return None
            except TidelogError as error:
                if not error.retryable:
                    raise
                if self._join_again.is_set():
                    return None
                await self._pause(again.next_s(error))
        return None

    async def _assignments(self, joined: Joined) -> dict[MemberId, bytes]:
        """Of all members, by the one that leads them; nothing by the others."""
        if joined.leader != joined.member_id:
            return {}
        asking = subscribers(joined)
        if asking.torn:
            log.warning(
                "group %s: nothing is assigned to %s, whose subscription can't be read", self._group, ", ".join(asking.torn)
            )
        counts = await self._counts(asking.topics)
        self._assigned_counts, self._assigned_topics = counts, asking.topics
        return {} if joined.skip_assignment else assignments(joined.protocol, counts, asking.readable)

    async def _counts(self, topics: Collection[str]) -> dict[str, int]:
        """Of all topics of the group; whoever answers may have heard less than the reader has."""
        counts = dict(await self._answered(self._reader.partition_counts(topics), "the question for partition counts", COUNTS_S))
        for topic, count in self._reader.subscribed().items():
            if topic in topics:
                counts[topic] = max(count, counts.get(topic, 0))
        return counts

    async def _revoke(self, partitions: frozenset[TopicPartitionName]) -> None:
        if partitions:
            await self._reader.revoked(partitions)
            self._place.gave_up(partitions)

    async def _take(self, partitions: frozenset[TopicPartitionName]) -> None:
        if partitions:
            self._place.took(partitions)
            self._arm()
            await self._reader.assigned(partitions)

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answered(self, call: Awaitable[_Answer], what: str, timeout_s: float | None = None) -> _Answer:
        """Raises Unavailable where no answer comes in time, or a heartbeat told that none will."""
        if timeout_s is None:
            timeout_s = self._settings.rebalance_timeout_ms / 1000 + WAIT_LONGER_S
        waits = asyncio.timeout(timeout_s)
        try:
            async with waits:
                self._call = waits
                return await call
        except TimeoutError as error:
            if not waits.expired():
                raise
            raise Unavailable(f"no answer to {what} of group {self._group}") from error
        finally:
            self._call = None

    def _repeat_call(self) -> None:
        if self._call is not None and not self._call.expired():
            self._call.reschedule(self._now_s)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    # ── beside it ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _beat(self) -> None:
        beat_s = self._settings.beat_ms / 1000
        pause_s = beat_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = beat_s
            if (beat := self._place.beat(now_s=self._now_s)) is None:
                continue
            error: TidelogError | None = None
            try:
                async with asyncio.timeout(beat_s):
                    await self._calls.heartbeat(self._group, beat.member_id, self._place.instance_id, beat.generation)
            except TimeoutError:
                error = Unavailable("no answer to a heartbeat")
            except TidelogError as raised:
                error = raised
            self._heed(self._place.answered(beat, error), error)
            if error is not None and error.retryable:
                pause_s = min(beat_s, RETRY_S_MAX) * (0.5 + self._jitter() / 2)
            self._look_at_subscription()

    def _heed(self, heard: Heard, error: TidelogError | None) -> None:
        match heard:
            case Heard.JOIN_AGAIN:
                self._join_again.set()
                self._repeat_call()  # where it waits for the assignment: there will be none
            case Heard.ASK_AGAIN:
                self._repeat_call()
            case Heard.ENDED:
                assert error is not None, "only an error ends it"
                self._end(error)
            case Heard.NOTHING_NEW:
                pass

    def _look_at_subscription(self) -> None:
        if self._place.phase is not Phase.STAYING:
            return
        try:
            subscribed = self._reader.subscribed()
        except Exception as error:  # noqa: BLE001  # as if it had been raised where the member asks for it
            self._end(error)
            return
        if subscribed.keys() != self._place.topics or self._is_unassigned(subscribed):
            self._join_again.set()

    async def _watch_topics(self) -> None:
        """Others may read topics that this member's reader does not know."""
        while True:
            await asyncio.sleep(self._settings.topics_interval_ms / 1000)
            if (assigned := self._assigned_counts) is None:
                continue
            try:
                async with asyncio.timeout(COUNTS_S):
                    counts = await self._reader.partition_counts(self._assigned_topics)
            except (TidelogError, TimeoutError):
                continue
            except Exception as error:  # noqa: BLE001  # the same
                self._end(error)
                continue
            if assigned is self._assigned_counts and self._is_unassigned(counts):
                self._join_again.set()

    def _is_unassigned(self, counts: Mapping[str, int]) -> bool:
        return self._assigned_counts is not None and has_grown(self._assigned_counts, counts)

    # ── the clock ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _now_s(self) -> float:
        assert self._loop is not None, "run() has begun"
        return self._loop.time()

    def _due_s(self) -> float:
        return min(self._place.holds_until_s, self._polled_s + self._settings.max_poll_interval_ms / 1000)

    def _arm(self) -> None:
        """The timer is never late; where it is early, it is set anew: heartbeats and callers that take records cost none."""
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
        elif self._now_s >= self._place.holds_until_s:
            self._end(_SessionMayHaveEnded("no answer of the group's coordinator came for too long"))
        else:
            self._has_polled.clear()
            self._end(_CallerAway(f"no records were taken for {self._settings.max_poll_interval_ms} ms"))


class _Pauses:
    """Before a call is tried again: each twice as long as the one before."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next_s = RETRY_S

    def next_s(self, error: Exception) -> float:
        if isinstance(error, Throttled):
            return error.retry_after_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, RETRY_S_MAX)
        return pause_s * (0.5 + self._jitter())
