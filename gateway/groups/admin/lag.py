"""Computes how far a group is behind: in records, and in seconds, the age of the first unread record.

  committed ─▶ lag_records = high watermark − committed          below the log start: counted from the log start
  none      ─▶ counted from the log start, too                   nothing shows that anything was read
  lag_seconds = now − the time of the first unread record        never below 0, as clocks differ

A partition without a commit counts wholly, so that a group that fails at its first record is seen. A reader that begins at `latest`
commits its start, or shows as behind until it has. The seconds depend on the record's timestamp: if a record was made long before
it
was appended, they count from then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from gateway.concurrency.offload import BoundedExecutor, LoopYielder, map_yielding
from gateway.proto import groups_pb2
from gateway.proto.status import to_status
from gateway.records.batch_decoder import decode_records, takes_long
from gateway.routing.log_service import LogService
from gateway.telemetry.request_context import remaining_s
from gateway.topics.names import BOUNDS_WAIT_S, named
from metadata.errors import TidelogError, Unavailable, UnknownTopic
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import TopicId, TopicPartition
from metadata.topics.topic import Topic
from segments.log.session_log import FetchTarget
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.records.batch_kernel import RecordTuple

READS_AT_ONCE: Final = 16
# Timeout of one record read, which may go to the bucket.
READ_TIMEOUT_S: Final = 5.0
# Timeout of all record reads of one answer.
READS_TIMEOUT_S: Final = 10.0
# A partition, and an offset in it.
RecordPosition = tuple[TopicPartition, int]
# Bytes to ask for: an answer holds a whole batch at least.
FIRST_BATCH: Final = 1


def lag_records(committed: int | None, bounds: Bounds) -> int:
    return max(0, bounds.high_watermark - first_unread(committed, bounds))


def first_unread(committed: int | None, bounds: Bounds) -> int:
    return int(bounds.log_start_offset) if committed is None else max(committed, bounds.log_start_offset)


def lag_seconds(timestamp_ms: int | None, *, now_ms: int) -> float:
    """Returns the age of a record in seconds. `timestamp_ms` is the first unread record's; None without one."""
    return 0.0 if timestamp_ms is None else max(0, now_ms - timestamp_ms) / 1000


def first_timestamp_ms(fetched: FetchResult, offset: int, *, decompressed_bytes_max: int) -> int | None:
    """Returns the timestamp of the first record from `offset` on; None if the answer holds none. Raises Corrupt."""
    found: list[int] = []

    def read(records: list[RecordTuple]) -> bytes:
        found.append(records[0][1])
        return b"."

    decode_records(fetched, offset, read, records_max=1, bytes_max=1, decompressed_bytes_max=decompressed_bytes_max)
    return found[0] if found else None


UNREAD: Final = Unavailable("the age of the first unread record was not found in time", hint="Ask again, or ask less often.")


# Partitions of one question: ten times as many would hold the event loop for a tenth of a second.
PART: Final = 1_000
# Least time for the leaders of later parts, however long earlier ones took.
LATER_PART_S: Final = 0.2


async def bounds_by_parts(log: LogService, partitions: Sequence[TopicPartition]) -> list[Bounds | TidelogError]:
    """Returns bounds as `log.bounds_of`, yielding between the parts. All parts share the wait for partitions without a leader."""
    clock, found = asyncio.get_running_loop().time, list[Bounds | TidelogError]()
    ends_s = clock() + BOUNDS_WAIT_S
    for start in range(0, len(partitions), PART):
        wait_s = max(LATER_PART_S, ends_s - clock())
        found += await log.bounds_of(partitions[start : start + PART], wait_s=wait_s)
        await asyncio.sleep(0)
    return found


class KnownTopics(Protocol):
    """Offers the topics of metadata/topics/cache.py's TopicCache."""

    def get(self, name: str) -> Topic: ...

    def by_id(self, topic_id: TopicId) -> Topic: ...


