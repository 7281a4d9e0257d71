"""Reads runs of batches from segments on the bucket, or from the disk tier, and checks them: see cached_run.py."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from metadata.errors import Corrupt
from segments.counters import LogCounters
from segments.object_store.interface import ObjectInfo, ObjectStore
from segments.read.cached_run import CachedRun, open_by_footer, open_run
from segments.read.disk_cache import DiskCache
from segments.wal.footer_reader import read_footer
from segments.wal.run_index import RunLocation

# More than this is checked in a thread: a run of the smallest batches would hold the event loop for 0.2 s.
THREAD_BYTES: Final = 64 << 10

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
            run = await _opened(stored, location)
            if not run.damaged:
                self._counters.disk_reads += 1
                return run
            log.warning("a copy on the local disk is damaged, so it is read from the bucket again: %s", location)
            await self._disk.drop(location.identity)
        body = await self._store.get(location.key, start=location.start, end=location.end)
        self._counters.bucket_reads += 1
        run = await _opened(body, location)
        if run.damaged:
            return await self._with_batches_located(run, body)
        if self._disk is not None:
            await self._disk.put(location.identity, body)
        return run

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
            log.error("%s, so batches behind the damage in its run can't be located", error)
        first = next(iter(run.damaged))
        log.error("%s: %s (batches damaged in this run: %d)", partition, run.damage_at(first), len(run.damaged))
        return run


async def _opened(body: bytes, location: RunLocation) -> CachedRun:
    return open_run(body, location) if len(body) <= THREAD_BYTES else await asyncio.to_thread(open_run, body, location)
