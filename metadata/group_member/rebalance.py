"""Moves a group member from one assignment to the next: it joins, syncs, revokes, takes and stays.

    revoke what can't be kept ─▶ join ─▶ sync ─▶ revoked ─▶ assigned ─▶ until there is something new ─▶ join …
                                    └ the members' leader assigns: leader_assignment.py (pure)

Answers are judged in state.py (pure). Invariant: the reader gets one call at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from metadata.errors import InconsistentProtocol, MemberIdRequired, RebalanceInProgress, TidelogError, Unavailable
from metadata.group_member.interfaces import RETRY_S, RETRY_S_MAX, CoordinatorClient, RebalanceListener
from metadata.group_member.leader_assignment import assignments, has_grown, subscribers
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import MemberState, Moves
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_MEMBER, Joined, MemberId
from metadata.retry import RetryPauses

# Added to the rebalance timeout for calls that wait for all members: a new coordinator waits 3 s longer for them.
# Where another member has a longer timeout, the call is repeated.
WAIT_LONGER_S: Final = 8.0
COUNTS_S: Final = 10.0

_Answer = TypeVar("_Answer")
log = logging.getLogger(__name__)


class OwnershipMayHaveEnded(Exception):
    """Ends a stay: by this process's clock other members may own its partitions."""


