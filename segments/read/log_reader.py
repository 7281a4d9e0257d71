"""Reads committed records of the partitions led here: from the hot pool, or from segments or Parquet files on the bucket.

    look at all partitions, in memory only ─▶ enough? ─▶ answer; what is still read from the bucket comes with the next fetch
              ▲                                 └ no: wait for a commit, for a read to arrive, or for the deadline ─┐
              └──────────────────────────────────────────────────────────────────────────────────────────────────┘

So a slow read of one partition's history never holds up the tail of the others. A thin shell round fetch_plan.py, cached_run.py and
cached_row_group.py. Where an object is gone, the newest manifest is read before anybody is told so: its records may lie elsewhere
by now. Who reads on where the last answer ended is taken for sequential, and what comes next is read ahead of it (the next two row
groups, or as many runs as it asked for), where nobody else waits for the room.

Invariants: nothing at or above the high watermark is ever answered; a partition that was left out of an answer because its history
was still being read gets it, or the error of that read, from the first fetch after the read has ended that has room for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from metadata.errors import TidelogError
from metadata.model import LeaderEpoch, Offset, TopicPartition
from segments.counters import LogCounters
from segments.history.index import GroupPlace
from segments.object_store.interface import Buffer
from segments.partition.leader_partitions import LeaderPartition
from segments.read.cached_row_group import CachedRowGroup
from segments.read.fetch_plan import FetchPart, FromCache, FromParquet, FromWal, Gap, plan_fetch
from segments.read.fetch_reads import FetchReads
from segments.read.read_cache import Cold, OnGone, Place, ReadCache
from segments.read.record_locations import RecordLocations, located
from segments.read.record_lookup import AdoptNewest
from segments.read.tail_cache import TailCache
from segments.records.batch import base_offset_of, empty_batch


class FetchTarget(NamedTuple):
    partition: TopicPartition
    offset: int
    bytes_max: int
    # That the reader knows: a leader of another epoch refuses to answer. None: whoever leads.
    current_leader_epoch: int | None = None
    # Another broker asks, which reads from the bucket itself: it is told where the records lie, in parts of so many bytes and
    # more on average. None: it is answered with the records.
    places_bytes_min: int | None = None


class FetchResult(NamedTuple):
    # Whole record batches when joined, each of which begins where the one before ends; the last one ends at `next_offset`. The
    # first may begin before the asked offset, with records to skip, or behind it, after a gap. Where there are none, but
    # `next_offset` is behind the asked offset, there are no records in between, and never will be.
    batches: list[Buffer]
    size_bytes: int
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    # Of the leader that answered.
    leader_epoch: LeaderEpoch
    # Where the records lie, in place of them; `size_bytes` is about what they have then.
    located: RecordLocations | None = None
    # When the newest records of the partition were committed here, on the loop's clock; 0 where that was before this leader's
    # time, None where another broker has answered.
    committed_at_s: float | None = 0.0

    @property
    def more(self) -> bool:
        """Whether committed records follow that this answer had no room for, or that were still read from the bucket."""
        return self.next_offset < self.high_watermark

    def passes_gap(self, offset: int) -> bool:
        """Whether it says no more to who asked from `offset` on than that records were removed there."""
        return not self.size_bytes and self.next_offset > offset

    def batches_from(self, offset: int) -> list[Buffer]:
        """Returns the batches for a Kafka client that asked from `offset` on: an empty one where the answer passes only a gap.

        Such a client moves by batches alone, and knows no `next_offset`.
        """
        return [empty_batch(offset, self.next_offset)] if self.passes_gap(offset) else self.batches


# Ends of answers that are remembered, to tell who reads on.
READERS_MAX: Final = 10_000


class LogReader:
    def __init__(
        self,
        hot: TailCache,
        cold: ReadCache,
        *,
        adopt_newest: AdoptNewest | None = None,
        counters: LogCounters | None = None,
    ) -> None:
        self._counters = counters or LogCounters()
        self._hot = hot
        self._cold = cold
        self._adopt_newest = adopt_newest
        self._read_to: OrderedDict[tuple[TopicPartition, int], None] = OrderedDict()
        """Where answers from the bucket ended, the newest last."""

    async def fetch(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LeaderPartition],
        woken: asyncio.Event,
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
    ) -> list[FetchResult | TidelogError]:
        """Batches of each target in turn, `bytes_max` bytes in all; the error of a target stands in its place.

        Answers as soon as there are `bytes_min` bytes, or more records than it may answer with, or an error; at the latest after
        `wait_ms_max`, but not before a read of history that is all there is to answer with. The first target that has records
        in memory gets at least one batch, however large. Where there is only a gap up to the high watermark (key compaction), that
        is as if there was nothing yet, but `next_offset` is behind it.

        `led_at` is asked at each look; `woken` is set by the caller when something was committed.
        """
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + (wait_ms_max / 1000 if bytes_min > 0 else 0)
        with FetchReads(self._cold, bytes_max=bytes_max, woken=woken) as reads:
            while True:
                woken.clear()
                looks = self._look_at_all(targets, led_at, bytes_max, reads)
                is_late = deadline_s <= clock.time()
                is_answer = _is_enough(looks, reads, bytes_min) or (is_late and not _may_come(looks, reads))
                if is_answer and not reads.owes and not woken.is_set():
                    self._read_ahead(looks)
                    if bytes_max > 1:  # else it was only asked whether there is something
                        self._count(looks)
                    return [look.fetched if isinstance(look, _Look) else look for look in looks]
                reads.wait_for(look.missing[0] for look in looks if isinstance(look, _Look) and look.missing)
                try:
                    async with asyncio.timeout_at(None if is_late else deadline_s):
                        await woken.wait()
                except TimeoutError:
                    continue  # one more look, and what is there is the answer

    def _look_at_all(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LeaderPartition],
        bytes_max: int,
        reads: FetchReads,
    ) -> list[_Look | TidelogError]:
        """What is in memory for each target. Has read what is not: the next run of each in turn, then those behind."""
        looks: list[_Look | TidelogError] = []
        bytes_left, is_first = bytes_max, True
        for target in targets:
            try:
                led = led_at(target.partition)
                led.log.check_epoch(target.current_leader_epoch)
                if bytes_left > 0 or is_first:
                    look = self._look(led, target, min(bytes_left, target.bytes_max), reads)
                else:
                    led.log.check_readable(target.offset)
                    look = _Look(target, led, _fetched(led, [], 0, Offset(target.offset)))
            except TidelogError as error:
                looks.append(error.with_traceback(None))  # it outlives this call, and would keep all of it in memory
                continue
            bytes_left -= look.fetched.size_bytes
            is_first = is_first and not look.fetched.size_bytes
            looks.append(look)
        waiting = [look for look in looks if isinstance(look, _Look) and look.missing]
        for turn in range(max((len(look.missing) for look in waiting), default=0)):
            for look in waiting:
                if reads.is_full:
                    return looks
                if turn < len(look.missing):
                    is_next = turn == 0 and not look.fetched.size_bytes
                    reads.begin(look.missing[turn], is_next=is_next, on_gone=self._on_gone(look.led))
        return looks

    def _look(self, led: LeaderPartition, target: FetchTarget, bytes_max: int, reads: FetchReads) -> _Look:
        """What is in memory from the target's offset on.

        Raises OutOfRange; Corrupt and Unavailable only when not even the first batch can be read: what can is answered first.
        """
        log = led.log
        log.check_readable(target.offset)
        if target.places_bytes_min is not None and (told := self._located(led, target, bytes_max)) is not None:
            return _Look(target, led, told)
        batches: list[Buffer] = []
        size_bytes, hot_bytes, next_offset = 0, 0, Offset(target.offset)
        missing: tuple[Place, ...] = ()
        last: Place | None = None
        parts = self._plan(led, next_offset, bytes_max)
        try:
            for at, part in enumerate(parts):
                if part.offset != next_offset or (batches and size_bytes >= bytes_max):
                    break  # the answer is full, or ends before a damaged batch
                bytes_left = bytes_max - size_bytes
                if isinstance(part, Gap):
                    if batches:
                        break  # an epoch ends in the gap, so that no batch covers it: the next answer passes it
                    next_offset = part.next_offset
                elif isinstance(part, FromCache):
                    hot = self._hot.read(log.partition, part.offset, bytes_max=bytes_left)
                    assert hot is not None, f"{log.partition}: the hot pool begins at or below {part.offset}, and has it not"
                    if batches and hot.batches[0].base_offset != next_offset:
                        break  # a row group ends within this batch: only the first of an answer may begin before its offset
                    for batch in hot.batches:
                        batches += (batch.stamp, batch.rest)
                        size_bytes += batch.size_bytes
                        hot_bytes += batch.size_bytes
                    next_offset = hot.next_offset
                elif (cold := reads.cold_at(part.place)) is not None:
                    buffers, behind = _read(cold, part.offset, bytes_left, log.high_watermark)
                    if batches and buffers and base_offset_of(buffers[0]) != next_offset:
                        break  # an epoch ends in a gap before it
                    next_offset = behind
                    batches += buffers
                    size_bytes += sum(map(len, buffers))
                    last = part.place
                    self._cold.taken(last, next_offset=next_offset)
                else:
                    missing = tuple(later.place for later in parts[at:] if isinstance(later, FromWal | FromParquet))
                    break
        except TidelogError:
            if not batches:
                raise
            # the reader meets the error again when it comes for the rest
        return _Look(target, led, _fetched(led, batches, size_bytes, next_offset), missing, last, hot_bytes)

    def _located(self, led: LeaderPartition, target: FetchTarget, bytes_max: int) -> FetchResult | None:
        """Where it lies on the bucket, whatever is in memory here; None where that is not worth it."""
        parts = self._plan(led, Offset(target.offset), bytes_max, from_bucket=True)
        found = located(parts, led.history, part_bytes_min=target.places_bytes_min or 0)
        if found is None:
            return None
        places, extent = found
        next_offset = Offset(min(extent.next_offset, led.log.high_watermark))
        return _fetched(led, [], min(extent.size_bytes, max(1, bytes_max)), next_offset)._replace(located=places)

    def _plan(self, led: LeaderPartition, offset: Offset, bytes_max: int, *, from_bucket: bool = False) -> list[FetchPart]:
        return plan_fetch(
            offset,
            high_watermark=led.log.high_watermark,
            hot_start_offset=None if from_bucket else self._hot.start_offset(led.log.partition),
            runs=led.runs,
            history=led.history,
            bytes_max=bytes_max,
        )

    def _on_gone(self, led: LeaderPartition) -> OnGone | None:
        return None if self._adopt_newest is None else partial(self._adopt_newest, led.log.partition)

    def _count(self, looks: Sequence[_Look | TidelogError]) -> None:
        for look in looks:
            if isinstance(look, _Look) and look.fetched.size_bytes and look.fetched.located is None:
                self._counters.hot_bytes += look.hot_bytes
                self._counters.cold_bytes += look.fetched.size_bytes - look.hot_bytes

    # ── reading ahead ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_ahead(self, looks: Sequence[_Look | TidelogError]) -> None:
        """Begins to read what those come to next who read on where an answer ended, and remembers where these answers end."""
        for look in looks:
            if isinstance(look, TidelogError) or look.last is None or not look.fetched.size_bytes:
                continue
            partition, next_offset = look.target.partition, look.fetched.next_offset
            if (partition, look.target.offset) in self._read_to:
                behind = Offset(max(next_offset, look.last.last_offset + 1))
                with suppress(TidelogError):  # it is for who comes there
                    self._begin_behind(look.led, behind, look.target.bytes_max)
            self._read_to[partition, next_offset] = None
            self._read_to.move_to_end((partition, next_offset))
            if len(self._read_to) > READERS_MAX:
                self._read_to.popitem(last=False)

    def _begin_behind(self, led: LeaderPartition, offset: Offset, bytes_max: int) -> None:
        """Has read what lies from `offset` on; of Parquet one group more, whose bytes arrive while the one before it is decoded."""
        last: Place | None = None
        for part in self._plan(led, offset, bytes_max):
            if isinstance(part, FromWal | FromParquet):
                last = part.place
                self._cold.read_ahead(last, on_gone=self._on_gone(led))
        if isinstance(last, GroupPlace):
            for part in self._plan(led, Offset(last.last_offset + 1), 1):
                if isinstance(part, FromParquet):
                    self._cold.read_ahead(part.place, on_gone=self._on_gone(led))


class _Look(NamedTuple):
    """What is in memory for one target."""

    target: FetchTarget
    led: LeaderPartition
    fetched: FetchResult
    # What is to be read from the bucket, from where `fetched` ends on. Some of it behind the first may be in memory.
    missing: tuple[Place, ...] = ()
    # That was read from, of what lies on the bucket.
    last: Place | None = None
    # Of the answer, from the newest batches.
    hot_bytes: int = 0


def _read(cold: Cold, offset: Offset, bytes_max: int, high_watermark: Offset) -> tuple[Sequence[Buffer], Offset]:
    """Batches from `offset` on, and the offset behind them."""
    if isinstance(cold, CachedRowGroup):
        return cold.read(offset, bytes_max=bytes_max, high_watermark=high_watermark)
    body, next_offset = cold.read(offset, bytes_max=bytes_max)
    return (body,), next_offset


def _fetched(led: LeaderPartition, batches: list[Buffer], size_bytes: int, next_offset: Offset) -> FetchResult:
    log = led.log
    return FetchResult(
        batches,
        size_bytes,
        next_offset,
        log.high_watermark,
        log.log_start_offset,
        log.leader_epoch,
        committed_at_s=led.committed_at_s,
    )


def _is_complete(look: _Look, reads: FetchReads) -> bool:
    """Whether no read is under way that would add to it."""
    return not look.missing or not reads.is_reading(look.missing[0])


def _is_enough(looks: Sequence[_Look | TidelogError], reads: FetchReads, bytes_min: int) -> bool:
    """Whether to answer before the deadline. A target whose history is still read counts when it is complete."""
    bytes_there = 0
    for look in looks:
        if isinstance(look, TidelogError):
            return True
        if not look.fetched.size_bytes or not _is_complete(look, reads):
            continue
        if look.fetched.more:
            return True
        bytes_there += look.fetched.size_bytes
    return bytes_there >= max(1, bytes_min)


def _may_come(looks: Sequence[_Look | TidelogError], reads: FetchReads) -> bool:
    """Whether there is no answer yet, while reads from the bucket are under way that will make one."""
    return reads.in_flight and not any(
        isinstance(look, _Look) and look.fetched.size_bytes and _is_complete(look, reads) for look in looks
    )
