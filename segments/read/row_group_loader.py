"""Reads row groups of Parquet files from the bucket, or from the disk tier, and makes record batches of them.

    file   [ row group 0 ][ row group 1 ] … [ row group n ][ footer ]
    GETs         one             one        one with the footer, where it is not known yet; else the footer alone, once

Footers are kept (bounded), and read once however many groups of their file are asked for. Decoding and encoding go to threads that
step back behind all others (row_group_loader.py). So does the loading of what decodes Parquet, with the first file: brokers start
without it, and it takes a tenth of a second of a core.
Invariant: what comes out was checked against the manifest: the bytes by their CRC-32C, the records by count and offsets.

Threads in which row groups of Parquet become record batches: few, and behind all others.

    event loop     ──answers, tail──▶ ──▶ ──▶        goes first, and finds a core
    decoding       ─ group ─ group ─ group ─▶        half of the cores at most, nicer by 5, the interpreter's lock hardly ever

A row group is 50 ms of a core. Where as many are decoded at a time as there are readers, those at the tail wait behind all of them:
for a core, and for the interpreter's lock.

Invariant: work begins in order of arrival, and not at all once its waiters are gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from metadata.errors import Corrupt
from segments.counters import LogCounters
from segments.history.index import RowGroupLocation
from segments.history.row_group_batches import HistoryBatch, encode_row_group
from segments.object_store.interface import ObjectStore
from segments.read.cached_row_group import GROUP_BATCH_BYTES, CachedRowGroup, damaged_group, group_of
from segments.read.disk_cache import DiskCache

if TYPE_CHECKING:
    from segments.history.parquet_file import ParquetFooter

# Bytes of parsed Parquet footers that are kept. One of a file of 256 MiB takes about 100 KiB.
FOOTERS_BYTES_MAX: Final = 8 << 20
# A footer so near behind a row group is read along with it.
SHARED_GET_BYTES: Final = 128 << 10

log = logging.getLogger(__name__)


class RowGroupLoader:
    """Reads row groups and converts them to record batches."""

    def __init__(self, store: ObjectStore, *, disk: DiskCache | None = None, counters: LogCounters | None = None) -> None:
        self._store = store
        self._disk = disk
        self._counters = counters or LogCounters()
        self._decoding = DecodeThreads()
        self._loading = asyncio.Lock()
        self._has_loaded = False
        # Row groups that are being read.
        self._under_way = 0
        # By the key of the file.
        self._footers: OrderedDict[str, ParquetFooter] = OrderedDict()
        self._footers_bytes = 0
        # By the key of the file whose footer is read.
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, location: RowGroupLocation, *, outlived: Outlived | None = None) -> CachedRowGroup:
        """Returns the group, or a damaged one where it, or the footer of its file, is not what the manifest says.

        `outlived`: called where the read is given up while a thread decodes the group, as DecodeThreads.run says.
        Raises NotFound, InvalidArgument (the object ends before the group), and what else the store raises.
        """
        self._under_way += 1
        try:
            await self._load()
            group = await self._read_from_disk(location, outlived) or await self._read_from_bucket(location, outlived)
        except Corrupt as error:
            group = damaged_group(location, error)
        finally:
            self._under_way -= 1
        if group.damage is not None:
            log.error("%s", group.damage)
        return group

    async def _load(self) -> None:
        """Imports the Parquet decoder once, in a thread. Later imports cost nothing."""
        if not self._has_loaded:
            async with self._loading:
                if not self._has_loaded:
                    await self._decoding.run(_load_parquet)
                    self._has_loaded = True

    async def _read_from_disk(self, location: RowGroupLocation, outlived: Outlived | None) -> CachedRowGroup | None:
        """Returns the group on the local disk; None where it is missing, or differs from what was stored."""
        if self._disk is None or (body := await self._disk.get(location.identity)) is None:
            return None
        footer = await self._footer(location)
        try:
            group = await self._opened(location, [body], footer, outlived)
            self._counters.disk_reads += 1
            return group
        except Corrupt as error:
            log.warning("a copy on the local disk is damaged, so it is read from the bucket again: %s", error)
            await self._disk.drop(location.identity)
            return None

    async def _read_from_bucket(self, location: RowGroupLocation, outlived: Outlived | None) -> CachedRowGroup:
        footer, body = await self._footer_and_body(location)
        self._counters.bucket_reads += 1
        if self._disk is None:
            only = [body]
            del body  # the bytes go when they are decoded, before the batches are made
            return await self._opened(location, only, footer, outlived)
        group = await self._opened(location, [body], footer, outlived)
        await self._disk.put(location.identity, body)
        return group

    async def _opened(
        self, location: RowGroupLocation, only: list[bytes], footer: ParquetFooter, outlived: Outlived | None
    ) -> CachedRowGroup:
        """`only`: holds the bytes of the group, and is emptied when they are decoded. Raises Corrupt."""
        from segments.history.parquet_file import read_row_group

        def decoded() -> list[HistoryBatch]:
            columns = read_row_group(only[0], location.group, footer)
            only.clear()
            batches = encode_row_group(
                columns, end_offset=location.end_offset, epochs=location.epochs, batch_bytes_max=GROUP_BATCH_BYTES
            )
            del columns
            if self._under_way == 1:  # else what Arrow took for these columns is kept for those of the next group
                pa.default_memory_pool().release_unused()
            return batches

        return group_of(location, await self._decoding.run(decoded, outlived=outlived))

    async def _footer_and_body(self, location: RowGroupLocation) -> tuple[ParquetFooter, bytes]:
        file = location.file
        if location.key not in self._footers and file.footer_start - location.end <= SHARED_GET_BYTES:
            async with self._one_at_a_time(location):
                if location.key not in self._footers:
                    body = await self._store.get(location.key, start=location.start, end=file.size_bytes)
                    footer = self._parsed(location, body[file.footer_start - location.start :])
                    return footer, body[: location.end - location.start]
        footer = await self._footer(location)
        return footer, await self._store.get(location.key, start=location.start, end=location.end)

    async def _footer(self, location: RowGroupLocation) -> ParquetFooter:
        """Raises Corrupt where it is damaged; that is not kept."""
        async with self._one_at_a_time(location):
            held = self._footers.get(location.key)
            if held is not None:
                self._footers.move_to_end(location.key)
                return held
            file = location.file
            return self._parsed(location, await self._store.get(location.key, start=file.footer_start, end=file.size_bytes))

    def _one_at_a_time(self, location: RowGroupLocation) -> asyncio.Lock:
        return self._reading.setdefault(location.key, asyncio.Lock())

    def _parsed(self, location: RowGroupLocation, body: bytes) -> ParquetFooter:
        """Parses the footer, and keeps it."""
        from segments.history.parquet_file import parse_parquet_footer

        footer = parse_parquet_footer(body, location.file, location.key)
        self._footers[location.key] = footer
        self._footers_bytes += footer.memory_bytes
        while self._footers_bytes > FOOTERS_BYTES_MAX:
            _, oldest = self._footers.popitem(last=False)
            self._footers_bytes -= oldest.memory_bytes
        return footer


def _load_parquet() -> None:
    import segments.history.parquet_file  # noqa: F401  # only loaded, so that no later read waits for it


# What is added to the process's own niceness: a third of the share of others where cores are short. With much more, a row group
# would take longer than a read may on a machine that is full.
NICE: Final = 5

_Made = TypeVar("_Made")
# Called where a thread is left at work; what it answers is called when the thread has ended.
Outlived = Callable[[], Callable[[], None]]


def threads_max(cores: int) -> int:
    return max(1, cores // 2)


class DecodeThreads:
    """Runs decoding in few threads, which start with the first work and end with this object."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(threads_max(_cores()), thread_name_prefix="decoding", initializer=_step_back)

    async def run(self, work: Callable[[], _Made], *, outlived: Outlived | None = None) -> _Made:
        """Returns the result of `work` in a thread, or raises its error. A caller cancelled before its turn frees its memory.

        A caller cancelled later leaves a thread at work, with all that it holds; `outlived` reports it, on the event loop.
        """
        loop = asyncio.get_running_loop()
        waiting = [work]
        ended = False
        on_ended: list[Callable[[], None]] = []

        def begin() -> _Made:
            begun = waiting.pop()
            try:
                return begun()
            finally:
                del begun
                with suppress(RuntimeError):  # the loop has ended, and with it the counting
                    loop.call_soon_threadsafe(end)

        def end() -> None:
            nonlocal ended
            ended = True
            for notify in on_ended:
                notify()

        try:
            return await loop.run_in_executor(self._threads, begin)
        except asyncio.CancelledError:
            if not _taken(waiting) and not ended and outlived is not None:
                on_ended.append(outlived())
            raise


def _taken(waiting: list[Callable[[], _Made]]) -> bool:
    """Removes queued work and returns whether it was queued. Otherwise the queue keeps a row group's bytes until its turn."""
    try:
        waiting.pop()
    except IndexError:
        return False
    return True


def _cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process: only here each thread has a niceness of its own
        with suppress(OSError):  # a sandbox may forbid it: history is decoded all the same, where an error here would end the pool
            os.nice(NICE)
