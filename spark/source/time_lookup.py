"""Finds the first record of a partition at or after a time, on the driver: what footers and manifest rule out is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from metadata.model import TopicPartition
from segments.history.index import RowGroupLocation
from segments.history.parquet_file import parse_parquet_footer, read_row_group
from segments.object_store.interface import ObjectStore
from segments.read.cached_run import open_run
from segments.records.columns import timestamps_of
from segments.wal.run_index import RunLocation
from spark.source.log_snapshot import PartitionSnapshot
from spark.source.offset_ranges import FirstAt, TimeAsked
from spark.source.task_reader import decoded_in_parts

# Row groups that are read for times, at the same time.
LOOKUPS_MAX: Final = 16


async def offsets_at_times(
    store: ObjectStore, snapshots: Mapping[TopicPartition, PartitionSnapshot], asked: Collection[TimeAsked]
) -> FirstAt:
    """Tells each of the times that are asked. Raises as `first_at`."""
    lookup_slots = asyncio.Semaphore(LOOKUPS_MAX)

    async def one(time: TimeAsked) -> int | None:
        async with lookup_slots:
            return await first_at(store, snapshots[time.partition], time.timestamp_ms)

    found = dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))
    return lambda partition, timestamp_ms: found[TimeAsked(partition, timestamp_ms)]


async def first_at(store: ObjectStore, snapshot: PartitionSnapshot, timestamp_ms: int, *, from_offset: int = 0) -> int | None:
    """Returns the offset of the first record at or after the timestamp; None if there is none. Raises Corrupt, and what the store
    raises."""
    from_offset = max(from_offset, snapshot.start_offset)
    for location in _candidates(snapshot, timestamp_ms, from_offset):
        if isinstance(location, RowGroupLocation):
            bodies = [
                await store.get(location.key, start=location.start, end=location.end),
                await store.get(location.key, start=location.file.footer_start, end=location.file.size_bytes),
            ]
        else:
            bodies = [await store.get(location.key, start=location.start, end=location.end)]
        found = await asyncio.to_thread(_first_in, location, bodies, timestamp_ms, from_offset)
        if found is not None:
            return found
    return None


def _candidates(snapshot: PartitionSnapshot, timestamp_ms: int, from_offset: int) -> Iterator[RowGroupLocation | RunLocation]:
    yield from snapshot.history.from_timestamp(timestamp_ms, from_offset=from_offset)
    yield from snapshot.runs.from_timestamp(timestamp_ms, from_offset=from_offset)


def _first_in(location: RowGroupLocation | RunLocation, bodies: list[bytes], timestamp_ms: int, from_offset: int) -> int | None:
    if isinstance(location, RowGroupLocation):
        footer = parse_parquet_footer(bodies[1], location.file, location.key)
        records = iter([read_row_group(bodies[0], location.group, footer, columns=["offset", "timestamp"])])
    else:
        run = open_run(bodies[0], location)
        records = decoded_in_parts([run.batch(index) for index in range(run.batch_count)])
    rows = (_first_row(part, timestamp_ms, from_offset) for part in records)
    return next((row for row in rows if row is not None), None)


def _first_row(records: pa.RecordBatch, timestamp_ms: int, from_offset: int) -> int | None:
    offsets = records.column("offset").to_numpy()
    rows = np.flatnonzero((timestamps_of(records) >= timestamp_ms) & (offsets >= from_offset))
    return int(offsets[rows[0]]) if len(rows) else None
