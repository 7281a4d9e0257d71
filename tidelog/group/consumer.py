"""Reads the records of a group member's partitions, and commits their offsets: `log.consume(…, group=…)`.

    async with log.consume("orders", group="billing") as consumer:
        async for record in consumer:
            ...                                 # who asks for the next record has processed this one

At least once: a record that the caller held when it failed comes again. As long as no member crashes, and each caller takes its
records within max_poll_interval_ms, each record comes once: before a partition goes to another member, this one waits until its
caller asks for more, and commits what it had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from metadata.errors import InvalidArgument, Rejected, TidelogError
from metadata.groups.assignors import TopicPartitionName
from tidelog.group.positions import HandedOut, Offset
from tidelog.group.reader import GroupReader
from tidelog.records import Record
from tidelog.tasks import ClientTasks

# After this time a caller that awaits nothing between records yields the loop, above all to heartbeats.
GIVES_WAY_S: Final = 0.05

log = logging.getLogger("tidelog")

_OFFSET_MAX: Final = 2**63 - 1

# Members that have not left their groups; the client waits for them when it is left.
OpenReadings = dict[asyncio.Task[None], GroupReader]


class GroupConsumer:
    """A reader in a consumer group. Iterate it, or call `chunk`, from one task at a time.

    The member joins its group at the first read. It leaves with the loop, or with its own `async with` block.

    Records count as processed, and are committed by itself, once the caller asks for more, or its `async with` ends without an
    error. Records that the caller holds when it leaves a loop otherwise come again: `break` looks like a failure there.
    """

    def __init__(self, reading: GroupReader, tasks: ClientTasks, open_readings: OpenReadings, *, close_s: float) -> None:
        self.group = reading.group
        self._what = f"{reading.subscription} by group {reading.group}"
        self._reading = reading
        self._tasks = tasks
        self._open_readings = open_readings
        self._close_s = close_s
        self._task: asyncio.Task[None] | None = None
        self._has_block = False
        self._is_over = False
        self._is_closed = False

    # ── records ──

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        reading, gives_way_s = self._reading, time.monotonic() + GIVES_WAY_S
        try:
            while (hand := await self.take()) is not None:
                for record in hand.records:  # which is emptied where nothing more of it may be handed out
                    hand.next_offset = record.offset + 1
                    yield record
                    if time.monotonic() >= gives_way_s:
                        await asyncio.sleep(0)
                        gives_way_s = time.monotonic() + GIVES_WAY_S
                        if not reading.owns(hand.partition):
                            break
                del hand  # it may be large: no two of them at once
        finally:
            if not self._has_block:
                await self.aclose()

    async def chunk(self) -> list[Record]:
        """Returns the next records of one partition, at least one; empty at the end. Earlier ones then count as processed.

        Raises what ended the reading: InstanceFenced, GroupFull, Denied, UnknownTopic, …, and what a callback raised. What ended
        one partition is raised when nothing is left of the others (see `errors`).
        """
        hand = await self.take()
        return [] if hand is None else hand.take_all()

    async def take(self) -> HandedOut | None:
        """Returns the next chunk, the unit of iteration. The caller advances its `next_offset`. None at the end."""
        if self._is_closed and not self._is_over:
            raise Rejected(f"this reader of {self._what} was closed before its end", hint="Call consume again.")
        self._start()
        try:
            hand = await self._reading.take()
        except Exception:
            self._is_over = True
            raise
        self._is_over = hand is None
        return hand

    @property
    def errors(self) -> dict[TopicPartitionName, TidelogError]:
        """Returns, by partition, the error that stopped its reading while others go on. It was logged as well."""
        return self._reading.fetching.errors

    # ── what is owned ──

    @property
    def member_id(self) -> str:
        """Returns the member id from the group's coordinator; empty before it has joined, and while the group does not know it."""
        return self._reading.member_id

    @property
    def generation(self) -> int:
        """Returns the group's generation, which rises with each rebalance; -1 while this member takes part in none."""
        return self._reading.generation

    def assignment(self) -> list[TopicPartitionName]:
        """Returns the partitions that this member owns now, as (topic, number)."""
        return self._reading.assignment()

    @property
    def positions(self) -> dict[TopicPartitionName, int]:
        """Returns, by partition that is read, the offset of the next record to be handed out."""
        return self._reading.positions.all()

    def lag(self) -> dict[TopicPartitionName, int | None]:
        """Returns, by partition that is read, the number of records not handed out yet; None before its leader's first answer."""
        return self._reading.lag()

    def pause(self, *partitions: TopicPartitionName) -> None:
        """Hands out nothing of them until `resume`; they stay this member's. All that it owns, where none is named."""
        for partition in partitions or self.assignment():
            self._reading.pause(partition)

    def resume(self, *partitions: TopicPartitionName) -> None:
        """Goes on where they were paused. All that are paused, where none is named."""
        for partition in partitions or self.paused():
            self._reading.resume(partition)

    def paused(self) -> list[TopicPartitionName]:
        return self._reading.paused()

    def seek(self, partition: TopicPartitionName, offset: int) -> None:
        """Goes on at this offset of (topic, number), which this member owns; it is committed as if all before it was processed.

        Raises StaleMember where this member does not own it, InvalidArgument.
        """
        self._reading.seek(partition, _checked(offset))

    # ── what is committed ──

    async def commit(self, what: Record | Mapping[TopicPartitionName, int] | None = None) -> None:
        """Commits all that was handed out, also what the caller has in its hands; or a record, and so all before it in its
        partition; or offsets, each of the next record to be read.

        Raises InvalidArgument. StaleMember where they are not this member's any more: who owns them now reads on at what was
        committed last. Unavailable: nothing was written. OutcomeUnknown: commit again.
        """
        positions = self._reading.positions

        def chosen() -> dict[TopicPartitionName, Offset]:
            if what is None:
                positions.hand_is_processed()
                return positions.due()
            offsets = {(what.topic, what.partition): what.offset + 1} if isinstance(what, Record) else what
            return {partition: positions.named(partition, _checked(offset)) for partition, offset in offsets.items()}

        await self._reading.commits.commit(chosen, asked=True)
        if what is None:
            self._reading.commits.log_lost()

    async def committed(self, *partitions: TopicPartitionName) -> dict[TopicPartitionName, int | None]:
        """Returns the group's committed offsets of these partitions, else of all that this member owns. None if nothing is
        committed."""
        asked = partitions or tuple(self.assignment())
        found = await self._reading.commits.committed(asked) if asked else {}
        return {partition: found[partition].offset if partition in found else None for partition in asked}

    # ── its life ──

    async def aclose(self) -> None:
        """Commits what was processed, and leaves the group. No harm in calling it twice.

        What is in the caller's hands comes again: `commit` it first, if it is done.
        """
        await self.close(hand_is_processed=False)

    async def close(self, *, hand_is_processed: bool) -> None:
        """Closes like `aclose`; the records that the caller holds may count as processed, too."""
        self._is_closed = True
        if self._task is None or self._task.done():
            return
        self._reading.stop(hand_is_processed=hand_is_processed)
        await asyncio.wait((self._task,), timeout=self._close_s)
        if not self._task.done():
            _warn(self._reading, self._close_s)
            self._task.cancel()
            await asyncio.wait((self._task,))

    def close_soon(self) -> None:
        """Closes without waiting, from any thread: the garbage collector may call it."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # the loop has ended, and so has the task
                self._task.get_loop().call_soon_threadsafe(partial(self._reading.stop, hand_is_processed=False))

    async def __aenter__(self) -> Self:
        self._has_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(hand_is_processed=error is None)

    def __del__(self) -> None:
        """Stops a consumer that was dropped without `aclose`: its group would wait for its session to end."""
        self.close_soon()

    def _start(self) -> None:
        if self._task is not None:
            return
        reading = self._reading.run()
        try:
            self._task = self._tasks.start(reading, name=f"reading of {self._what}")
        except RuntimeError as error:  # the client's task group takes no more
            reading.close()
            raise Rejected("the client is closed", hint="Read within `async with tidelog.connect(…) as log:`.") from error
        self._open_readings[self._task] = self._reading
        self._task.add_done_callback(self._open_readings.pop)


def _checked(offset: object) -> int:
    if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= _OFFSET_MAX:
        return offset
    raise InvalidArgument(f"{offset!r} is no offset", hint="Offsets are whole numbers, from 0 to 2^63 - 1.")


async def leave_groups(open_readings: OpenReadings, timeout_s: float) -> None:
    """Lets members that were not closed commit and leave, when their client is left."""
    tasks = list(open_readings)
    for reading in open_readings.values():
        reading.stop(hand_is_processed=False)
    if tasks:
        _, unfinished = await asyncio.wait(tasks, timeout=timeout_s)
        for task in unfinished:
            _warn(open_readings[task], timeout_s)


def _warn(reading: GroupReader, waited_s: float) -> None:
    log.warning(
        "member ended without its last commit group=%s: it could not commit and leave within %g s; what is not committed is read "
        "again, by other members once its session has ended",
        reading.group,
        waited_s,
    )