class GroupLag:
    """Computes lags from the bounds and records that leaders return."""

    def __init__(self, log: LogService, topics: KnownTopics, *, now_ms: Callable[[], int]) -> None:
        """`log` serves the whole cluster. `now_ms` returns milliseconds since 1970."""
        self._log = log
        self._topics = topics
        self._now_ms = now_ms
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._threads = BoundedExecutor()

    def topic_of(self, partition: TopicPartition) -> Topic | None:
        """Returns the partition's topic; None if the topic was deleted, or has no such partition."""
        try:
            topic = self._topics.by_id(partition.topic_id)
        except UnknownTopic:
            return None
        return topic if 0 <= partition.partition < topic.partition_count else None

    async def lags(self, stored: StoredOffsets, owners: Mapping[TopicPartition, str]) -> list[groups_pb2.PartitionLag]:
        """Returns the lags of all partitions that were committed or are owned, by topic and number, except those of
        deleted topics."""
        committed, damaged = stored
        asked = list({*committed, *damaged, *owners})
        topics = {at: topic for at, topic in zip(asked, await map_yielding(self.topic_of, asked), strict=True) if topic is not None}
        await asyncio.sleep(0)
        ordered = sorted(topics, key=lambda at: (topics[at].name, at))
        found = await bounds_by_parts(self._log, ordered)
        unread: dict[TopicPartition, RecordPosition] = {}
        yielder = LoopYielder()
        for at, bounds in zip(ordered, found, strict=True):
            if not isinstance(bounds, TidelogError) and at not in damaged and lag_records(_offset(committed, at), bounds) > 0:
                unread[at] = at, first_unread(_offset(committed, at), bounds)
            await yielder.step()
        timestamps = await self.timestamps(unread.values())
        now_ms = self._now_ms()

        def lag_at(at: TopicPartition, answer: Bounds | TidelogError) -> groups_pb2.PartitionLag:
            topic, offset = topics[at], committed.get(at)
            row = groups_pb2.PartitionLag(
                topic=topic.name,
                topic_id=topic.id,
                partition=at.partition,
                high_watermark=-1,
                log_start_offset=-1,
                member_id=owners.get(at, ""),
            )
            if offset is not None:
                row.committed_offset, row.metadata, row.committed_at_ms = offset.offset, offset.metadata, offset.committed_at_ms
            error = answer if isinstance(answer, TidelogError) else damaged.get(at)
            if not isinstance(answer, TidelogError):
                row.high_watermark, row.log_start_offset = answer.high_watermark, answer.log_start_offset
                if error is None:
                    row.lag_records = lag_records(_offset(committed, at), answer)
                    read = timestamps.get(unread[at], UNREAD) if at in unread else None
                    if isinstance(read, TidelogError):
                        error = read
                    else:
                        row.lag_seconds = lag_seconds(read, now_ms=now_ms)
            if error is not None:
                row.error.CopyFrom(to_status(named(error, topic)))
            return row

        return await map_yielding(lambda row: lag_at(*row), zip(ordered, found, strict=True))

    async def timestamps(self, positions: Collection[RecordPosition]) -> dict[RecordPosition, int | TidelogError | None]:
        """Returns the timestamp of the first record from each position on, None without one. A few are read at a time; those not
        read in time are left out."""
        found: dict[RecordPosition, int | TidelogError | None] = {}
        waiting = iter(positions)

        async def reader() -> None:
            for position in waiting:
                async with self._reads:
                    try:
                        found[position] = await self._timestamp(*position)
                    except TidelogError as error:
                        found[position] = error.with_traceback(None)

        with suppress(TimeoutError):
            async with asyncio.timeout(min(READS_TIMEOUT_S, remaining_s())), asyncio.TaskGroup() as readers:
                for _ in range(min(READS_AT_ONCE, len(positions))):
                    readers.create_task(reader())
        return found

    async def _timestamp(self, partition: TopicPartition, offset: int) -> int | None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                [fetched] = await self._log.fetch([FetchTarget(partition, offset, FIRST_BATCH)], bytes_max=FIRST_BATCH)
        except TimeoutError:
            raise Unavailable(f"{partition} was not read at offset {offset} within {READ_TIMEOUT_S:g} s") from None
        if isinstance(fetched, TidelogError):
            raise fetched
        decompressed_bytes_max = self._log.settings.decompressed_bytes_max

        def read() -> int | None:
            return first_timestamp_ms(fetched, offset, decompressed_bytes_max=decompressed_bytes_max)

        return await self._threads.run(read) if takes_long([fetched]) else read()


def _offset(committed: Mapping[TopicPartition, CommittedOffset], partition: TopicPartition) -> int | None:
    found = committed.get(partition)
    return None if found is None else found.offset
