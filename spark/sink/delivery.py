"""Sends what was chosen to the leaders of its partitions, in order; how far each partition is, is decided in partition_progress.py.

    chosen ─▶ files, some ahead ─▶ CRC-32C ─▶ partitions, one for each partition ─▶ requests, some at each leader ─▶ committed

Invariant: what is read and not yet committed is at most READ_AHEAD_BYTES, or one file. What is in its topic already is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from metadata.errors import Corrupt, TidelogError, Unavailable
from metadata.retry import retry_unavailable
from segments.object_store.interface import ObjectStore
from segments.shared_errors import first_error
from spark.sink.brokers import Append, Brokers
from spark.sink.partition_progress import ForgottenError, PartitionProgress, StagedBatch
from spark.sink.staged_files import ChosenBatch, StagedFile, StagedPartition, counted, open_file, producer_of, sequenced

READ_AHEAD_BYTES: Final = 96 << 20
# Files that are read at the same time: many tasks of a small batch have a small one each.
READS_MAX: Final = 16
REQUEST_BYTES: Final = 4 << 20
REQUEST_BATCHES: Final = 500
# Of one partition in a request. That brokers remember five of a producer is no bound: where a request comes again and they are
# further, they say how far, and that is where a batch begins.
PARTITION_BATCHES: Final = 100
REQUESTS_PER_LEADER: Final = 4
# For a partition that takes nothing.
PATIENCE_S: Final = 120.0
BUCKET_PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0

log = logging.getLogger(__name__)


class StagedDelivery:
    """Sends the files of a chosen batch to the partition leaders, and retries until all rows are committed."""

    def __init__(
        self,
        chosen: ChosenBatch,
        store: ObjectStore,
        brokers: Brokers,
        *,
        marker: str,
        begins_until_ms: int,
        now_ms: Callable[[], int],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`marker`: the key of `chosen`. `begins_until_ms`: after it brokers may have forgotten what an earlier attempt sent."""
        self.marker = marker
        self._chosen = chosen
        self._store = store
        self._brokers = brokers
        self._begins_until_ms = begins_until_ms
        self._now_ms = now_ms
        self._patience_s = patience_s
        self.partitions = {where: PartitionProgress(where, records) for where, records in counted(chosen.files).items()}
        self._producers = {where.topic_id: producer_of(chosen.write, chosen.batch, where.topic_id) for where in self.partitions}
        self._ends = _ends(chosen.files)
        self._ready: dict[StagedPartition, PartitionProgress] = {}
        # Requests in flight, by leader.
        self._requests: dict[str, int] = {}
        self._refused_since_s: dict[StagedPartition, float] = {}
        self._paused: set[StagedPartition] = set()
        # Topics whose cached leaders are out of date.
        self._stale: set[str] = set()
        # Unsent parts of each file in memory, by file number.
        self._parts_left: dict[int, int] = {}
        self._held_bytes = 0
        self._all_read = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def complete(self) -> int:
        """Counts the partitions whose rows are all in their topic."""
        return sum(partition.is_done for partition in self.partitions.values())

    async def run(self) -> None:
        """Returns when all is committed.

        Raises Rejected and Fenced where it can't go on, Corrupt, NotFound for a staged file that is gone, ForgottenError, and
        Unavailable or OutcomeUnknown where a partition, or the bucket, does not answer for long.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(tasks))
                while not self._is_over():
                    self._changed.clear()
                    await self._send_what_is_ready(tasks)
                    if not self._is_over():
                        await self._changed.wait()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        short = [partition for partition in self.partitions.values() if not partition.is_done]
        if short:
            raise Corrupt(f"{short[0].where}: {short[0].written} of {short[0].records} rows were staged")

    def _is_over(self) -> bool:
        return self._all_read and not any(partition.waiting for partition in self.partitions.values())

    # ── in ──

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        ahead: deque[tuple[int, asyncio.Task[bytes] | None]] = deque()
        for number, file in enumerate(self._chosen.files):
            while ahead and (len(ahead) == READS_MAX or self._is_full(file)):
                await self._stage_next(ahead)
            while self._is_full(file):
                self._room.clear()
                await self._room.wait()
            if all(self.partitions[where].written >= end for where, end in self._ends[number]):
                ahead.append((number, None))
            else:
                self._held_bytes += file.size_bytes
                ahead.append((number, tasks.create_task(self._get(file.key))))
        while ahead:
            await self._stage_next(ahead)
        self._all_read = True
        self._changed.set()

    def _is_full(self, file: StagedFile) -> bool:
        return bool(self._held_bytes) and self._held_bytes + file.size_bytes > READ_AHEAD_BYTES

    async def _get(self, key: str) -> bytes:
        return await retry_unavailable(lambda: self._store.get(key), for_s=BUCKET_PATIENCE_S)

    async def _stage_next(self, ahead: deque[tuple[int, asyncio.Task[bytes] | None]]) -> None:
        number, body = ahead.popleft()
        file = self._chosen.files[number]
        if body is not None:
            self._stage(number, file, await body)
            return
        for where, records in file.records:
            self.partitions[where].pass_over(records)

    def _stage(self, number: int, file: StagedFile, body: bytes) -> None:
        self._parts_left[number] = 0
        for where, batches in open_file(file, body):
            partition = self.partitions[where]
            self._parts_left[number] += sum(partition.stage(batch, header, number) for batch, header in batches)
            if partition.is_ready and where not in self._paused:
                self._ready[where] = partition
        self._let_go(number)
        self._changed.set()

    def _let_go(self, number: int) -> None:
        if not self._parts_left[number]:
            del self._parts_left[number]
            self._held_bytes -= self._chosen.files[number].size_bytes
            self._room.set()

    # ── out ──

    async def _send_what_is_ready(self, tasks: asyncio.TaskGroup) -> None:
        by_leader: dict[str, list[PartitionProgress]] = {}
        for where, partition in list(self._ready.items()):
            fresh = where.topic in self._stale
            self._stale.discard(where.topic)
            try:
                leader = await self._brokers.leader_of(where, fresh=fresh)
            except Unavailable as error:
                partition.refusal = error
                self._pause(partition, error)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            while partitions and self._requests.get(leader, 0) < REQUESTS_PER_LEADER:
                self._requests[leader] = self._requests.get(leader, 0) + 1
                tasks.create_task(self._send(leader, self._next_request(partitions)))

    def _next_request(self, partitions: list[PartitionProgress]) -> list[tuple[PartitionProgress, list[StagedBatch]]]:
        """Takes what goes into a request from the first of these, which it removes."""
        request: list[tuple[PartitionProgress, list[StagedBatch]]] = []
        size = count = 0
        while partitions and size < REQUEST_BYTES and count < REQUEST_BATCHES:
            partition = partitions.pop(0)
            if not partition.is_known and self._now_ms() >= self._begins_until_ms:
                raise self._too_old(partition)
            parts = partition.take(REQUEST_BYTES - size, PARTITION_BATCHES)
            del self._ready[partition.where]
            request.append((partition, parts))
            size += sum(len(part.batch) for part in parts)
            count += len(parts)
        return request

    def _too_old(self, partition: PartitionProgress) -> ForgottenError:
        chosen_at = datetime.fromtimestamp(self._chosen.created_ms / 1000, UTC).isoformat(timespec="seconds")
        return ForgottenError(
            f"{partition.where}: the batch was chosen at {chosen_at}; brokers may have forgotten since then which of its rows "
            "they hold",
            hint=f"Look at the end of the topic. Where none of the rows are there, delete "
            f"{self.marker} on {self._store.url}, and run it again; where some are, begin a "
            "new checkpoint behind them.",
        )

    async def _send(self, leader: str, request: list[tuple[PartitionProgress, list[StagedBatch]]]) -> None:
        appends = [
            Append(partition.where, sequenced(part.batch, part.header, self._producers[partition.where.topic_id], part.first))
            for partition, parts in request
            for part in parts
        ]
        outcomes = iter(await self._brokers.produce(leader, appends))
        self._requests[leader] -= 1
        for partition, parts in request:
            settled = partition.answered([next(outcomes) for _ in parts])
            for part in settled:
                self._parts_left[part.file] -= 1
                self._let_go(part.file)
            if settled:  # it takes something, if not all
                self._refused_since_s.pop(partition.where, None)
            if partition.refusal is not None:
                self._pause(partition, partition.refusal)
            elif partition.is_ready:
                self._ready[partition.where] = partition
        self._changed.set()

    def _pause(self, partition: PartitionProgress, error: TidelogError) -> None:
        """Pauses a partition before its batches go to the current leader again. Raises the error once patience is exhausted."""
        loop = asyncio.get_running_loop()
        since_s = self._refused_since_s.setdefault(partition.where, loop.time())
        if loop.time() - since_s > self._patience_s:
            raise error
        if loop.time() - since_s > self._patience_s / 10:
            log.warning(
                "partition takes nothing for %.0f s partition=%s: %s; retrying", loop.time() - since_s, partition.where, error
            )
        self._ready.pop(partition.where, None)
        pause_s = min(PAUSE_S_MAX, max(PAUSE_S, (loop.time() - since_s) / 2))
        self._paused.add(partition.where)
        loop.call_later(pause_s, self._end_pause, partition)

    def _end_pause(self, partition: PartitionProgress) -> None:
        self._paused.discard(partition.where)
        self._stale.add(partition.where.topic)
        self._ready[partition.where] = partition
        self._changed.set()


def _ends(files: Sequence[StagedFile]) -> list[list[tuple[StagedPartition, int]]]:
    """Returns for each file its partitions, with the records of each up to the end of that file."""
    counts: dict[StagedPartition, int] = {}
    ends = []
    for file in files:
        for where, records in file.records:
            counts[where] = counts.get(where, 0) + records
        ends.append([(where, counts[where]) for where, _ in file.records])
    return ends
