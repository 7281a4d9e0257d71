"""Reads records for a page: the newest, or those from an offset or a time on, and of them what the reader looks for.

    newest    the last records of each partition, merged by time, newest first; with a filter, further back, a step at a time
    onward    from a position in each partition, merged by time, oldest first

A search ends with enough matches, at the end of the log, or at a bound of time, records or bytes. Its result says how far it came,
so that the reader can go on from there. Invariant: between its bounds a search leaves out no match.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from gateway.concurrency.offload import BoundedExecutor, OnePerLoopTurn
from gateway.console.api_client import ApiClient, ApiRefused, QueryValue
from gateway.console.record_view import RawRecord, RecordFilter, raw_record

# Bounds of one search.
SEARCH_S: Final = 2.0
SEARCH_RECORDS: Final = 50_000
SEARCH_BYTES: Final = 32 << 20
# Records, and bytes of records, of one read of a partition.
STEP_RECORDS: Final = 500
STEP_BYTES: Final = 1 << 20
# Partitions that are read at the same time, and the most of one page.
PARTITIONS_AT_ONCE: Final = 8
PARTITIONS_MAX: Final = 200
# More records than these take milliseconds to be merged.
MERGED_AT_ONCE: Final = 2_000


class Start(NamedTuple):
    """Holds where a search begins: at the newest record, or onward from an offset, a time, or the earliest record."""

    newest: bool = True
    offset: int | None = None
    timestamp_ms: int | None = None


class Found(NamedTuple):
    """The result of a search."""

    records: Sequence[RawRecord]
    # Records that were looked at.
    read_count: int
    # By partition, where to go on: onward from this offset, or backward from below it. Partitions read to their end have none.
    go_on: dict[int, int]
    # Partitions that could not be read, each with the reason.
    refused: dict[int, str]

    @property
    def is_whole(self) -> bool:
        """Returns whether the search came to the end of each partition."""
        return not self.go_on and not self.refused


class _Budget:
    """Bounds the work of one search over all partitions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends_s = clock() + SEARCH_S
        self.read_count = 0
        self.read_bytes = 0

    @property
    def is_spent(self) -> bool:
        return self.read_count >= SEARCH_RECORDS or self.is_out_of_memory or self._clock() >= self._ends_s

    @property
    def is_out_of_memory(self) -> bool:
        return self.read_bytes >= SEARCH_BYTES


