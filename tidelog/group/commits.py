"""Commits the offsets of a group member: processed ones by itself, and those its caller asks for.

    StaleGeneration, RebalanceInProgress    the group rebalances: again, with what is still owned when the member is in a generation
    any other refusal                       raised to the caller that asked, else logged; uncommitted records are read again

Invariants: what is committed unasked was processed: the caller has asked for more since. Commits go one after the other, and each
is made when it is its turn: so none overtakes a later one, and none is of what was given up meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from metadata.errors import RebalanceInProgress, StaleGeneration, StaleMember, TidelogError
from metadata.group_member.member import GroupMember
from metadata.groups.assignors import TopicPartitionName
from metadata.groups.model import NO_GENERATION, NO_MEMBER, InstanceId
from metadata.retry import RetryPauses, retry
from tidelog.consumer.fetch_state import NAMED_MAX, named, shown
from tidelog.group.options import GroupOptions
from tidelog.group.positions import GroupPositions, Offset
from tidelog.group.start_offsets import CoordinatorCalls

PAUSE_S: Final = 0.05

log = logging.getLogger("tidelog")


class OffsetCommitter:
    """Commits offsets for one member of a group, one commit after the other."""

    def __init__(
        self,
        calls: CoordinatorCalls,
        member: GroupMember,
        positions: GroupPositions,
        *,
        group: str,
        options: GroupOptions,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long a commit waits for the end of a rebalance."""
        self._calls = calls
        self._member = member
        self._positions = positions
        self._group = group
        self._instance_id = InstanceId(options.member.instance_id)
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        # With records that were handed out and not committed.
        self._lost: set[TopicPartitionName] = set()

    async def commit(self, chosen: Callable[[], dict[TopicPartitionName, Offset]], *, asked: bool = False) -> None:
        """`chosen` says what, when it is this commit's turn; `asked`: the caller does. Raises StaleMember where it does not count
        any more, Unavailable, …"""
        commit, rebalancing = partial(self._commit_once, chosen, asked=asked), (RebalanceInProgress, StaleGeneration)
        await retry(commit, on=rebalancing, pauses=RetryPauses(PAUSE_S, PAUSE_S), for_s=self._patience_s)

    async def _commit_once(self, chosen: Callable[[], dict[TopicPartitionName, Offset]], *, asked: bool = False) -> None:
        async with self._turn:
            offsets = chosen()
            if not offsets:
                return
            member = self._member
            if member.generation == NO_GENERATION or member.member_id == NO_MEMBER:
                raise StaleMember(
                    f"this member of group {self._group} was lost to it", hint="What was not committed is read again."
                )
            refused = await self._calls.commit(self._group, member.member_id, self._instance_id, member.generation, offsets)
            for partition, offset in offsets.items():
                if partition not in refused:
                    self._positions.committed(partition, offset, asked=asked)
        for partition, error in refused.items():
            raise named(error, partition)

    async def of_processed(self, partitions: Collection[TopicPartitionName] | None = None, *, waits: bool = False) -> None:
        """Raises nothing that is answered: what could not be committed is committed later, or read again.

        `waits`: for the end of a rebalance. A member that gives something up does not: it is what the others wait for.
        """
        try:
            await (self.commit if waits else self._commit_once)(lambda: self._positions.due(partitions))
        except TidelogError as error:
            log.warning("commit failed group=%s: %s", self._group, error)

    async def under_way(self) -> None:
        """Returns when the one that is under way now has ended: what the group has committed is read after it, or it might land
        over what is committed from there."""
        async with self._turn:
            pass

    async def now_and_then(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.of_processed(waits=True)

    def lost(self, partitions: Collection[TopicPartitionName]) -> None:
        """Notes partitions that other members may own, with uncommitted records."""
        self._lost |= {partition for partition in partitions if self._positions.has_uncommitted(partition)}

    def log_lost(self) -> None:
        """Raises StaleMember, once, where what was handed out went to others before it was committed."""
        if self._lost:
            lost = ", ".join(map(shown, sorted(self._lost)[:NAMED_MAX])) + (", …" if len(self._lost) > NAMED_MAX else "")
            self._lost.clear()
            raise StaleMember(
                f"{lost} went to other members of group {self._group} before what was read could be committed",
                hint="It is read again there. Take records more often than max_poll_interval_ms, or commit more often.",
            )

    async def committed(self, partitions: Collection[TopicPartitionName]) -> dict[TopicPartitionName, Offset]:
        """Returns the committed offsets, whichever member committed them. Raises the first partition's error."""
        found = await self._calls.committed(self._group, partitions)
        for partition, offset in found.items():
            if isinstance(offset, TidelogError):
                raise named(offset, partition)
        return {partition: offset for partition, offset in found.items() if isinstance(offset, Offset)}
