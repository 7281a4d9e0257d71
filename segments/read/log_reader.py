"""Reads committed records of partitions that this broker leads: from the tail cache, or from segments or Parquet files.

    check all partitions, in memory only ─▶ enough? ─▶ answer; records that are still being read come with the next fetch
                                              └ no: wait for news, for a read to arrive, or for the deadline ─┐
                 ▲                                                                                            │
                 └─ check again those with news, and those that were not at their end (due_lookups.py) ◀──────┘

So a slow read of one partition's history never delays the newest records of others. fetch_plan.py decides what to read;
cached_run.py and cached_row_group.py hold what was read. If an object is missing, the reader first loads the newest manifest, since
compaction may have moved its records. A reader that continues where the last answer ended counts as sequential: the next two row
groups, or as many runs as it asked for, are read ahead if no other reader waits for the memory.

Invariants: no answer has records at or above the high watermark. A partition that was left out of an answer because its history was
still being read gets its records, or the error of that read, in the first later fetch that has bytes left for it.
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
from segments.history.index import RowGroupLocation
from segments.object_store.interface import Buffer
from segments.partition.leader_partitions import LeaderPartition
from segments.partition.partition_log import NO_EPOCH
from segments.read.cached_row_group import CachedRowGroup
from segments.read.due_lookups import DueLookups
from segments.read.fetch_plan import FetchPart, FromCache, FromParquet, FromWal, Gap, plan_fetch
from segments.read.fetch_reads import FetchReads
from segments.read.read_cache import CachedBlock, Location, OnGone, ReadCache
from segments.read.reader_notifier import News
from segments.read.record_locations import RecordLocations, located
from segments.read.record_lookup import AdoptNewest
from segments.read.tail_cache import TailCache
from segments.records.batch import base_offset_of, empty_batch


class FetchTarget(NamedTuple):
    """One partition of a fetch: where to read, and how much."""

    partition: TopicPartition
    offset: int
    bytes_max: int
    # The leader epoch that the reader knows; a leader of another epoch refuses to answer. None: any epoch.
    current_leader_epoch: int | None = None
    # Set by a broker that reads from the bucket itself: the answer has the locations of the records, if the parts have this many
    # bytes on average. None: the answer has the records.
    locations_bytes_min: int | None = None


class FetchResult(NamedTuple):
    """Holds the records of one partition, or their locations, with the offsets of its log."""

    # Whole record batches when joined. Each begins where the one before ends, and the last one ends at `next_offset`. The first
    # may begin before the wanted offset, with records to skip, or behind it, after a gap. An answer without batches whose
    # `next_offset` is behind the wanted offset passes a gap that has no records, now or later.
    batches: list[Buffer]
    size_bytes: int
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    # The epoch of the leader that answered.
    leader_epoch: LeaderEpoch
    # The locations of the records, in place of `batches`; `size_bytes` is then an estimate.
    located: RecordLocations | None = None
    # When the newest records of the partition were committed, on the loop's clock: 0 if an earlier leader committed them, None
    # if another broker has answered.
    committed_at_s: float | None = 0.0

    @property
    def more(self) -> bool:
        """Returns True if committed records follow that did not fit, or that are still being read from the bucket."""
        return self.next_offset < self.high_watermark

    def passes_gap(self, offset: int) -> bool:
        """Returns whether the answer to a fetch from `offset` on only passes a gap of removed records."""
        return not self.size_bytes and self.next_offset > offset

    def batches_from(self, offset: int) -> list[Buffer]:
        """Returns the batches for a Kafka client that fetched from `offset` on: an empty batch if the answer only passes a gap.

        Such a client advances by batches, since Kafka's protocol has no `next_offset`.
        """
        return [empty_batch(offset, self.next_offset)] if self.passes_gap(offset) else self.batches


# Stands for an answer before the first check.
_UNREAD: Final = FetchResult([], 0, Offset(0), Offset(0), Offset(0), NO_EPOCH)
# Ends of answers that are remembered to recognise sequential readers.
READERS_MAX: Final = 10_000


class LogReader:
    """Serves fetches of the partitions of one session from memory, and reads the missing blocks from the bucket."""

    def __init__(
        self,
        tail_cache: TailCache,
        read_cache: ReadCache,
        *,
        adopt_newest: AdoptNewest | None = None,
        counters: LogCounters | None = None,
    ) -> None:
        self._counters = counters or LogCounters()
        self._tail_cache = tail_cache
        self._read_cache = read_cache
        self._adopt_newest = adopt_newest
        # Offsets at which answers from the bucket ended, the newest last.
        self._read_to: OrderedDict[tuple[TopicPartition, int], None] = OrderedDict()

    async def fetch(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LeaderPartition],
        news: News,
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
    ) -> list[FetchResult | TidelogError]:
        """Returns the batches of each target in order, `bytes_max` bytes in all. A target that fails has its error in its place.

        Returns as soon as there are `bytes_min` bytes, more records than fit, or an error; at the latest after `wait_ms_max`,
        unless the only records are still being read from the bucket. The first target with records in memory gets at least one
        batch, however large. A gap up to the high watermark (key compaction) counts as no records, but `next_offset` passes it.

        Each check calls `led_at` again. If the caller adds all `news` of the targets, only targets with news, and those that were
        not at their end, are checked again; else all are.
        """
        clock = asyncio.get_running_loop()
        began_s = clock.time()
        deadline_s = began_s + (wait_ms_max / 1000 if bytes_min > 0 else 0)
        answers: list[FetchResult | TidelogError] = [_UNREAD] * len(targets)
        due = DueLookups(range(len(targets)))
        indexes: dict[TopicPartition, list[int]] = {}
        woken = news.woken
        with FetchReads(self._read_cache, bytes_max=bytes_max, woken=woken) as reads:
            while True:
                woken.clear()
                if not news.is_watched:
                    due.mark_all()
                for partition in news.take():
                    for index in indexes.get(partition, ()):
                        due.mark(index)
                taken = due.take()
                lookups = self._look_up_all([targets[index] for index in taken], led_at, bytes_max, reads)
                for index, lookup in zip(taken, lookups, strict=True):
                    answers[index] = lookup.fetched if isinstance(lookup, _Lookup) else lookup
                    if not isinstance(lookup, _Lookup) or lookup.target.offset != lookup.fetched.high_watermark:
                        due.mark(index)
                is_late = deadline_s <= clock.time()
                is_answer = _is_enough(lookups, reads, bytes_min) or (is_late and not _may_come(lookups, reads))
                if is_answer and not reads.owes and not woken.is_set():
                    self._read_ahead(lookups)
                    if bytes_max > 1:  # else the caller only asks whether there are records
                        self._count(lookups)
                    if wait_ms_max:
                        self._note_delivery(lookups, began_s=began_s, now_s=clock.time())
                    return answers
                if not indexes and news.is_watched:
                    for index, target in enumerate(targets):
                        indexes.setdefault(target.partition, []).append(index)
                reads.wait_for(lookup.missing[0] for lookup in lookups if isinstance(lookup, _Lookup) and lookup.missing)
                try:
                    async with asyncio.timeout_at(None if is_late else deadline_s):
                        await woken.wait()
                except TimeoutError:
                    continue  # one more check, whose result is the answer

    def _look_up_all(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LeaderPartition],
        bytes_max: int,
        reads: FetchReads,
    ) -> list[_Lookup | TidelogError]:
        """Returns the records in memory for each target.

        Begins to read the missing blocks: the next of each target, then later ones.
        """
        lookups: list[_Lookup | TidelogError] = []
        bytes_left, is_first = bytes_max, True
        for target in targets:
            try:
                led = led_at(target.partition)
                led.log.check_epoch(target.current_leader_epoch)
                if bytes_left > 0 or is_first:
                    lookup = self._look_up(led, target, min(bytes_left, target.bytes_max), reads)
                else:
                    led.log.check_readable(target.offset)
                    lookup = _Lookup(target, led, _fetched(led, [], 0, Offset(target.offset)))
            except TidelogError as error:
                lookups.append(error.with_traceback(None))  # its frames would keep everything here in memory
                continue
            bytes_left -= lookup.fetched.size_bytes
            is_first = is_first and not lookup.fetched.size_bytes
            lookups.append(lookup)
        waiting = [lookup for lookup in lookups if isinstance(lookup, _Lookup) and lookup.missing]
        for turn in range(max((len(lookup.missing) for lookup in waiting), default=0)):
            for lookup in waiting:
                if reads.is_full:
                    return lookups
                if turn < len(lookup.missing):
                    is_next = turn == 0 and not lookup.fetched.size_bytes
                    reads.begin(lookup.missing[turn], is_next=is_next, on_gone=self._on_gone(lookup.led))
        return lookups

    def _look_up(self, led: LeaderPartition, target: FetchTarget, bytes_max: int, reads: FetchReads) -> _Lookup:
        """Returns the records in memory from the target's offset on, and the missing blocks.

        Raises OutOfRange. Raises Corrupt or Unavailable only if not even the first batch can be read.
        """
        log = led.log
        log.check_readable(target.offset)
        if target.locations_bytes_min is not None and (locations := self._located(led, target, bytes_max)) is not None:
            return _Lookup(target, led, locations)
        batches: list[Buffer] = []
        size_bytes, hot_bytes, next_offset = 0, 0, Offset(target.offset)
        missing: tuple[Location, ...] = ()
        last: Location | None = None
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
                    tail = self._tail_cache.read(log.partition, part.offset, bytes_max=bytes_left)
                    assert tail is not None, f"{log.partition}: the tail cache begins at or below {part.offset}, and lacks it"
                    if batches and tail.base_offset != next_offset:
                        break  # a row group ends within this batch: only the first of an answer may begin before its offset
                    batches += tail.buffers
                    size_bytes += tail.size_bytes
                    hot_bytes += tail.size_bytes
                    next_offset = tail.next_offset
                elif (block := reads.block_at(part.location)) is not None:
                    buffers, behind = _read(block, part.offset, bytes_left, log.high_watermark)
                    if batches and buffers and base_offset_of(buffers[0]) != next_offset:
                        break  # an epoch ends in a gap before it
                    next_offset = behind
                    batches += buffers
                    size_bytes += sum(map(len, buffers))
                    last = part.location
                    self._read_cache.taken(last, next_offset=next_offset)
                else:
                    missing = tuple(later.location for later in parts[at:] if isinstance(later, FromWal | FromParquet))
                    break
        except TidelogError:
            if not batches:
                raise
            # the reader meets the error again when it comes for the rest
        return _Lookup(target, led, _fetched(led, batches, size_bytes, next_offset), missing, last, hot_bytes)

    def _located(self, led: LeaderPartition, target: FetchTarget, bytes_max: int) -> FetchResult | None:
        """Returns the locations of the records on the bucket, whatever is in memory; None if the parts are too small for that."""
        parts = self._plan(led, Offset(target.offset), bytes_max, from_bucket=True)
        found = located(parts, led.history, part_bytes_min=target.locations_bytes_min or 0)
        if found is None:
            return None
        locations, extent = found
        next_offset = Offset(min(extent.next_offset, led.log.high_watermark))
        return _fetched(led, [], min(extent.size_bytes, max(1, bytes_max)), next_offset)._replace(located=locations)

    def _plan(self, led: LeaderPartition, offset: Offset, bytes_max: int, *, from_bucket: bool = False) -> list[FetchPart]:
        return plan_fetch(
            offset,
            high_watermark=led.log.high_watermark,
            hot_start_offset=None if from_bucket else self._tail_cache.start_offset(led.log.partition),
            runs=led.runs,
            history=led.history,
            bytes_max=bytes_max,
        )

    def _on_gone(self, led: LeaderPartition) -> OnGone | None:
        return None if self._adopt_newest is None else partial(self._adopt_newest, led.log.partition)

    def _count(self, lookups: Sequence[_Lookup | TidelogError]) -> None:
        for lookup in lookups:
            if not isinstance(lookup, _Lookup) or not lookup.fetched.size_bytes:
                continue
            self._counters.topic_bytes_out[lookup.target.partition.topic_id] += lookup.fetched.size_bytes
            if lookup.fetched.located is None:
                self._counters.hot_bytes += lookup.hot_bytes
                self._counters.cold_bytes += lookup.fetched.size_bytes - lookup.hot_bytes

    def _note_delivery(self, lookups: Sequence[_Lookup | TidelogError], *, began_s: float, now_s: float) -> None:
        """Measures how long records took from the producer to a reader that waited for them."""
        for lookup in lookups:
            if isinstance(lookup, _Lookup) and lookup.fetched.size_bytes and lookup.led.committed_at_s > began_s:
                self._counters.delivery_seconds.observe(now_s - lookup.led.taken_at_s)

    # ── reading ahead ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_ahead(self, lookups: Sequence[_Lookup | TidelogError]) -> None:
        """Begins to read the next blocks of sequential readers, and remembers where these answers end."""
        for lookup in lookups:
            if isinstance(lookup, TidelogError) or lookup.last is None or not lookup.fetched.size_bytes:
                continue
            partition, next_offset = lookup.target.partition, lookup.fetched.next_offset
            if (partition, lookup.target.offset) in self._read_to:
                behind = Offset(max(next_offset, lookup.last.last_offset + 1))
                with suppress(TidelogError):  # the reader meets the error when it gets there
                    self._begin_behind(lookup.led, behind, lookup.target.bytes_max)
            self._read_to[partition, next_offset] = None
            self._read_to.move_to_end((partition, next_offset))
            if len(self._read_to) > READERS_MAX:
                self._read_to.popitem(last=False)

    def _begin_behind(self, led: LeaderPartition, offset: Offset, bytes_max: int) -> None:
        """Begins to read the blocks from `offset` on, and one row group more, which arrives while the one before it is decoded."""
        last: Location | None = None
        for part in self._plan(led, offset, bytes_max):
            if isinstance(part, FromWal | FromParquet):
                last = part.location
                self._read_cache.read_ahead(last, on_gone=self._on_gone(led))
        if isinstance(last, RowGroupLocation):
            for part in self._plan(led, Offset(last.last_offset + 1), 1):
                if isinstance(part, FromParquet):
                    self._read_cache.read_ahead(part.location, on_gone=self._on_gone(led))


class _Lookup(NamedTuple):
    """The result of one lookup of a target: the records in memory, and the missing blocks."""

    target: FetchTarget
    led: LeaderPartition
    fetched: FetchResult
    # Blocks to read from the bucket, from the end of `fetched` on. Some of those behind the first may be in memory.
    missing: tuple[Location, ...] = ()
    # The last block of the bucket in the answer.
    last: Location | None = None
    # Bytes of the answer that came from the tail cache.
    hot_bytes: int = 0


def _read(block: CachedBlock, offset: Offset, bytes_max: int, high_watermark: Offset) -> tuple[Sequence[Buffer], Offset]:
    """Returns the batches from `offset` on, and the offset behind them."""
    if isinstance(block, CachedRowGroup):
        return block.read(offset, bytes_max=bytes_max, high_watermark=high_watermark)
    body, next_offset = block.read(offset, bytes_max=bytes_max)
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


def _is_complete(lookup: _Lookup, reads: FetchReads) -> bool:
    """Returns whether no read is in progress that would add records to this target."""
    return not lookup.missing or not reads.is_reading(lookup.missing[0])


def _is_enough(lookups: Sequence[_Lookup | TidelogError], reads: FetchReads, bytes_min: int) -> bool:
    """Returns whether to answer before the deadline. A target counts once no read in progress would add to it."""
    bytes_there = 0
    for lookup in lookups:
        if isinstance(lookup, TidelogError):
            return True
        if not lookup.fetched.size_bytes or not _is_complete(lookup, reads):
            continue
        if lookup.fetched.more:
            return True
        bytes_there += lookup.fetched.size_bytes
    return bytes_there >= max(1, bytes_min)


def _may_come(lookups: Sequence[_Lookup | TidelogError], reads: FetchReads) -> bool:
    """Returns whether no target has its records yet, while reads from the bucket are in progress that will bring some."""
    return reads.in_flight and not any(
        isinstance(lookup, _Lookup) and lookup.fetched.size_bytes and _is_complete(lookup, reads) for lookup in lookups
    )
