"""Reads committed records of the partitions led here: from the hot pool, or from segments on the bucket.

    look at all partitions, in memory only ─▶ enough? ─▶ answer; what is still read from the bucket comes with the next fetch
              ▲                                 └ no: wait for a commit, for a read to arrive, or for the deadline ─┐
              └──────────────────────────────────────────────────────────────────────────────────────────────────┘

So a slow read of one partition's history never holds up the tail of the others. A thin shell round fetch_plan.py and cold_run.py.
Invariants: nothing at or above the high watermark is ever answered; a partition that was left out of an answer because its history
was still being read gets it, or the error of that read, from the first fetch after the read has ended that has room for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.errors import InvalidArgument, InvalidRecord, OutOfRange, TidelogError
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.cold_pool import THREAD_BYTES, ColdPool
from segments.cold_reads import ColdReads
from segments.cold_run import ColdRun
from segments.fetch_plan import FromCache, FromWal, plan_fetch
from segments.hot_pool import HotPool
from segments.object_store import Buffer
from segments.partition_log import PartitionLog, check_epoch
from segments.record_batch import parse_header
from segments.record_columns import iterate_records
from segments.run_index import EpochEnd, RunIndex, RunPlace


class FetchTarget(NamedTuple):
    partition: TopicPartition
    offset: int
    bytes_max: int
    current_leader_epoch: int | None = None
    """That the reader knows: a leader of another epoch refuses to answer. None: whoever leads."""


class Fetched(NamedTuple):
    batches: list[Buffer]
    """Whole record batches when joined. The first may begin before the asked offset: skip to it."""
    size_bytes: int
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    leader_epoch: LeaderEpoch
    """Of the leader that answered."""

    @property
    def more(self) -> bool:
        """Whether committed records follow that this answer had no room for, or that were still read from the bucket."""
        return self.next_offset < self.high_watermark


class TimestampedOffset(NamedTuple):
    offset: Offset
    timestamp_ms: int


class Explanation(NamedTuple):
    """Where one record lies: bytes [range_start, range_end) of the object are the batch that holds it."""

    object_key: str
    range_start: int
    range_end: int
    base_offset: Offset
    last_offset: Offset
    leader_epoch: LeaderEpoch
    crc32c: int
    in_hot_pool: bool
    session: SessionId
    segment_seq: SegmentSeq


@dataclass(slots=True)
class LedPartition:
    """A partition that this session leads: its state, and where its committed runs lie."""

    log: PartitionLog
    runs: RunIndex

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Where the records of this epoch end, or of the largest below it that has any; of the present one, the high watermark.

        UnknownLeaderEpoch for one above the present: its leader knows, and it is not this one.
        """
        held = self.log.leader_epoch
        if leader_epoch > held:
            check_epoch(self.log.partition, held=held, current=leader_epoch)
        return EpochEnd(held, self.log.high_watermark) if leader_epoch == held else self.runs.end_of_epoch(leader_epoch)


