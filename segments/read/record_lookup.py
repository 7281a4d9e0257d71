"""Finds single records: the first at or after a time, the one with the largest timestamp, and where the record of an offset lies.

All read a run or a row group as a whole, through the read cache. Invariant: what is found lies below the high watermark, and not
below the log start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import NamedTuple, TypeVar

from metadata.errors import Corrupt, InvalidArgument, InvalidRecord, NotFound, OutOfRange
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId, TopicPartition
from segments.history.index import RowGroupLocation
from segments.partition.leader_partitions import LeaderPartition
from segments.read.cached_run import CachedRun
from segments.read.read_cache import CachedBlock, Location, ReadCache
from segments.read.run_loader import THREAD_BYTES
from segments.read.tail_cache import TailCache
from segments.records.batch import parse_header
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import iterate_records

Found = TypeVar("Found")
# Reads the newest manifest of a partition, and leads it by that: what is gone from the bucket may lie elsewhere by now.
AdoptNewest = Callable[[TopicPartition], Awaitable[object]]


class TimestampedOffset(NamedTuple):
    """Names a record by its offset and timestamp."""

    offset: Offset
    timestamp_ms: int


class FoundRecord(NamedTuple):
    """Names a record by its offset, its timestamp, and the epoch of the leader that wrote it."""

    offset: Offset
    timestamp_ms: int
    # NO_EPOCH where it is not known.
    leader_epoch: LeaderEpoch


class Explanation(NamedTuple):
    """Locates one record: bytes [range_start, range_end) of the object are the batch, or the row group, that holds it."""

    object_key: str
    range_start: int
    range_end: int
    base_offset: Offset
    last_offset: Offset
    leader_epoch: LeaderEpoch
    # CRC-32C of the batch, by its header; of the row group's bytes, by the manifest.
    crc32c: int
    in_tail_cache: bool
    session: SessionId | None = None
    # Both of a record in a segment.
    segment_seq: SegmentSeq | None = None
    row_group: int | None = None
    # Both of a record in Parquet: the row group's number in the file, and the sum over the file's records.
    file_checksum: str | None = None

    @property
    def tier(self) -> str:
        return "segment" if self.row_group is None else "parquet"


class RecordLookup:
    """Finds single records by offset or timestamp."""

    def __init__(
        self, tail_cache: TailCache, read_cache: ReadCache, adopt_newest: AdoptNewest | None, *, decompressed_bytes_max: int
    ) -> None:
        self._tail_cache = tail_cache
        self._read_cache = read_cache
        self._adopt_newest = adopt_newest
        self._decompressed_bytes_max = decompressed_bytes_max

    async def first_at(self, led: LeaderPartition, timestamp_ms: int) -> TimestampedOffset | None:
        """Returns the first record in offset order with a timestamp at or after `timestamp_ms`; None if there is none.

        Raises Corrupt if a damaged batch may hold it.
        """
        return await self._planned(led, partial(self._first_at, led, timestamp_ms))

    async def latest(self, led: LeaderPartition) -> TimestampedOffset | None:
        """Returns the record with the largest timestamp, of several the first. None where no record has a timestamp.

        Reads only what can hold it by the statistics of runs, files and row groups: mostly one run or row group. Raises Corrupt
        when a damaged batch may hold it.
        """
        return await self._planned(led, partial(self._latest, led))

    async def explain(self, led: LeaderPartition, offset: int) -> Explanation:
        """Raises OutOfRange unless a record has this offset; Corrupt and Unavailable where it can't be read."""
        return await self._planned(led, partial(self._explain, led, offset))

    async def _planned(self, led: LeaderPartition, find: Callable[[], Awaitable[Found]]) -> Found:
        """Returns what `find` finds, and repeats it where an object was gone and another manifest is known."""
        while True:
            history = led.history
            try:
                return await find()
            except Corrupt as error:
                if not isinstance(error.__cause__, NotFound) or led.history is history:
                    raise

    async def _first_at(self, led: LeaderPartition, timestamp_ms: int) -> TimestampedOffset | None:
        log = led.log
        at = log.log_start_offset
        while (location := _next_from_timestamp(led, timestamp_ms, max(at, log.log_start_offset))) is not None:
            at = Offset(location.last_offset + 1)
            block = await self._read(led, location)
            bounds = log.log_start_offset, log.high_watermark
            if isinstance(block, CachedRun) and len(block.body) <= THREAD_BYTES:
                found = self._first_in(block, bounds, timestamp_ms)
            else:
                found = await asyncio.to_thread(self._first_in, block, bounds, timestamp_ms)
            if found is not None:
                return found
        return None

    def _first_in(self, block: CachedBlock, bounds: tuple[Offset, Offset], timestamp_ms: int) -> TimestampedOffset | None:
        first, end = bounds
        for index in range(block.batch_count):
            if block.max_timestamp(index) < timestamp_ms or block.last_offset(index) < first:
                continue
            for offset, record_ms, _, _, _ in self._records(block, index):
                if record_ms >= timestamp_ms and first <= offset < end:
                    return TimestampedOffset(Offset(offset), record_ms)
        return None

    async def _latest(self, led: LeaderPartition) -> TimestampedOffset | None:
        log = led.log
        while True:
            bounds = log.log_start_offset, log.high_watermark
            best: TimestampedOffset | None = None
            for location in _by_max_timestamp(led, *bounds):
                if not _may_be_later(location.max_timestamp, location.base_offset, best):
                    break
                block = await self._read(led, location)
                if isinstance(block, CachedRun) and len(block.body) <= THREAD_BYTES:
                    best = self._latest_in(block, bounds, best)
                else:
                    best = await asyncio.to_thread(self._latest_in, block, bounds, best)
            if best is None or best.offset >= log.log_start_offset:
                return best  # else it was deleted meanwhile

    def _latest_in(
        self, block: CachedBlock, bounds: tuple[Offset, Offset], best: TimestampedOffset | None
    ) -> TimestampedOffset | None:
        """Returns the record of `block` within the bounds that is later than `best`, or else `best`."""
        first, end = bounds
        for index in sorted(range(block.batch_count), key=lambda index: -block.max_timestamp(index)):
            behind = block.last_offset(index - 1) if index else block.location.base_offset - 1
            if not _may_be_later(block.max_timestamp(index), behind + 1, best):
                break
            if block.last_offset(index) < first:
                continue
            for offset, record_ms, _, _, _ in self._records(block, index):
                if first <= offset < end and _may_be_later(record_ms, offset, best):
                    best = TimestampedOffset(Offset(offset), record_ms)
        return best

    async def _explain(self, led: LeaderPartition, offset: int) -> Explanation:
        log, history = led.log, led.history
        if not log.log_start_offset <= offset < log.high_watermark:
            raise _no_record(led, offset)
        tail_start = self._tail_cache.start_offset(log.partition)
        in_tail_cache = tail_start is not None and offset >= tail_start
        if history is None or offset >= history.compacted_to:
            run = led.runs.find(offset)
            if run is None:
                raise _no_record(led, offset)
            block = await self._read_cache.run_at(run, on_gone=self._on_gone(led))
            index = block.index_of(offset)
            header = parse_header(block.batch(index))
            start = run.start + block.starts[index]
            return Explanation(
                object_key=run.key,
                range_start=start,
                range_end=start + header.size,
                base_offset=Offset(header.base_offset),
                last_offset=Offset(header.last_offset),
                leader_epoch=LeaderEpoch(header.leader_epoch),
                crc32c=header.crc,
                in_tail_cache=in_tail_cache,
                session=run.session,
                segment_seq=run.seq,
            )
        location = history.find(offset)
        if location is None or offset < location.base_offset or not await self._holds(led, location, offset):
            raise _no_record(led, offset)
        return Explanation(
            object_key=location.key,
            range_start=location.start,
            range_end=location.end,
            base_offset=location.base_offset,
            last_offset=location.last_offset,
            leader_epoch=history.epoch_at(offset),
            crc32c=location.group.crc32c,
            in_tail_cache=in_tail_cache,
            row_group=location.number,
            file_checksum=location.file.checksum,
        )

    async def _holds(self, led: LeaderPartition, location: RowGroupLocation, offset: int) -> bool:
        """Returns whether the group has a record of this offset: key compaction may have removed it."""
        group = await self._read(led, location)
        index = group.index_of(offset)
        records = await asyncio.to_thread(self._records, group, index)
        return any(record[0] == offset for record in records)

    async def _read(self, led: LeaderPartition, location: Location) -> CachedBlock:
        return await self._read_cache.read_whole(location, on_gone=self._on_gone(led))

    def _on_gone(self, led: LeaderPartition) -> Callable[[], Awaitable[object]] | None:
        return None if self._adopt_newest is None else partial(self._adopt_newest, led.log.partition)

    def _records(self, block: CachedBlock, index: int) -> list[RecordTuple]:
        batch = block.batch(index)
        try:
            return iterate_records(batch, decompressed_bytes_max=self._decompressed_bytes_max)
        except (InvalidRecord, InvalidArgument) as error:
            raise block.corrupt(index, error.message) from error


