"""The read path of one session: answers readers from memory or from the bucket, and wakes those that wait for new records.

    fetch  ─▶ log_reader ─▶ tail cache | read cache ◀─ segments, and Parquet, on the bucket
      └ nothing new: waits until `committed` wakes it
    lookup: single records by time or offset      located: the same reads for partitions that others lead

Invariants: what a reader sees is committed. A reader receives a high watermark only after a check, made after its wait, that no
other broker may lead in this session's place. Waiters are woken in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from metadata.errors import NoLeader, TidelogError
from metadata.model import TopicPartition
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.object_store.interface import ObjectStore
from segments.partition.leader_partitions import LeaderPartitions
from segments.partition.partition_log import Bounds
from segments.read.disk_cache import DiskCache
from segments.read.follower_reader import FollowerReader
from segments.read.log_reader import FetchResult, FetchTarget, LogReader
from segments.read.read_cache import ReadCache
from segments.read.reader_notifier import News, ReaderNotifier
from segments.read.record_lookup import Explanation, FoundRecord, RecordLookup
from segments.read.tail_cache import TailCache
from segments.settings import SegmentSettings
from segments.wal.run_index import EpochEnd
from segments.wal.segment_file import StampedBatch

Read = TypeVar("Read")


class Spawn(Protocol):
    """Starts a read from the bucket, which ends with the session at the latest. Unavailable where that has ended."""

    def __call__(self, read: Coroutine[Any, Any, Read], /) -> asyncio.Task[Read]: ...


class ReadPath:
    """Serves the readers of one session."""

    def __init__(
        self,
        store: ObjectStore,
        partitions: LeaderPartitions,
        settings: SegmentSettings,
        *,
        spawn: Spawn,
        adopt_newest: Callable[[TopicPartition], Awaitable[bool]],
        verify_leadership: Callable[[], Awaitable[None]],
        counters: LogCounters,
        notifier: ReaderNotifier,
        disk: DiskCache | None = None,
    ) -> None:
        """`adopt_newest` is ManifestFollower's, `verify_leadership` LeadershipCheck.verify. `disk` keeps what was read from the
        bucket."""
        self._partitions = partitions
        self._verify_leadership = verify_leadership
        self._counters = counters
        # Wakes readers; it outlives nothing of this session's records, so that a client's session may refer to it.
        self.notifier = notifier
        self._tail_cache = TailCache(settings.tail_cache_bytes_max)
        self._read_cache = ReadCache(
            store,
            bytes_max=settings.read_cache_bytes_max,
            reads=ByteBudget(settings.history_read_bytes_max, of="reads from the bucket"),
            read_timeout_s=settings.put_deadline_ms / 1000,
            spawn=spawn,
            disk=disk,
            counters=counters,
        )
        self._reader = LogReader(self._tail_cache, self._read_cache, adopt_newest=adopt_newest, counters=counters)
        self._lookup = RecordLookup(
            self._tail_cache, self._read_cache, adopt_newest, decompressed_bytes_max=settings.decompressed_bytes_max
        )
        # Reads partitions that other brokers lead, by the record locations that their leaders have answered with.
        self.located = FollowerReader(store, self._read_cache, spawn=spawn, read_timeout_s=settings.put_deadline_ms / 1000)

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[FetchResult | TidelogError]:
        """Reads batches of each target in turn, `bytes_max` bytes in all; the error of a target stands in its place.

        What is in memory is answered first: a target whose history is still read from the bucket is left out when the others have
        `bytes_min` bytes, and found by the next fetch. Otherwise waits up to `wait_ms_max` for new records: see LogReader.fetch.
        """
        may_wait = bytes_min > 0 and wait_ms_max > 0
        with self.notifier.at(target.partition for target in targets) if may_wait else nullcontext(News()) as news:
            answers = await self._reader.fetch(
                targets, self._partitions.readable, news, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max
            )
        try:
            await self._verify_leadership()  # after the wait: the high watermark is true now, not as of its beginning
        except TidelogError as error:
            return [error.with_traceback(None)] * len(targets)
        return answers

    async def bounds_of(self, partitions: Iterable[TopicPartition]) -> list[Bounds | TidelogError]:
        """Returns the bounds of each partition for readers; the error of a partition stands in its place.

        Raises Unavailable, SessionFenced.
        """
        await self._verify_leadership()
        found: list[Bounds | TidelogError] = []
        for partition in partitions:
            try:
                led = self._partitions.readable(partition)
                found.append(led.log.bounds._replace(log_start_epoch=led.epoch_at(led.log.log_start_offset)))
            except TidelogError as error:
                found.append(error.with_traceback(None))
        return found

    def end_of_epoch(self, partition: TopicPartition, leader_epoch: int, *, current_leader_epoch: int | None = None) -> EpochEnd:
        """Returns LeaderPartition.end_of_epoch. `current_leader_epoch`: as in FetchTarget. The caller verified the leadership."""
        led = self._partitions.readable(partition)
        led.log.check_epoch(current_leader_epoch)
        return led.end_of_epoch(leader_epoch)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> FoundRecord | None:
        """Returns the first record at or after `timestamp_ms`, or None where there is none yet.

        None counts as little as a high watermark unless this broker still leads, so the leadership is verified first.
        """
        led = self._partitions.readable(partition)
        found = await self._lookup.first_at(led, timestamp_ms)
        if found is None:
            await self._verify_leadership()
            if self._partitions.readable(partition) is not led:
                raise NoLeader(f"this broker leads {partition} in another epoch now")
            return None
        return FoundRecord(*found, led.epoch_at(found.offset))

    async def offset_of_max_timestamp(self, partition: TopicPartition) -> FoundRecord | None:
        """Returns the record with the largest timestamp, or None where none has a timestamp. See RecordLookup.latest.

        Another leader may have committed a later one, so the leadership is verified before the answer.
        """
        led = self._partitions.readable(partition)
        found = await self._lookup.latest(led)
        await self._verify_leadership()
        if self._partitions.readable(partition) is not led:
            raise NoLeader(f"this broker leads {partition} in another epoch now")
        return None if found is None else FoundRecord(*found, led.epoch_at(found.offset))

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        """Explains a record as RecordLookup.explain does."""
        return await self._lookup.explain(self._partitions.at(partition), offset)

    def news_of(self, partitions: Iterable[TopicPartition]) -> AbstractContextManager[News]:
        """Returns the news of the partitions: commits, and changes of the leadership or the log start."""
        return self.notifier.at(partitions)

    def committed(self, partition: TopicPartition, batches: list[StampedBatch]) -> None:
        """Makes the batches of a committed segment readable."""
        self._tail_cache.add(partition, batches)
        self.notifier.wake(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forgets the batches of a partition that the session leads no more, and wakes its readers."""
        self._tail_cache.drop(partition)
        self.notifier.wake(partition)

    # ── figures, from any thread ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def readers_waiting(self) -> int:
        """Returns the partitions for which a reader waits."""
        return len(self.notifier)

    @property
    def tail_cache_bytes(self) -> int:
        return self._tail_cache.bytes_used

    @property
    def read_cache_bytes(self) -> int:
        return self._read_cache.bytes_used
