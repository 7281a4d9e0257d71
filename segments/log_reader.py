"""Reads committed records of the partitions led here: from the hot pool, or from segments on the bucket.

A thin shell round fetch_plan.py. Invariant: nothing at or above the high watermark is ever answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from metadata.errors import Corrupt, InvalidArgument, InvalidRecord, OutOfRange, TidelogError
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.cold_pool import ColdPool
from segments.fetch_plan import FromCache, plan_fetch
from segments.hot_pool import HotPool
from segments.object_store import Buffer
from segments.partition_log import PartitionLog
from segments.record_batch import parse_header, split_batches
from segments.record_columns import iterate_records
from segments.run_index import RunIndex, RunPlace


class Fetched(NamedTuple):
    batches: list[Buffer]
    """Whole record batches when joined. The first may begin before the asked offset: skip to it."""
    size_bytes: int
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset

    @property
    def more(self) -> bool:
        """Whether committed records follow that this answer had no room for."""
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


class LogReader:
    def __init__(self, hot: HotPool, cold: ColdPool, *, decompressed_bytes_max: int) -> None:
        self._hot = hot
        self._cold = cold
        self._decompressed_bytes_max = decompressed_bytes_max

    async def read(self, led: LedPartition, offset: int, *, bytes_max: int) -> Fetched:
        """The batches from `offset` on, up to about `bytes_max` bytes but at least one; none at the high watermark.

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
        for part in parts:
            bytes_left = bytes_max - size_bytes
            if isinstance(part, FromCache):
                hot = self._hot.read(log.partition, part.offset, bytes_max=bytes_left)
                if hot is None:
                    break  # evicted while an earlier part was read: the reader comes again
                for batch in hot.batches:
                    batches += (batch.stamp, batch.rest)
                    size_bytes += batch.size_bytes
                next_offset = hot.next_offset
            else:
                try:
                    run = await self._cold.run_at(part.place)
                except TidelogError:
                    if batches:
                        break  # the reader meets the error again when it comes for the rest
                    raise
                body = run.read(part.offset, bytes_max=bytes_left)
                batches.append(body)
                size_bytes += len(body)
                next_offset = run.next_offset(after_bytes=body, place=part.place, offset=part.offset)
        return Fetched(batches, size_bytes, next_offset, log.high_watermark, log.log_start_offset)

    async def first_at(self, led: LedPartition, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record, in offset order, whose timestamp is at or after `timestamp_ms`; None when there is none."""
        for place in led.runs.from_timestamp(timestamp_ms):
            if place.last_offset < led.log.log_start_offset:
                continue
            for batch in split_batches((await self._cold.run_at(place)).body):
                if parse_header(batch).max_timestamp < timestamp_ms:
                    continue
                for offset, record_ms, _, _, _ in self._records(batch, place):
                    if record_ms >= timestamp_ms and offset >= led.log.log_start_offset:
                        return TimestampedOffset(Offset(offset), record_ms)
        return None

    async def explain(self, led: LedPartition, offset: int) -> Explanation:
        log = led.log
        log.check_readable(offset)
        place = led.runs.find(offset)
        if place is None:
            raise OutOfRange(
                f"no record has offset {offset} yet: {log.partition} ends at {log.high_watermark}",
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
            )
        run = await self._cold.run_at(place)
        body = run.read(offset, bytes_max=1)
        header = parse_header(body)
        start = place.start + run.starts[run.base_offsets.index(Offset(header.base_offset))]
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

    def _records(self, batch: memoryview, place: RunPlace) -> list[tuple[int, int, object, object, object]]:
        try:
            return iterate_records(batch, decompressed_bytes_max=self._decompressed_bytes_max)  # type: ignore[return-value]
        except (InvalidRecord, InvalidArgument) as error:
            raise Corrupt(f"{place.key}: {error}", key=place.key, start=place.start, end=place.end) from error
