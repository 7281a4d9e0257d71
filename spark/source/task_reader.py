"""Reads the parts of a task from the bucket, as rows of the source. Runs in an executor.

    parts ─▶ reads: a row group, or runs of up to RUNS_BYTES ─▶ GETs, some reads ahead ─▶ checked ─▶ columns ─▶ rows of the range
      ▲                                                           │ gone: compacted and collected since the plan
      └────────────── planned again from the first offset that is missing

Invariant: what comes out was checked to its last byte, by the CRC-32C of the manifest or of each batch, and is in offset order. At
most READ_AHEAD_BYTES of the bucket are in memory beside what is being decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from metadata.errors import Corrupt, NotFound, OutOfRange
from segments.history.manifest import HistoryFile, RowGroup
from segments.history.parquet_file import ParquetFooter, parse_parquet_footer, read_row_group
from segments.object_store.interface import Buffer, ObjectStore
from segments.read.cached_run import open_run
from segments.records.columns import decode_opened, open_in_parts
from segments.wal.run_index import RunLocation
from spark.runtime.bucket_thread import BucketThread
from spark.source.log_snapshot import PartitionSnapshot, take_snapshot
from spark.source.scan_plan import FilePart, OffsetRange, RunGroup, Task, plan_tasks
from spark.source.schema import as_source_rows, decoded_columns

# Of segments, that are read at a time.
RUNS_BYTES: Final = 4 << 20
# Of batches when they are decompressed, that are decoded at a time.
OPENED_BYTES: Final = 32 << 20
READ_AHEAD_BYTES: Final = 32 << 20
# At the same time, of one read of small runs.
GETS_MAX: Final = 16
# Of a batch: brokers have checked theirs when they took it.
DECOMPRESSED_BYTES_MAX: Final = 1 << 30

# Most plans of a task; it plans again each time a file of the last plan is gone.
PLANS_MAX: Final = 3
DELETED: Final = "it was deleted after this query was planned"
RUN_AGAIN: Final = "Run the query again. Plans hold for the brokers' delete_grace_ms: raise it for longer queries."

log = logging.getLogger(__name__)


class _Group(NamedTuple):
    """A row group to read; the first one of a file brings its footer along."""

    key: str
    file: HistoryFile
    group: RowGroup

    @property
    def size_bytes(self) -> int:
        return self.group.end - self.group.start

    async def get(self, store: ObjectStore) -> list[bytes]:
        return [await store.get(self.key, start=self.group.start, end=self.group.end)]


class _Footer(NamedTuple):
    key: str
    file: HistoryFile

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes - self.file.footer_start

    async def get(self, store: ObjectStore) -> list[bytes]:
        return [await store.get(self.key, start=self.file.footer_start, end=self.file.size_bytes)]


class _Runs(NamedTuple):
    locations: tuple[RunLocation, ...]

    @property
    def size_bytes(self) -> int:
        return sum(location.size_bytes for location in self.locations)

    async def get(self, store: ObjectStore) -> list[bytes]:
        get_slots = asyncio.Semaphore(GETS_MAX)

        async def one(location: RunLocation) -> bytes:
            async with get_slots:
                return await store.get(location.key, start=location.start, end=location.end)

        return await asyncio.gather(*map(one, self.locations))


_Read = _Footer | _Group | _Runs


def read_task(
    bucket: BucketThread, task: Task, columns: Sequence[str], *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task, in offset order, as batches of `arrow_schema(columns)`.

    Looks up again what was collected since the plan. Raises OutOfRange where it is nowhere any more, Corrupt for what is
    damaged, and what the store raises. Without `fail_on_data_loss` what is gone or damaged is left out, and logged.
    """
    left, plans = task, 0
    while left.parts:
        try:
            for next_offset, rows in _read_parts(bucket, left, columns, fail_on_data_loss):
                yield rows
                left = replace(left, offsets=OffsetRange(next_offset, task.offsets.end))
            return
        except NotFound as error:
            if plans == PLANS_MAX:
                raise OutOfRange(f"{error.message}: {DELETED}", hint=RUN_AGAIN) from error
            log.info("planned file is gone, planning again offset=%d: %s", left.offsets.start, error)
            left, plans = _planned_again(bucket, left, error, fail_on_data_loss), plans + 1


def _planned_again(bucket: BucketThread, task: Task, missing: NotFound, fail_on_data_loss: bool) -> Task:
    """Plans the rest of a task again after a planned file was deleted: the same records are in other files now.

    Raises OutOfRange if they are not, or may be fewer.
    """
    start, end = task.offsets
    if start >= end:
        return replace(task, parts=())
    (snapshot,) = bucket.run(lambda store: take_snapshot(store, {task.partition: task.topic})).values()
    if _keys_were_compacted(snapshot, OffsetRange(start, end)):
        raise OutOfRange(
            f"{missing.message}: {DELETED}, and key compaction of {snapshot} may have removed records of it since", hint=RUN_AGAIN
        ) from missing
    there = OffsetRange(max(start, snapshot.start_offset), min(end, snapshot.end_offset))
    if there != task.offsets:
        lost = f"{missing.message}: {DELETED}, and of offsets {start} to {end - 1} of {snapshot} not all can be read any more"
        if fail_on_data_loss:
            raise OutOfRange(lost, hint=f"{RUN_AGAIN} Or set failOnDataLoss to false.") from missing
        log.warning("%s", lost)
    parts = tuple(part for one in plan_tasks(snapshot, there) for part in one.parts)
    return replace(task, offsets=there, parts=parts)


