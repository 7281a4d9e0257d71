"""Follows the log for a stream on the driver: finds its start, and the end and the tasks of each batch.

    each batch        footers of new segments; nothing at all POLL_PAUSE_S after the last poll
    every TOPICS_S    which topics and partitions there are, and the manifests that changed: log starts, and what is Parquet by now

A partition that comes later enters at its earliest record with the next batch's end, and is read from the batch after it: so that
where a batch begins and ends is in the checkpoint before it is read, and a batch that is planned again has the same rows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from metadata.errors import OutOfRange
from metadata.model import TopicPartition
from metadata.retry import RetryPauses, retry_unavailable
from segments.object_store.interface import ObjectStore
from spark.runtime.bucket_thread import BucketThread
from spark.source.batch_query import find_asked, tasks_of
from spark.source.log_snapshot import LogFollower, PartitionSnapshot
from spark.source.offset_ranges import end_offsets, start_offsets, times_asked
from spark.source.options import LATEST, AtOffset, SourceOptions
from spark.source.scan_plan import ALL_ROWS, Task
from spark.source.stream_offsets import StreamOffsets, StreamRules, admitted, batch_ranges, offsets_of
from spark.source.time_lookup import offsets_at_times

# Spark asks a hundred times a second where nothing comes; a bucket takes money for each answer.
POLL_PAUSE_S: Final = 0.5
TOPICS_S: Final = 10.0
# How long the bucket may be unavailable before the query fails.
PATIENCE_S: Final = 60.0
RETRY_PAUSE_S: Final = 1.0
# Warnings that are remembered, so as not to be given twice.
LOGGED_MAX: Final = 1000

log = logging.getLogger(__name__)

Snapshots = Mapping[TopicPartition, PartitionSnapshot]


class StreamLog:
    """The log as one streaming query sees it. Methods block; they raise what `plan_batch` raises, and OutOfRange for lost data."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options if options.start is not None else replace(options, start=AtOffset(LATEST))
        self._rules = StreamRules(self._lost)
        self._bucket = BucketThread(options.bucket)
        self._follower: LogFollower | None = None
        self._names: dict[TopicPartition, str] = {}
        self._snapshots: Snapshots = {}
        self._polled_s = self._topics_polled_s = float("-inf")
        # Where a bounded stream ends, as it was found when the query started.
        self._bound: dict[TopicPartition, int] | None = None
        # Where a query ends that reads what is available when it starts.
        self._available: dict[TopicPartition, int] | None = None
        self._logged: set[str] = set()

    def close(self) -> None:
        self._bucket.close()

    # ── what Spark asks ─────────────────────────────────────────────────────────────────────────────────────────────────

    def initial(self) -> StreamOffsets:
        """Returns the offsets at which a new query begins."""
        return self._bucket.run(self._initial)

    def end_here(self) -> None:
        """Fixes the end of the stream at the current end of the log."""
        self._bucket.run(self._end_here)

    def batch_end(self, start: StreamOffsets, offsets_max: int) -> StreamOffsets:
        """Returns the end of a batch that begins at `start`; `start` itself if there is nothing more. `offsets_max` 0: no limit."""
        return self._bucket.run(lambda store: self._batch_end(store, start, offsets_max))

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[Task]:
        """Plans the batch from `start` to `end`. Returns the same rows at each call, wherever they are stored."""
        return self._bucket.run(lambda store: self._tasks(store, start, end))

    def newest_known(self) -> StreamOffsets | None:
        return offsets_of(self._snapshots, self._ends()) if self._snapshots else None

    # ── as the bucket answers ───────────────────────────────────────────────────────────────────────────────────────────

    async def _initial(self, store: ObjectStore) -> StreamOffsets:
        snapshots = await self._poll(store, absent_ok=False, topics=True)  # `_end_here` comes before it, and lets topics be absent
        first_at = await offsets_at_times(store, snapshots, times_asked(replace(self._options, end=AtOffset(LATEST)), snapshots))
        return offsets_of(snapshots, start_offsets(self._options, snapshots, first_at, log.warning))

    async def _end_here(self, store: ObjectStore) -> None:
        await self._poll(store)
        self._available = self._ends()

    async def _batch_end(self, store: ObjectStore, start: StreamOffsets, offsets_max: int) -> StreamOffsets:
        if self._available is not None:
            await self._poll_if_older(store, TOPICS_S)
        elif not self._more_than(start) or self._age_s() > POLL_PAUSE_S:
            await asyncio.sleep(max(0.0, POLL_PAUSE_S - self._age_s()))
            await self._poll(store)
        snapshots, ends = self._snapshots, self._ends()
        begins = self._rules.reachable(start, snapshots)
        for partition, begin in begins.items():
            self._check_damage(snapshots[partition], begin, ends.get(partition))
        upto = admitted(begins, {partition: ends.get(partition, begin) for partition, begin in begins.items()}, offsets_max)
        entering = {
            partition: min(snapshots[partition].start_offset, end) for partition, end in ends.items() if partition not in begins
        }
        return offsets_of(snapshots, entering | upto)

    async def _tasks(self, store: ObjectStore, start: StreamOffsets, end: StreamOffsets) -> list[Task]:
        await self._poll_if_older(store, TOPICS_S if self._reaches(end) else 0.0)
        snapshots = self._snapshots
        ranges = batch_ranges(start, self._rules.reachable(start, snapshots), end)
        beyond = {where: end.next_offsets[where] for where in ranges if end.next_offsets[where] > snapshots[where].end_offset}
        self._rules.reachable(StreamOffsets(end.names, beyond), snapshots)
        return tasks_of(self._options, {partition: snapshots[partition] for partition in ranges}, ranges, ALL_ROWS)

    def _ends(self) -> dict[TopicPartition, int]:
        ends = {partition: int(snapshot.end_offset) for partition, snapshot in self._snapshots.items()}
        for bound in (self._bound, self._available):
            if bound is not None:
                ends = {partition: min(end, bound[partition]) for partition, end in ends.items() if partition in bound}
        return ends

    def _more_than(self, start: StreamOffsets) -> bool:
        return any(start.next_offsets.get(partition, -1) < end for partition, end in self._ends().items())

    def _reaches(self, end: StreamOffsets) -> bool:
        known = {partition: snapshot.end_offset for partition, snapshot in self._snapshots.items()}
        return all(offset <= known.get(partition, -1) for partition, offset in end.next_offsets.items())

    def _check_damage(self, snapshot: PartitionSnapshot, begin: int, end: int | None) -> None:
        """Reports damage once all records before it were read."""
        if snapshot.damage is None or begin < snapshot.end_offset or end is None or end < snapshot.end_offset:
            return
        if self._options.fail_on_data_loss:
            raise snapshot.damage
        self._warn(f"{snapshot} is read up to offset {snapshot.end_offset}: {snapshot.damage.message}")

    def _lost(self, what: str, remedy: str) -> None:
        if self._options.fail_on_data_loss:
            raise OutOfRange(what, hint=remedy)
        self._warn(what)

    def _warn(self, what: str) -> None:
        if what not in self._logged:
            self._logged = {*self._logged, what} if len(self._logged) < LOGGED_MAX else {what}
            log.warning("%s", what)

    # ── polling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _age_s(self) -> float:
        return time.monotonic() - self._polled_s

    async def _poll_if_older(self, store: ObjectStore, age_s: float) -> None:
        if self._age_s() >= age_s:
            await self._poll(store, topics=self._age_s() == float("inf") or age_s == 0.0)

    async def _poll(self, store: ObjectStore, *, absent_ok: bool = True, topics: bool = False) -> Snapshots:
        """Brings all up to date; tries again while the bucket is away, and raises then what it says."""
        poll = partial(self._poll_once, store, absent_ok=absent_ok, topics=topics)
        await retry_unavailable(poll, for_s=PATIENCE_S, pauses=RetryPauses(RETRY_PAUSE_S, RETRY_PAUSE_S))
        return self._snapshots

    async def _poll_once(self, store: ObjectStore, *, absent_ok: bool, topics: bool) -> None:
        if self._follower is None:
            self._follower = LogFollower(store)
        now_s = time.monotonic()
        due = topics or now_s - self._topics_polled_s >= TOPICS_S
        if due:
            self._names = await find_asked(store, self._options, absent_ok=absent_ok)
        self._snapshots = await self._follower.poll(self._names, manifests=due)
        self._polled_s = now_s
        if due:
            self._topics_polled_s = now_s
        if self._options.bounded and self._bound is None:
            only_ends = replace(self._options, start=None)
            first_at = await offsets_at_times(store, self._snapshots, times_asked(only_ends, self._snapshots))
            self._bound = end_offsets(self._options, self._snapshots, first_at)