class RecordSearch:
    """Searches the records of one topic."""

    def __init__(self, api: ApiClient, topic: str, wanted: RecordFilter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._topic = topic
        self._wanted = wanted
        self._budget = _Budget(clock)
        self._threads = BoundedExecutor(1)
        # Partitions that are read at the same time would otherwise be read and decoded in one turn of the event loop.
        self._turn = OnePerLoopTurn()

    async def newest(self, partitions: Sequence[int], *, count: int, below: dict[int, int] | None = None) -> Found:
        """Returns the `count` newest matches, newest first. `below`: by partition, the offset to look below."""

        async def read(partition: int) -> tuple[list[RawRecord], int | None]:
            return await self._backward(partition, count, None if below is None else below[partition])

        found = await self._of_all([each for each in partitions if below is None or each in below], read)
        return await self._merging(found, lambda: _newest_of(found, count))

    async def onward(self, partitions: Sequence[int], start: Start, *, count: int, from_: dict[int, int] | None = None) -> Found:
        """Returns the `count` first matches, oldest first. `from_`: by partition, the offset to go on from."""

        async def read(partition: int) -> tuple[list[RawRecord], int | None]:
            if from_ is not None:
                return await self._onward(partition, count, Start(newest=False, offset=from_[partition]))
            return await self._onward(partition, count, start)

        found = await self._of_all([each for each in partitions if from_ is None or each in from_], read)
        return await self._merging(found, lambda: _earliest_of(found, count))

    async def _merging(self, found: Found, merged: Callable[[], Found]) -> Found:
        """Merges the partitions of a search: in a thread where that takes long, since many may have many matches each."""
        return merged() if len(found.records) <= MERGED_AT_ONCE else await self._threads.run(merged)

    async def _of_all(
        self, partitions: Sequence[int], read: Callable[[int], Awaitable[tuple[list[RawRecord], int | None]]]
    ) -> Found:
        records: list[RawRecord] = []
        go_on: dict[int, int] = {}
        refused: dict[int, str] = {}
        room = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def read_one(partition: int) -> None:
            async with room:
                if self._budget.is_out_of_memory:
                    refused[partition] = f"this page has read {SEARCH_BYTES >> 20} MiB of other partitions; choose this one alone"
                    return
                try:
                    found, next_offset = await read(partition)
                except ApiRefused as error:
                    if error.status in {401, 403, 404}:
                        raise
                    refused[partition] = error.message
                    return
            records.extend(found)
            if next_offset is not None:
                go_on[partition] = next_offset

        try:
            async with asyncio.TaskGroup() as tasks:
                for partition in partitions:
                    tasks.create_task(read_one(partition))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return Found(records, self._budget.read_count, go_on, refused)

    async def _onward(self, partition: int, count: int, start: Start) -> tuple[list[RawRecord], int | None]:
        matches: list[RawRecord] = []
        asked: dict[str, QueryValue] = {"offset": "earliest"}
        if start.offset is not None:
            asked = {"offset": start.offset}
        elif start.timestamp_ms is not None:
            asked = {"timestamp": start.timestamp_ms}
        while True:
            page = await self._read(partition, asked)
            for record in page["records"]:
                raw = raw_record(record)
                if self._wanted.matches(raw):
                    matches.append(raw)
            asked = {"offset": page["next_offset"]}
            if page["next_offset"] >= page["high_watermark"]:
                return matches, None
            if len(matches) >= count or self._budget.is_spent:
                return matches, page["next_offset"]

    async def _backward(self, partition: int, count: int, below: int | None) -> tuple[list[RawRecord], int | None]:
        """Reads steps, each below the last one, and none longer than one read returns."""
        matches: list[RawRecord] = []
        step = count if self._wanted.is_empty else STEP_RECORDS
        end = below
        while True:
            if end is None:
                page = await self._read(partition, {"tail": step})
                start, end = page["high_watermark"] - step, page["high_watermark"]
            else:
                start = end - step
                page = await self._page_from(partition, max(0, start))
            start = max(start, page["log_start_offset"])
            covered = page["next_offset"] - start
            if 0 < covered < end - start:
                step = covered  # the records are large: memory is bounded by whole reads
                continue
            found = [record for record in map(raw_record, page["records"]) if start <= record.offset < end]
            matches += [record for record in found if self._wanted.matches(record)]
            if start <= page["log_start_offset"]:
                return matches, None
            if len(matches) >= count or self._budget.is_spent:
                return matches, start
            end = start

    async def _page_from(self, partition: int, offset: int) -> dict[str, Any]:
        """Reads from the offset on, or from the log start where that is above it."""
        try:
            return await self._read(partition, {"offset": offset})
        except ApiRefused as error:
            if error.code != "OFFSET_OUT_OF_RANGE":
                raise
            return await self._read(partition, {"offset": "earliest"})

    async def _read(self, partition: int, where: dict[str, QueryValue]) -> dict[str, Any]:
        await self._turn.take()
        page: dict[str, Any] = await self._api.get(
            "v1",
            "topics",
            self._topic,
            "partitions",
            str(partition),
            "records",
            max_records=STEP_RECORDS,
            max_bytes=STEP_BYTES,
            key_format="base64",
            value_format="base64",
            **where,
        )
        await self._turn.take()
        self._budget.read_count += len(page["records"])
        self._budget.read_bytes += sum(len(record["key"] or "") + len(record["value"] or "") for record in page["records"])
        return page


def _newest_of(found: Found, count: int) -> Found:
    merged = _merged(found.records, count, newest_first=True)
    return found._replace(records=merged, go_on=_older(found.go_on, merged, found.records))


def _earliest_of(found: Found, count: int) -> Found:
    merged = _merged(found.records, count, newest_first=False)
    return found._replace(records=merged, go_on=_newer(found.go_on, merged, found.records))


def _merged(records: Sequence[RawRecord], count: int, *, newest_first: bool) -> list[RawRecord]:
    """Merges the partitions by time. The records of a partition keep the order of their offsets, whatever their times are."""
    sign = -1 if newest_first else 1
    by_partition: dict[int, list[RawRecord]] = {}
    for record in sorted(records, key=lambda record: (record.partition, sign * record.offset)):
        by_partition.setdefault(record.partition, []).append(record)
    return list(islice(heapq.merge(*by_partition.values(), key=lambda record: sign * record.timestamp_ms), count))


def _older(go_on: dict[int, int], shown: Sequence[RawRecord], read: Sequence[RawRecord]) -> dict[int, int]:
    """Returns where older records begin: below the oldest shown one of each partition whose matches were not all shown."""
    return _continued(go_on, shown, read, lambda offsets: min(offsets), lambda offsets: max(offsets) + 1)


def _newer(go_on: dict[int, int], shown: Sequence[RawRecord], read: Sequence[RawRecord]) -> dict[int, int]:
    """Returns where newer records begin: above the newest shown one of each partition whose matches were not all shown."""
    return _continued(go_on, shown, read, lambda offsets: max(offsets) + 1, lambda offsets: min(offsets))


def _continued(
    go_on: dict[int, int],
    shown: Sequence[RawRecord],
    read: Sequence[RawRecord],
    behind: Callable[[Sequence[int]], int],
    before: Callable[[Sequence[int]], int],
) -> dict[int, int]:
    shown_at = _offsets(shown)
    result = dict(go_on)
    for partition, offsets in _offsets(read).items():
        here = shown_at.get(partition, [])
        if len(here) < len(offsets):
            result[partition] = behind(here) if here else before(offsets)
    return result


def _offsets(records: Sequence[RawRecord]) -> dict[int, list[int]]:
    by_partition: dict[int, list[int]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record.offset)
    return by_partition
