"""An object store in a local directory: create-only by link(2), durable by fsync of the file and of its directory.

Disk calls run in threads of the store's own, so that the event loop never waits for a disk; reads have threads apart from
writes, so that a slow fsync never holds up a reader. What the calls are, and why in this order: directory_files.py.

Several processes may share a directory; the file system must have hard links and obey fsync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from segments.object_store.directory_files import DirectoryFiles
from segments.object_store.interface import Buffer, ListPage, Tail
from segments.object_store.store_clock import StoreClock
from segments.object_store.validation import check_key, check_list, check_range, check_tail

_Answer = TypeVar("_Answer")


class DirectoryObjectStore:
    """Made by `DirectoryObjectStore.open`. Use and close it in one event loop.

    Beside the errors of ObjectStore: Unavailable for a full disk, Denied for a directory that is missing, read-only or on a
    file system without hard links, InvalidArgument for a key below another key.

    A create or delete that is cancelled goes on in its thread to its end: the object is there whole or not at all, and the
    buffers must stay as they are until close. `crc32c` is not checked: there is no wire on the way to a disk, and reading 8 MiB
    from memory once more takes 0.6 ms, 5 % of such a PUT. Batches and footers are checked when they are read back.
    """

    def __init__(self, files: DirectoryFiles, writers: ThreadPoolExecutor, readers: ThreadPoolExecutor) -> None:
        self.url = files.url
        self._files = files
        self._writers = writers
        self._readers = readers

    @classmethod
    async def open(
        cls,
        root: Path,
        *,
        make_root: bool = False,
        write_threads: int = 8,
        read_threads: int = 8,
        clock: StoreClock | None = None,
    ) -> DirectoryObjectStore:
        """Opens the store in the directory `root`, which must be there; or its parent, where `make_root` says to make it. Else
        Denied."""
        files = DirectoryFiles(root, clock)
        store = cls(
            files,
            ThreadPoolExecutor(write_threads, thread_name_prefix="bucket-write"),
            ThreadPoolExecutor(read_threads, thread_name_prefix="bucket-read"),
        )
        try:
            await _in_thread(store._readers, lambda: files.open_root(make=make_root))
        except BaseException:
            await store.close()
            raise
        return store

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        check_key(key)
        await _in_thread(self._writers, lambda: self._files.create(key, body))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(key, start, end)
        return await _in_thread(self._readers, lambda: self._files.read(key, start, end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        check_key(key)
        check_tail(key, bytes_max)
        return await _in_thread(self._readers, lambda: self._files.read_tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        check_list(prefix, start_after, limit)
        return await _in_thread(self._readers, lambda: self._files.list(prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        check_key(key)
        await _in_thread(self._writers, lambda: self._files.delete(key))

    async def close(self) -> None:
        """Waits for what is under way, cancelled or not."""
        for pool in (self._writers, self._readers):
            await asyncio.to_thread(pool.shutdown)


async def _in_thread(pool: ThreadPoolExecutor, call: Callable[[], _Answer]) -> _Answer:
    return await asyncio.get_running_loop().run_in_executor(pool, call)
