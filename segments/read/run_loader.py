"""Reads runs of batches from segments on the bucket, or from the disk tier, and checks them: see cached_run.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from metadata.errors import Corrupt
from segments.counters import LogCounters
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.read.cached_run import CachedRun, open_by_footer, open_run
from segments.read.disk_cache import DiskCache
from segments.records.batch import batches_counted
from segments.wal.footer_reader import read_footer
from segments.wal.run_index import RunLocation

# A run of more bytes is decoded in a thread.
THREAD_BYTES: Final = 64 << 10
# Runs of more bytes or batches are checked in a thread: a run of the smallest batches would hold the event loop for 0.2 s. A thread
# costs 0.2 ms of CPU, in which a megabyte of large batches is checked.
INLINE_BYTES_MAX: Final = 1 << 20
INLINE_BATCHES_MAX: Final = 256

log = logging.getLogger(__name__)


class RunLoader:
    """Reads runs from the local disk or the bucket, and splits them into batches."""

    def __init__(self, store: ObjectStore, *, disk: DiskCache | None = None, counters: LogCounters | None = None) -> None:
        self._store = store
        self._disk = disk
        self._counters = counters or LogCounters()

    async def read(self, location: RunLocation) -> CachedRun:
        """Reads a run, some of whose batches may be damaged. Raises NotFound, InvalidArgument, and other errors of the store."""
        if self._disk is not None and (stored := await self._disk.get(location.identity)) is not None:
            [run] = await _opened([stored], [location])
            if not run.damaged:
                self._counters.disk_reads += 1
                return run
            log.warning("a copy on the local disk is damaged, so it is read from the bucket again: %s", location)
            await self._disk.drop(location.identity)
        body = await self._store.get(location.key, start=location.start, end=location.end)
        self._counters.bucket_reads += 1
        [run] = await _opened([body], [location])
        if run.damaged:
            return await self._with_batches_located(run, body)
        if self._disk is not None:
            await self._disk.put(location.identity, body)
        return run

    async def read_together(self, locations: Sequence[RunLocation]) -> list[CachedRun] | None:
        """Reads several runs of one segment with one GET; `locations` are in the order of their bytes.

        Returns None if the segment ends before the last of them. Raises what `read` raises. The local disk is not used.
        """
        first, last = locations[0], locations[-1]
        body = await self._store.get(first.key, start=first.start, end=last.end)
        self._counters.bucket_reads += 1
        if len(body) != last.end - first.start:
            return None
        # Each run is a copy: one that stays in memory must not keep the whole range there.
        bodies = [body[each.start - first.start : each.end - first.start] for each in locations]
        del body
        runs = await _opened(bodies, locations)
        return [await self._with_batches_located(run, own) if run.damaged else run for run, own in zip(runs, bodies, strict=True)]

    async def _with_batches_located(self, run: CachedRun, body: bytes) -> CachedRun:
        """Returns the run with each damaged batch by itself, where the segment's footer still locates each batch."""
        location, partition = run.location, "a partition"
        try:
            footer = await read_footer(self._store, ObjectInfo(location.key, location.end), location.session, location.seq)
            for listed in footer.runs:
                if (listed.start, listed.end) == (location.start, location.end):
                    partition = str(listed.partition)
                    run = await asyncio.to_thread(open_by_footer, body, location, footer.batches(listed))
        except Corrupt as error:
            log.error("footer corrupt: %s; batches behind the damage in its run can't be located", error)
        first = next(iter(run.damaged))
        log.error("batches corrupt partition=%s batches=%d: %s", partition, len(run.damaged), run.damage_at(first))
        return run


async def _opened(bodies: Sequence[bytes], locations: Sequence[RunLocation]) -> list[CachedRun]:
    """Opens the runs, in a thread if that takes longer than the way there and back."""
    if _takes_long(bodies):
        return await asyncio.to_thread(_open_all, bodies, locations)
    return _open_all(bodies, locations)


def _open_all(bodies: Sequence[bytes], locations: Sequence[RunLocation]) -> list[CachedRun]:
    return list(map(open_run, bodies, locations))


def _takes_long(bodies: Sequence[bytes]) -> bool:
    if sum(map(len, bodies)) > INLINE_BYTES_MAX:
        return True
    batches_left = INLINE_BATCHES_MAX
    for body in bodies:
        batches_left -= batches_counted(body, batches_left + 1)
        if batches_left < 0:
            return True
    return False
