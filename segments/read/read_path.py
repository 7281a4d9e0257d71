"""The read path of one session: what readers are answered, from memory or from the bucket, and who waits for more.

    fetch ─▶ log_reader ─▶ hot pool | cold pool ◀─ segments, and Parquet, on the bucket
      └ nothing new: waits until `committed` wakes it                 located_reads: the same of what others lead

Invariants: what a reader sees is committed; he is told a high watermark only after a check that nobody may lead in this session's
place, which is made behind his wait.

Who waits for news of which partition: readers for new records, a handover for the last commit.

Invariants: they are woken in the order in which they came; of a partition for which nobody waits there is nothing in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from metadata.errors import TidelogError
from metadata.model import TopicPartition
from segments.byte_budget import ByteBudget
from segments.counters import LogCounters
from segments.object_store.interface import ObjectStore
from segments.partition.leader_partitions import LeaderPartition, LeaderPartitions
from segments.read.disk_cache import DiskTier
from segments.read.follower_reader import LocatedReads, ToldTarget
from segments.read.log_reader import Explanation, Fetched, FetchTarget, LogReader, TimestampedOffset
from segments.read.read_cache import ColdPool
from segments.read.tail_cache import HotPool
from segments.settings import SegmentSettings
from segments.wal.segment_file import StampedBatch

Read = TypeVar("Read")


class Spawn(Protocol):
    """Starts a read from the bucket, which ends with the session at the latest. Unavailable where that has ended."""

    def __call__(self, read: Coroutine[Any, Any, Read], /) -> asyncio.Task[Read]: ...


class ReadPath:
    def __init__(
        self,
        store: ObjectStore,
        led: LeaderPartitions,
        settings: SegmentSettings,
        *,
        spawn: Spawn,
        adopt_newest: Callable[[TopicPartition], Awaitable[bool]],
        check_appointed: Callable[[], Awaitable[None]],
        counters: LogCounters,
        disk: DiskTier | None = None,
    ) -> None:
        """`adopt_newest`, `check_appointed`: as of SessionLog. `disk` keeps what was read from the bucket."""
        self._led = led
        self._check_appointed = check_appointed
        self._counters = counters
        self._waiting = ReaderNotifier()
        self._hot = HotPool(settings.hot_pool_bytes_max)
        self._cold = ColdPool(
            store,
            bytes_max=settings.cold_pool_bytes_max,
            reads=ByteBudget(settings.catch_up_bytes_max, of="reads from the bucket"),
            read_timeout_s=settings.put_deadline_ms / 1000,
            spawn=spawn,
            disk=disk,
            counters=counters,
        )
        self._reader = LogReader(
            self._hot,
            self._cold,
            decompressed_bytes_max=settings.decompressed_bytes_max,
            adopt_newest=adopt_newest,
            counters=counters,
        )
        self._located = LocatedReads(
            store,
            self._cold,
            spawn=spawn,
            decompressed_bytes_max=settings.decompressed_bytes_max,
            read_timeout_s=settings.put_deadline_ms / 1000,
        )

    async def fetch(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[Fetched | TidelogError]:
        """As SessionLog.fetch."""
        began_s = asyncio.get_running_loop().time()
        with self._waiting.at(target.partition for target in targets) as woken:
            answers = await self._reader.fetch(
                targets, self._led.readable, woken, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max
            )
        try:
            await self._check_appointed()  # behind the wait: what is told is true now, not as of its beginning
        except TidelogError as error:
            return [error.with_traceback(None)] * len(targets)
        if wait_ms_max:
            self._note_delivery(targets, answers, began_s)
        return answers

    def _note_delivery(self, targets: Sequence[FetchTarget], answers: Sequence[Fetched | TidelogError], began_s: float) -> None:
        """How long records took from the producer to the reader, where he waited for them."""
        for target, answer in zip(targets, answers, strict=True):
            if isinstance(answer, Fetched) and answer.size_bytes and (answer.committed_at_s or 0.0) > began_s:
                led = self._led.get(target.partition)
                if led is not None and led.committed_at_s == answer.committed_at_s:
                    self._counters.delivery_seconds.observe(asyncio.get_running_loop().time() - led.taken_at_s)

    async def fetch_located(self, asked: Sequence[ToldTarget], *, bytes_max: int) -> list[Fetched | TidelogError]:
        """Of partitions that others lead, by what these have told of the places: see LocatedReads.fetch."""
        return await self._located.fetch(asked, bytes_max=bytes_max)

    async def first_at(self, led: LeaderPartition, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record at or after `timestamp_ms`, or None when there is none yet, as far as is known here."""
        return await self._reader.first_at(led, timestamp_ms)

    async def explain(self, partition: TopicPartition, offset: int) -> Explanation:
        return await self._reader.explain(self._led.at(partition), offset)

    def news_of(self, partitions: Iterable[TopicPartition]) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever something of them was committed, or one of them was dropped."""
        return self._waiting.at(partitions)

    def committed(self, partition: TopicPartition, batches: list[StampedBatch]) -> None:
        """These are readable from now on."""
        self._hot.add(partition, batches)
        self._waiting.wake(partition)

    def drop(self, partition: TopicPartition) -> None:
        self._hot.drop(partition)
        self._waiting.wake(partition)

    # ── figures, from any thread ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def readers_waiting(self) -> int:
        """Partitions for which somebody waits."""
        return len(self._waiting)

    @property
    def hot_pool_bytes(self) -> int:
        return self._hot.bytes_used

    @property
    def cold_pool_bytes(self) -> int:
        return self._cold.bytes_used


class ReaderNotifier:
    def __init__(self) -> None:
        self._woken: dict[TopicPartition, dict[asyncio.Event, None]] = {}

    def __len__(self) -> int:
        """Partitions for which somebody waits."""
        return len(self._woken)

    @contextmanager
    def at(self, partitions: Iterable[TopicPartition]) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is something new of any of them."""
        woken, watched = asyncio.Event(), list(partitions)
        for partition in watched:
            self._woken.setdefault(partition, {})[woken] = None
        try:
            yield woken
        finally:
            for partition in watched:
                self._forget(partition, woken)

    def wake(self, partition: TopicPartition) -> None:
        for woken in self._woken.get(partition, ()):
            woken.set()

    def _forget(self, partition: TopicPartition, woken: asyncio.Event) -> None:
        waiting = self._woken.get(partition, {})
        waiting.pop(woken, None)
        if not waiting:
            self._woken.pop(partition, None)
