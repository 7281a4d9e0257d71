"""Where the partitions of a Consume stream begin: at what the group has committed, else by the bounds of their logs.

    committed ─▶ there        nothing committed ─▶ as the stream's reset says: earliest, latest, or an error
    earliest, latest, timestamp ─▶ asked of the leaders; of those that nobody leads again a little later
    latest, of a group ─▶ committed before it is read: else what comes while no stream is open would be skipped

It runs beside the reading, so a partition that can't be placed at the moment, and a coordinator that is slow, delay no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from gateway.api import Broker
from gateway.grpc.consume.messages import ConsumeTerms
from gateway.grpc.consume.partitions import Consumed, ConsumedPartitions, Start, Whence
from gateway.topics.names import BOUNDS_WAIT_S
from metadata.errors import NotFound, TidelogError
from metadata.groups.offsets import StoredOffsets

AGAIN_S: Final = 0.5
"""Before it is asked again."""
LOOK_UPS_AT_ONCE: Final = 16
"""By timestamp: each may read from the bucket, or ask another broker."""


class ConsumePlacing:
    """Its owner runs `run()` as a task."""

    def __init__(
        self,
        broker: Broker,
        terms: ConsumeTerms,
        partitions: ConsumedPartitions,
        *,
        committed: Callable[[], Awaitable[StoredOffsets]],
        keep: Callable[[Mapping[Consumed, int]], Awaitable[Collection[Consumed]]],
        refused: Callable[[Consumed, TidelogError], bool],
        fail: Callable[[Consumed, TidelogError], None],
        placed: Callable[[], None],
    ) -> None:
        """`keep` remembers where partitions begin that begin at the end of their logs, and answers those of which it did. `refused`
        judges what a partition met, `fail` gives it up; `placed` is called when some may be read."""
        self._broker = broker
        self._terms = terms
        self._partitions = partitions
        self._committed = committed
        self._keep = keep
        self._refused = refused
        self._fail = fail
        self._placed = placed
        self.wanted = asyncio.Event()
        """There may be some to be placed."""

    async def run(self) -> None:
        """Raises what the coordinator says that no asking again can mend."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            if waiting := self._partitions.to_place():
                await self._place(waiting)
                self._placed()
            if self._partitions.to_place():
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self.wanted.wait()
                self.wanted.set()

    async def _place(self, waiting: Sequence[Consumed]) -> None:
        try:
            await self._at_committed([each for each in waiting if each.start.whence is Whence.COMMITTED])
        except TidelogError as error:
            if not error.retryable:
                raise
        else:
            await self._by_bounds([each for each in waiting if not each.is_placed and each.error is None])

    async def _at_committed(self, waiting: Sequence[Consumed]) -> None:
        if not waiting:
            return
        committed, damaged = await self._committed()
        for each in waiting:
            if (found := committed.get(each.partition)) is not None:
                each.offset = found.offset
            elif (error := damaged.get(each.partition)) is not None:
                self._fail(each, error)
            elif self._terms.reset is not Whence.ERROR:
                each.start = Start(self._terms.reset)
            else:
                nothing = NotFound(
                    f"group {self._terms.group} has committed nothing of {each.topic}/{each.number}",
                    hint="Commit an offset (tidelog group seek), or choose another auto_offset_reset.",
                )
                self._fail(each, nothing)

    async def _by_bounds(self, waiting: Sequence[Consumed]) -> None:
        if not waiting:
            return
        found = await self._broker.cluster_log.bounds_of([each.partition for each in waiting], wait_s=BOUNDS_WAIT_S)
        turns = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        ends: dict[Consumed, int] = {}
        async with asyncio.TaskGroup() as look_ups:
            for each, bounds in zip(waiting, found, strict=True):
                if isinstance(bounds, TidelogError):
                    self._refused(each, bounds)
                elif each.start.whence is Whence.TIMESTAMP:
                    look_ups.create_task(self._at_timestamp(each, bounds.high_watermark, turns))
                elif each.start.whence is Whence.LATEST:
                    ends[each] = bounds.high_watermark
                else:
                    each.offset = bounds.log_start_offset
        for each in await self._keep(ends) if ends else ():
            each.offset = ends[each]

    async def _at_timestamp(self, consumed: Consumed, high_watermark: int, turns: asyncio.Semaphore) -> None:
        try:
            async with turns:
                found = await self._broker.cluster_log.offset_for_timestamp(consumed.partition, consumed.start.timestamp_ms)
        except TidelogError as error:
            self._refused(consumed, error)
        else:
            consumed.offset = high_watermark if found is None else found[0]