class LogReader:
    def __init__(self, hot: HotPool, cold: ColdPool, *, decompressed_bytes_max: int) -> None:
        self._hot = hot
        self._cold = cold
        self._decompressed_bytes_max = decompressed_bytes_max

    async def fetch(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LedPartition],
        woken: asyncio.Event,
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
    ) -> list[Fetched | TidelogError]:
        """Batches of each target in turn, `bytes_max` bytes in all; the error of a target stands in its place.

        Answers as soon as there are `bytes_min` bytes, or more records than it may answer with, or an error; at the latest after
        `wait_ms_max`, but not before a read of history that is all there is to answer with. The first target that has records
        in memory gets at least one batch, however large.

        `led_at` is asked at each look; `woken` is set by the caller when something was committed.
        """
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + (wait_ms_max / 1000 if bytes_min > 0 else 0)
        with ColdReads(self._cold, bytes_max=bytes_max, woken=woken) as reads:
            while True:
                woken.clear()
                looks = self._look_at_all(targets, led_at, bytes_max, reads)
                is_late = deadline_s <= clock.time()
                is_answer = _is_enough(looks, reads, bytes_min) or (is_late and not _may_come(looks, reads))
                if is_answer and not reads.owes and not woken.is_set():
                    return [look.fetched if isinstance(look, _Look) else look for look in looks]
                reads.wait_for({look.missing[0] for look in looks if isinstance(look, _Look) and look.missing})
                try:
                    async with asyncio.timeout_at(None if is_late else deadline_s):
                        await woken.wait()
                except TimeoutError:
                    continue  # one more look, and what is there is the answer

    def _look_at_all(
        self,
        targets: Sequence[FetchTarget],
        led_at: Callable[[TopicPartition], LedPartition],
        bytes_max: int,
        reads: ColdReads,
    ) -> list[_Look | TidelogError]:
        """What is in memory for each target. Has read what is not: the next run of each in turn, then those behind."""
        looks: list[_Look | TidelogError] = []
        bytes_left, is_first = bytes_max, True
        for target in targets:
            try:
                led = led_at(target.partition)
                led.log.check_epoch(target.current_leader_epoch)
                if bytes_left > 0 or is_first:
                    look = self._look(led, target.offset, min(bytes_left, target.bytes_max), reads)
                else:
                    led.log.check_readable(target.offset)
                    look = _Look(_fetched(led, [], 0, Offset(target.offset)), ())
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
                    reads.begin(look.missing[turn], is_next=turn == 0 and not look.fetched.size_bytes)
        return looks

    def _look(self, led: LedPartition, offset: int, bytes_max: int, reads: ColdReads) -> _Look:
        """What is in memory from `offset` on.

        Raises OutOfRange; Corrupt and Unavailable only when not even the first batch can be read: what can is answered first.
        """
        log = led.log
        log.check_readable(offset)
        parts = plan_fetch(
            offset,
            high_watermark=log.high_watermark,
            hot_start_offset=self._hot.start_offset(log.partition),
            runs=led.runs,
            bytes_max=bytes_max,
        )
        batches: list[Buffer] = []
        size_bytes, next_offset = 0, Offset(offset)
        try:
            for place, part in enumerate(parts):
                if part.offset != next_offset or (batches and size_bytes >= bytes_max):
                    break  # the answer is full, or ends before a damaged batch
                if isinstance(part, FromCache):
                    hot = self._hot.read(log.partition, part.offset, bytes_max=bytes_max - size_bytes)
                    assert hot is not None, f"{log.partition}: the hot pool begins at or below {part.offset}, and has it not"
                    for batch in hot.batches:
                        batches += (batch.stamp, batch.rest)
                        size_bytes += batch.size_bytes
                    next_offset = hot.next_offset
                    continue
                run = reads.run_at(part.place)
                if run is None:
                    missing = tuple(later.place for later in parts[place:] if isinstance(later, FromWal))
                    return _Look(_fetched(led, batches, size_bytes, next_offset), missing)
                body, next_offset = run.read(part.offset, bytes_max=bytes_max - size_bytes)
                batches.append(body)
                size_bytes += len(body)
        except TidelogError:
            if not batches:
                raise
            # the reader meets the error again when it comes for the rest
        return _Look(_fetched(led, batches, size_bytes, next_offset), ())

    async def first_at(self, led: LedPartition, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record, in offset order, whose timestamp is at or after `timestamp_ms`; None when there is none.

        Raises Corrupt when a damaged batch may hold it.
        """
        log_start_offset = led.log.log_start_offset
        for place in led.runs.from_timestamp(timestamp_ms):
            if place.last_offset < log_start_offset:
                continue
            run = await self._cold.run_at(place)
            if len(run.body) <= THREAD_BYTES:
                found = self._first_in(run, log_start_offset, timestamp_ms)
            else:
                found = await asyncio.to_thread(self._first_in, run, log_start_offset, timestamp_ms)
            if found is not None:
                return found
        return None

    def _first_in(self, run: ColdRun, log_start_offset: Offset, timestamp_ms: int) -> TimestampedOffset | None:
        for index in range(len(run.base_offsets)):
            if run.max_timestamp(index) < timestamp_ms or run.last_offset(index) < log_start_offset:
                continue
            for offset, record_ms, _, _, _ in self._records(run, index):
                if record_ms >= timestamp_ms and offset >= log_start_offset:
                    return TimestampedOffset(Offset(offset), record_ms)
        return None

    async def explain(self, led: LedPartition, offset: int) -> Explanation:
        """Raises OutOfRange unless a record has this offset; Corrupt and Unavailable where it can't be read."""
        log = led.log
        first, end = log.log_start_offset, log.high_watermark
        place = led.runs.find(offset) if first <= offset < end else None
        if place is None:
            raise OutOfRange(
                f"no record of {log.partition} has offset {offset}",
                hint=f"Its records have the offsets {first} to {end - 1}." if first < end else "It holds no record at the moment.",
                log_start_offset=first,
                high_watermark=end,
            )
        run = await self._cold.run_at(place)
        index = run.index_of(offset)
        header = parse_header(run.batch(index))
        start = place.start + run.starts[index]
        hot_start = self._hot.start_offset(log.partition)
        return Explanation(
            object_key=place.key,
            range_start=start,
            range_end=start + header.size,
            base_offset=Offset(header.base_offset),
            last_offset=Offset(header.base_offset + header.last_offset_delta),
            leader_epoch=LeaderEpoch(header.leader_epoch),
            crc32c=header.crc,
            in_hot_pool=hot_start is not None and offset >= hot_start,
            session=place.session,
            segment_seq=place.seq,
        )

    def _records(self, run: ColdRun, index: int) -> list[tuple[int, int, object, object, object]]:
        batch = run.batch(index)
        try:
            return iterate_records(batch, decompressed_bytes_max=self._decompressed_bytes_max)  # type: ignore[return-value]
        except (InvalidRecord, InvalidArgument) as error:
            raise run.corrupt(index, error.message) from error


class _Look(NamedTuple):
    """What is in memory for one target."""

    fetched: Fetched
    missing: tuple[RunPlace, ...]
    """The runs to read from the bucket, from where `fetched` ends on. Some of those behind the first may be in memory."""


def _fetched(led: LedPartition, batches: list[Buffer], size_bytes: int, next_offset: Offset) -> Fetched:
    log = led.log
    return Fetched(batches, size_bytes, next_offset, log.high_watermark, log.log_start_offset, log.leader_epoch)


def _is_complete(look: _Look, reads: ColdReads) -> bool:
    """Whether no read is under way that would add to it."""
    return not look.missing or not reads.is_reading(look.missing[0])


def _is_enough(looks: Sequence[_Look | TidelogError], reads: ColdReads, bytes_min: int) -> bool:
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


def _may_come(looks: Sequence[_Look | TidelogError], reads: ColdReads) -> bool:
    """Whether there is no answer yet, while reads from the bucket are under way that will make one."""
    return reads.in_flight and not any(
        isinstance(look, _Look) and look.fetched.size_bytes and _is_complete(look, reads) for look in looks
    )
