"""Finds where the partitions of a Consume stream begin: as metadata/group_member/start_offsets.py decides, or at a timestamp.

  groups/start_offsets.py: committed, earliest, latest ─▶ partitions without a leader are tried again a little later
  latest, of a group ─▶ committed before it is read: else records that come while no stream is open would be skipped

It runs beside the reading, so a partition that cannot be placed at the moment, or a slow coordinator, delays no other partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from gateway.api import BrokerApi
from gateway.groups.start_offsets import find_starts
from gateway.grpc.consume.messages import ConsumeOptions
from gateway.grpc.consume.partitions import ConsumedPartition, ConsumedPartitions, StartKind, start_of
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.errors import TidelogError
from metadata.group_member.start_offsets import StartPolicy, StartRules
from metadata.groups.offsets import StoredOffsets

# Pause before the coordinator is asked again.
AGAIN_S: Final = 0.5
# Look-ups by timestamp at a time; each may read from the bucket, or ask another broker.
LOOKUPS_AT_ONCE: Final = 16

log = logging.getLogger(__name__)


class StartOffsets:
    """Places the partitions of one stream that have no offset yet. Its owner runs `run()` as a task."""

    def __init__(
        self,
        broker: BrokerApi,
        terms: ConsumeOptions,
        partitions: ConsumedPartitions,
        *,
        committed: Callable[[], Awaitable[StoredOffsets]],
        keep: Callable[[Mapping[ConsumedPartition, int]], Awaitable[Collection[ConsumedPartition]]],
        refused: Callable[[ConsumedPartition, TidelogError], bool],
        positioned: Callable[[], None],
    ) -> None:
        """`keep` commits where partitions begin at the end of their logs, and returns those for which it did. `refused` judges the
        error of a partition, and gives the partition up if the error is final; `positioned` is called when some may be read."""
        self._broker = broker
        self._terms = terms
        self._partitions = partitions
        self._committed = committed
        self._keep = keep
        self._refused = refused
        self._positioned = positioned
        # Set when partitions may have to be placed.
        self.wanted = asyncio.Event()

    async def run(self) -> None:
        """Places partitions as they come. Raises an error of the coordinator that retries cannot resolve."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            if waiting := self._partitions.without_offset():
                await self._position(waiting)
                self._positioned()
            if self._partitions.without_offset():
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self.wanted.wait()
                self.wanted.set()

    async def _position(self, waiting: Sequence[ConsumedPartition]) -> None:
        if of_group := [each for each in waiting if each.start.whence is StartKind.COMMITTED]:
            try:
                stored = await self._committed()
            except TidelogError as error:
                if error.retryable:
                    return
                raise
            await self._begin(of_group, self._terms.reset, stored)
        for policy in (StartPolicy.EARLIEST, StartPolicy.LATEST):
            await self._begin([each for each in waiting if each.start == start_of(policy)], policy, None)
        await self._at_timestamps([each for each in waiting if each.start.whence is StartKind.TIMESTAMP])

    async def _begin(self, waiting: Sequence[ConsumedPartition], policy: StartPolicy, stored: StoredOffsets | None) -> None:
        if not waiting:
            return
        names = {each.partition: f"{each.topic}/{each.number}" for each in waiting}
        rules = StartRules(self._terms.group, policy)
        found = await find_starts(self._broker.cluster_log, rules, names, stored, wait_s=BOUNDS_WAIT_S)
        ends: dict[ConsumedPartition, int] = {}
        for each in waiting:
            start = found[each.partition]
            if isinstance(start, TidelogError):
                self._refused(each, start)
            elif start.is_end:
                ends[each] = start.offset
            else:
                each.offset = start.offset
                if start.moved:
                    log.warning("start offset moved: %s; reading continues at offset %d", start.moved, start.offset)
        for each in await self._keep(ends) if ends else ():
            each.offset = ends[each]

    async def _at_timestamps(self, waiting: Sequence[ConsumedPartition]) -> None:
        if not waiting:
            return
        found = await self._broker.cluster_log.bounds_of([each.partition for each in waiting], wait_s=BOUNDS_WAIT_S)
        slots = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        async with asyncio.TaskGroup() as lookups:
            for each, bounds in zip(waiting, found, strict=True):
                if isinstance(bounds, TidelogError):
                    self._refused(each, bounds)
                else:
                    lookups.create_task(self._at_timestamp(each, bounds.high_watermark, slots))

    async def _at_timestamp(self, consumed: ConsumedPartition, high_watermark: int, slots: asyncio.Semaphore) -> None:
        try:
            async with slots:
                found = await self._broker.cluster_log.offset_for_timestamp(consumed.partition, consumed.start.timestamp_ms)
        except TidelogError as error:
            self._refused(consumed, error)
        else:
            consumed.offset = high_watermark if found is None else found[0]