def _keys_were_compacted(snapshot: PartitionSnapshot, offsets: OffsetRange) -> bool:
    """Returns whether key compaction may have removed records of the range: a pass is recorded, or a running one left gaps."""
    passes, start = snapshot.manifest.key_passes, max(offsets.start, snapshot.start_offset)
    if passes and passes[-1].end_offset > offsets.start:
        return True
    end = min(offsets.end, snapshot.manifest.compacted_to)
    expected = start
    for location in snapshot.history.between(start, end):
        if location.base_offset > expected or location.group.record_count <= location.last_offset - location.base_offset:
            return True
        expected = location.last_offset + 1
    return expected < end


def _read_parts(
    bucket: BucketThread, task: Task, columns: Sequence[str], fail_on_data_loss: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields rows, each time with the offset behind them. Raises NotFound for what was collected, and else as `read_task`."""
    footer: ParquetFooter | None = None
    for read, bodies in _read_ahead(bucket, _reads(task.parts)):
        try:
            match read:
                case _Footer(key, file):
                    footer = parse_parquet_footer(bodies[0], file, key)
                    continue
                case _Group(key, _, group):
                    if footer is None or footer.key != key:
                        continue  # its footer is damaged, which was reported
                    records = iter([read_row_group(bodies[0], group, footer, columns=decoded_columns(columns))])
                case _Runs(locations):
                    records = decoded_in_parts(_sound(locations, bodies, fail_on_data_loss))
        except Corrupt as error:
            if fail_on_data_loss:
                raise
            log.warning("it is left out: %s", error)
            continue
        for decoded in records:
            rows = _rows_in(decoded, task)
            if rows.num_rows:
                next_offset = rows.column("offset")[-1].as_py() + 1
                yield next_offset, as_source_rows(rows, columns, topic=task.topic, partition=task.partition.partition)


def _reads(parts: Sequence[FilePart | RunGroup]) -> Iterator[_Read]:
    for part in parts:
        if isinstance(part, FilePart):
            yield _Footer(part.key, part.file)
            for group in part.file.row_groups[part.first : part.end]:
                yield _Group(part.key, part.file, group)
            continue
        held: list[RunLocation] = []
        for location in part.runs:
            if held and sum(one.size_bytes for one in held) + location.size_bytes > RUNS_BYTES:
                yield _Runs(tuple(held))
                held = []
            held.append(location)
        yield _Runs(tuple(held))


def _read_ahead(bucket: BucketThread, reads: Iterator[_Read]) -> Iterator[tuple[_Read, list[bytes]]]:
    under_way: deque[tuple[_Read, Future[list[bytes]]]] = deque()
    ahead_bytes = 0
    following = next(reads, None)
    try:
        while under_way or following is not None:
            while following is not None and (not under_way or ahead_bytes + following.size_bytes <= READ_AHEAD_BYTES):
                under_way.append((following, bucket.start(following.get)))
                ahead_bytes += following.size_bytes
                following = next(reads, None)
            read, answer = under_way.popleft()
            ahead_bytes -= read.size_bytes
            yield read, answer.result()
    finally:
        for _, answer in under_way:
            answer.cancel()


def _sound(locations: Sequence[RunLocation], bodies: Sequence[bytes], fail_on_data_loss: bool) -> list[Buffer]:
    """Returns the batches. Raises Corrupt, or leaves out damaged ones."""
    batches: list[Buffer] = []
    for location, body in zip(locations, bodies, strict=True):
        run = open_run(body, location)
        for index in range(run.batch_count):
            try:
                batches.append(run.batch(index))
            except Corrupt as error:
                if fail_on_data_loss:
                    raise
                log.warning("it is left out: %s", error)
    return batches


def decoded_in_parts(batches: Sequence[Buffer]) -> Iterator[pa.RecordBatch]:
    """Decodes batches to columns in order, some MiB at a time, so that memory stays bounded."""
    for opened in open_in_parts(batches, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX, part_bytes=OPENED_BYTES):
        yield decode_opened(opened)


def _rows_in(records: pa.RecordBatch, task: Task) -> pa.RecordBatch:
    offsets = records.column("offset").to_numpy()
    first, end = np.searchsorted(offsets, [task.offsets.start, task.offsets.end])
    return records.slice(first, end - first)