def _next_from_timestamp(led: LeaderPartition, timestamp_ms: int, offset: Offset) -> Location | None:
    """Returns the next place from `offset` on that holds a record at or after this time.

    Ask again after each read: runs may have been compacted meanwhile.
    """
    runs = led.runs.from_timestamp(timestamp_ms, from_offset=offset)
    groups = led.history.from_timestamp(timestamp_ms, from_offset=offset) if led.history is not None else iter(())
    return next(chain[Location](groups, runs), None)


def _by_max_timestamp(led: LeaderPartition, start_offset: Offset, end_offset: Offset) -> Iterator[Location]:
    """Yields what holds records in [start_offset, end_offset): the largest `max_timestamp` first, of equal ones in offset order.

    Row groups of a file are looked at only when its turn comes.
    """
    history = led.history
    in_segments = start_offset if history is None else max(start_offset, history.compacted_to)
    heap: list[tuple[int, int, int, Location | None]] = [
        (-run.max_timestamp, run.base_offset, -1, run) for run in led.runs.between(in_segments, end_offset)
    ]
    if history is not None:
        heap += [(-file.max_timestamp, file.base_offset, at, None) for at, file in history.files_from(start_offset)]
    heapify(heap)
    while heap:
        _, _, at, location = heappop(heap)
        if location is not None:
            yield location
        elif history is not None:
            for group in history.groups_in(at):
                if group.last_offset >= start_offset and group.base_offset < end_offset:
                    heappush(heap, (-group.max_timestamp, group.base_offset, -1, group))


def _may_be_later(timestamp_ms: int, offset: int, best: TimestampedOffset | None) -> bool:
    """Returns whether a record of this timestamp, at this offset or behind it, may replace `best`. Negative timestamps never do."""
    if timestamp_ms < 0:
        return False
    return best is None or timestamp_ms > best.timestamp_ms or (timestamp_ms == best.timestamp_ms and offset < best.offset)


def _no_record(led: LeaderPartition, offset: int) -> OutOfRange:
    first, end = led.log.log_start_offset, led.log.high_watermark
    within = "The record with this offset was removed by key compaction." if first <= offset < end else ""
    bounds = f"Its records have the offsets {first} to {end - 1}." if first < end else "It holds no record at the moment."
    return OutOfRange(
        f"no record of {led.log.partition} has offset {offset}",
        hint=within or bounds,
        log_start_offset=first,
        high_watermark=end,
    )