class MemberRebalance:
    """Rebalances one member. Its owner calls `take_part` for each stay in the group, and may cancel it at any time."""

    def __init__(
        self,
        calls: CoordinatorClient,
        reader: RebalanceListener,
        settings: MemberSettings,
        member_state: MemberState,
        *,
        group: str,
        jitter: Callable[[], float],
        took: Callable[[], None],
    ) -> None:
        """`took` is called when the member owns more than before."""
        self.stopping = asyncio.Event()
        self.join_again = asyncio.Event()
        self._calls = calls
        self._reader = reader
        self._settings = settings
        self._member_state = member_state
        self._group = group
        self._jitter = jitter
        self._took = took
        # The time limit of the call that waits for the group.
        self._call: asyncio.Timeout | None = None
        # While the member leads: the partition counts of the topics of its generation, as they were assigned.
        self._assigned_counts: Mapping[str, int] | None = None
        # Those topics, and the subscribed ones that do not exist yet.
        self._assigned_topics: frozenset[str] = frozenset()

    async def take_part(self) -> None:
        """Takes part until `stopping` is set, and then gives up what it owns. Raises what ends the stay."""
        while not self.stopping.is_set():
            if self._member_state.revokes_before_joining:
                await self._revoke(self._member_state.owned)
            joined = await self._join()
            moves = None if joined is None else await self._sync(joined)
            if moves is None:
                continue
            if moves.strange:
                log.warning("assigned topics that were not subscribed group=%s: %s", self._group, sorted(moves.strange)[:3])
            await self._revoke(moves.revoked)
            await self._take(moves.assigned)
            if moves.revoked:  # join again, so that other members receive them
                continue
            await self.join_again.wait()
        await self._revoke(self._member_state.owned)

    async def _join(self) -> Joined | None:
        """Returns the answer to a join; None where the member is stopped meanwhile."""
        again = RetryPauses(RETRY_S, RETRY_S_MAX, jitter=self._jitter)
        while not self.stopping.is_set():
            self.join_again.clear()
            self._assigned_counts = None
            request = self._member_state.join_request(self._reader.subscribed(), now_s=asyncio.get_running_loop().time())
            try:
                joined = await self._answered(self._calls.join(self._group, request), "JoinGroup")
                self._member_state.joined(joined)
            except MemberIdRequired as error:
                self._member_state.named(error)
                if request.member_id == NO_MEMBER:
                    continue
                pause_s = again.next_s(error)
            except InconsistentProtocol:
                if not self._member_state.owned:
                    raise
                await self._revoke(self._member_state.owned)  # then the member can offer all its assignors
                continue
            except RebalanceInProgress as error:
                pause_s = again.next_s(error)
            except TidelogError as error:
                if not error.retryable:
                    raise
                pause_s = again.next_s(error)
            else:
                return joined
            await self.pause(pause_s)
        return None

    async def _sync(self, joined: Joined) -> Moves | None:
        """Returns the changes of the assignment; None where the member has to join again, or is stopped."""
        again = RetryPauses(RETRY_S, RETRY_S_MAX, jitter=self._jitter)
        assignments: dict[MemberId, bytes] | None = None
        while not self.stopping.is_set():
            try:
                if assignments is None:
                    assignments = await self._assignments(joined)
                request = self._member_state.sync_request(assignments, now_s=asyncio.get_running_loop().time())
                return self._member_state.synced(await self._answered(self._calls.sync(self._group, request), "SyncGroup"))
            except RebalanceInProgress:
                return None
            except TidelogError as error:
                if not error.retryable:
                    raise
                if self.join_again.is_set():
                    return None
                await self.pause(again.next_s(error))
        return None

    async def _assignments(self, joined: Joined) -> dict[MemberId, bytes]:
        """Returns the assignments of all members where this one leads them; else none."""
        if joined.leader != joined.member_id:
            return {}
        asking = subscribers(joined)
        if asking.torn:
            log.warning("assigning nothing group=%s members=%s: unreadable subscription", self._group, ", ".join(asking.torn))
        counts = await self._counts(asking.topics)
        self._assigned_counts, self._assigned_topics = counts, asking.topics
        return {} if joined.skip_assignment else assignments(joined.protocol, counts, asking.readable)

    async def _counts(self, topics: Collection[str]) -> dict[str, int]:
        """Returns the partition counts of the group's topics, the higher one where the reader knows more."""
        counts = dict(await self._answered(self._reader.partition_counts(topics), "the question for partition counts", COUNTS_S))
        for topic, count in self._reader.subscribed().items():
            if topic in topics:
                counts[topic] = max(count, counts.get(topic, 0))
        return counts

    async def _revoke(self, partitions: frozenset[TopicPartitionName]) -> None:
        if partitions:
            await self._reader.revoked(partitions)
            self._member_state.gave_up(partitions)

    async def _take(self, partitions: frozenset[TopicPartitionName]) -> None:
        if partitions:
            if asyncio.get_running_loop().time() >= self._member_state.may_own_until_s:  # the process was frozen meanwhile
                raise OwnershipMayHaveEnded(self._member_state.why_not_held)
            self._member_state.took(partitions)
            self._took()
            await self._reader.assigned(partitions)

    # ── new partitions, where it leads ──────────────────────────────────────────────────────────────────────────────────

    def leads_no_more(self) -> None:
        self._assigned_counts = None

    def is_unassigned(self, counts: Mapping[str, int]) -> bool:
        """Returns whether the topics that it assigned have more partitions than it assigned."""
        return self._assigned_counts is not None and has_grown(self._assigned_counts, counts)

    async def refresh_partitions(self) -> None:
        """Joins again where topics of other members have new partitions. Raises what the reader raises."""
        if (assigned := self._assigned_counts) is None:
            return
        try:
            async with asyncio.timeout(COUNTS_S):
                counts = await self._reader.partition_counts(self._assigned_topics)
        except (TidelogError, TimeoutError):
            return
        if assigned is self._assigned_counts and self.is_unassigned(counts):
            self.join_again.set()

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answered(self, call: Awaitable[_Answer], what: str, timeout_s: float | None = None) -> _Answer:
        """Awaits the call. Raises Unavailable where it times out, or `repeat_call` ends it."""
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

    def repeat_call(self) -> None:
        """Ends a call that waits for the group, so that it is repeated: its answer will not come."""
        if self._call is not None and not self._call.expired():
            self._call.reschedule(asyncio.get_running_loop().time())

    async def pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.stopping.wait()
