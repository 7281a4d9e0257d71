"""Implements MetadataStore on one SQLite file, for one broker process. Nothing to install, no server.

One thread does all the work of SQLite (mvcc.py), so the event loop never waits for the disk. A watch holds nothing in
memory: it reads on from its revision in the table whenever the store has advanced, so a slow watcher costs nothing but the
history that is kept. Invariants: what a call answered survives loss of power; every watcher sees every transaction once, and in
order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from metadata.errors import InvalidArgument, Stopping, Throttled, TidelogError
from metadata.model import Revision
from metadata.store.interface import Compare, KeyValue, LeaseId, Operation, RangeResult, TransactionResult, WatchBatch
from metadata.store.sqlite.mvcc import SqliteMvcc

# Revisions of history that are kept, for watches and older ranges.
HISTORY_REVISIONS = 10_000
# Bound on calls that wait for the thread; the next one is refused as Throttled.
CALLS_PENDING_MAX = 1024
HOUSEKEEPING_INTERVAL_S = 1.0

NOW = Revision(0)

log = logging.getLogger(__name__)
T = TypeVar("T")


class SqliteStore:
    """Stores metadata in the SQLite file `path`. Its owner runs `run()` as a task, and calls `close()` at the end.

    Opening blocks for some milliseconds, once. Raises Rejected (open in another process, or not our file), Denied, Corrupt.
    Calls raise as MetadataStore says, Stopping after close(), and Throttled when CALLS_PENDING_MAX calls wait already.
    A cancelled transact may still be committed. The thread that commits also tells the watchers, so they see it in any case.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        history_revisions: int = HISTORY_REVISIONS,
    ) -> None:
        self._history = SqliteMvcc(Path(path), clock)
        self._history_revisions = history_revisions
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidelog-metadata")
        self._pending = 0
        self._closing = False
        self._advanced = asyncio.Event()  # set, and replaced, when the revision has grown

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda history: history.get(key))

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        return await self._call(lambda history: history.range(prefix, start_after, limit, revision))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._call(lambda history: history.transact(compares, operations))

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self._call(lambda history: history.grant_lease(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._call(lambda history: history.keep_alive(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._call(lambda history: history.revoke_lease(lease))

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        if from_revision < 1:
            raise InvalidArgument(f"a watch begins at a revision of 1 or more, not at {from_revision}")
        return self._watch(prefix, from_revision)

    async def run(self) -> None:
        """Ends expired leases and compacts history, until cancelled. Failures are logged and retried."""
        failing = False
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            try:
                await self._call(lambda history: None)  # every call ends the leases that are due
                await self._compact_history()
                failing = False
            except TidelogError as error:
                if not failing:
                    log.warning("metadata housekeeping failed: %s; retrying every second", error)
                failing = True

    async def compact(self, to_revision: Revision) -> None:
        while await self._call(lambda history: history.compact(to_revision)):
            pass

    async def close(self) -> None:
        """Waits for the calls under way, ends every watch with Stopping, and closes the file. Twice is no error."""
        if self._closing:
            return
        self._closing = True
        self._advanced.set()
        closed = asyncio.get_running_loop().run_in_executor(self._thread, self._history.close)
        try:
            await asyncio.shield(closed)
        finally:
            self._thread.shutdown(wait=True)

    async def _watch(self, prefix: str, from_revision: Revision) -> AsyncGenerator[WatchBatch, None]:
        next_revision = from_revision
        while True:
            advanced = self._advanced  # taken before the read: what is written after the read sets it
            batches, next_revision = await self._call(partial(SqliteMvcc.events, prefix=prefix, from_revision=next_revision))
            for batch in batches:
                yield batch
            if not batches:
                await advanced.wait()

    async def _compact_history(self) -> None:
        """Compacts by a tenth more than is due, so that it seldom runs."""
        kept = self._history.revision - self._history.compacted_revision
        if kept > self._history_revisions + self._history_revisions // 10:
            await self.compact(Revision(self._history.revision - self._history_revisions))

    async def _call(self, work: Callable[[SqliteMvcc], T]) -> T:
        """Runs `work` in the thread, after ending the leases that are due."""
        if self._closing:
            raise Stopping("the metadata store is closed")
        if self._pending >= CALLS_PENDING_MAX:
            raise Throttled(f"{self._pending} calls wait for the metadata store", pending=self._pending)
        loop = asyncio.get_running_loop()

        def in_thread() -> T:
            before = self._history.revision
            try:
                self._history.expire_leases()
                return work(self._history)
            finally:
                if self._history.revision != before:
                    loop.call_soon_threadsafe(self._announce)

        self._pending += 1
        try:
            return await loop.run_in_executor(self._thread, in_thread)
        finally:
            self._pending -= 1

    def _announce(self) -> None:
        if not self._closing:
            advanced, self._advanced = self._advanced, asyncio.Event()
            advanced.set()
