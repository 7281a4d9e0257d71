"""Batches many small guarded writes into few transactions: writes that come during one transaction go into the next.

    write(compare, operations) ─┐                      all compares hold ─▶ each caller gets the revision
    write(compare, operations) ─┼─▶ one transaction ──▶ else ─────────────▶ split in halves, until the failing one is found
    write(compare, operations) ─┘   at most 128 of each

A write may also rely on a view of other keys (`UnchangedSince`), which many writes share. After a failure the batcher reads whether
such a view was outdated. Those writes fail at once, and the others are tried again.

Invariants: one transaction is under way at a time, and writes happen in the order of the calls; no write fails for the compare or
the fault of another; a write whose caller hangs up is written all the same. Where an outcome is unknown, no other write with the
same compare follows: the unknown one may land later, over what was written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metadata.errors import OutcomeUnknown, Rejected, Stopping, Throttled, TidelogError
from metadata.model import Revision
from metadata.store.interface import OPERATIONS_MAX, Compare, Delete, MetadataStore, Put

# etcd takes requests of 1.5 MiB.
TRANSACTION_BYTES_MAX: Final = 1 << 20
WAITING_MAX: Final = 20_000
WAITING_BYTES_MAX: Final = 64 << 20


class CompareFailed(Exception):
    """Reports that nothing was written: the key differs from what was expected, or may change at any moment."""


class Outdated(Exception):
    """Reports that nothing was written: the view that the write relies on lacks a change."""


class UnchangedSince(NamedTuple):
    """Holds until a transaction after `revision` writes `key`, which is never deleted: it never holds again."""

    key: str
    revision: Revision

    @property
    def compare(self) -> Compare:
        return Compare(self.key, self.revision + 1, "<")


class _Write(NamedTuple):
    compare: Compare
    operations: Sequence[Put | Delete]
    keys: Sequence[str]
    view: UnchangedSince | None
    size_bytes: int
    written: asyncio.Future[Revision]


class WriteBatcher:
    """Batches writes into transactions. Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, *, linger_s: float, unknown: Callable[[str], None]) -> None:
        """`linger_s`: how long the first write of a transaction waits for others, in seconds.

        `unknown` is called with the key of a compare as soon as the outcome of a write that it guards is unknown: from then on
        only a write of that very key may be guarded by that compare.
        """
        self._store = store
        self._linger_s = linger_s
        self._unknown = unknown
        self._queue: deque[_Write] = deque()
        self._waiting_bytes = self._waiting_operations = 0
        self._filled = asyncio.Event()
        self._stopped = False
        # Transactions that were attempted.
        self.transactions = 0

    async def write(self, compare: Compare, operations: Sequence[Put | Delete], *, view: UnchangedSince | None = None) -> Revision:
        """Writes at most 128 operations of different keys, and returns the revision.

        Raises CompareFailed, Outdated if `view` does not hold, Unavailable, Rejected, OutcomeUnknown.
        """
        if self._stopped:
            raise _stopping()
        if len(self._queue) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            raise Throttled(f"{len(self._queue)} writes of consumer groups wait for the metadata store")
        keys = [operation.key for operation in operations]
        size_bytes = len(compare.key) + sum(map(len, keys))
        size_bytes += sum([len(operation.value) for operation in operations if isinstance(operation, Put)])
        write = _Write(compare, operations, keys, view, size_bytes, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        self._waiting_bytes += size_bytes
        self._waiting_operations += len(operations)
        self._filled.set()
        return await write.written

    async def run(self) -> None:
        try:
            while True:
                await self._filled.wait()
                if self._waiting_operations < OPERATIONS_MAX:  # else they fill a transaction
                    await asyncio.sleep(self._linger_s)
                await self._transact(self._next())
                if not self._queue:
                    self._filled.clear()
        finally:
            self._stopped = True
            for write in self._queue:
                _fail(write, _stopping())
            self._queue.clear()

    def _next(self) -> list[_Write]:
        """Takes as many writes as fit one transaction, which writes a key once."""
        taken: list[_Write] = []
        operations = size_bytes = 0
        keys: set[str] = set()
        views: set[UnchangedSince] = set()
        while self._queue:
            write = self._queue[0]
            operations += len(write.operations)
            size_bytes += write.size_bytes
            if write.view is not None:
                views.add(write.view)
            compares_max = len(taken) + 1 + len(views)
            is_full = operations > OPERATIONS_MAX or compares_max > OPERATIONS_MAX or size_bytes > TRANSACTION_BYTES_MAX
            if taken and (is_full or not keys.isdisjoint(write.keys)):
                break
            keys.update(write.keys)
            self._waiting_bytes -= write.size_bytes
            self._waiting_operations -= len(write.operations)
            taken.append(self._queue.popleft())
        return taken

    async def _transact(self, writes: Sequence[_Write]) -> None:
        """Writes all of them at once, or one part after the other."""
        parts = deque([list(writes)])
        while parts:
            part = parts.popleft()
            compares = list(dict.fromkeys(write.compare for write in part))
            views = list(dict.fromkeys(write.view for write in part if write.view is not None))
            self.transactions += 1
            try:
                result = await self._store.transact(
                    [*compares, *(view.compare for view in views)], [operation for write in part for operation in write.operations]
                )
                outdated = await self._outdated(views) if views and not result.succeeded else set[UnchangedSince]()
            except OutcomeUnknown as error:
                self._fail_unknown(part, error)
                parts = deque(kept for kept in (self._still_sound(later, compares) for later in parts) if kept)
                self._queue = deque(self._still_sound(self._queue, compares))
                self._waiting_bytes = sum(write.size_bytes for write in self._queue)
                self._waiting_operations = sum(len(write.operations) for write in self._queue)
            except Rejected as error:
                parts.extendleft(reversed(_halves(part)))
                if len(part) == 1:
                    _fail(part[0], error)
            except TidelogError as error:
                for write in part:
                    _fail(write, error)
            except BaseException:
                self._fail_unknown(part, OutcomeUnknown("the broker is shutting down while it writes"))
                for write in (write for later in parts for write in later):
                    _fail(write, _stopping())
                raise
            else:
                if result.succeeded:
                    for write in part:
                        if not write.written.done():
                            write.written.set_result(result.revision)
                elif outdated:
                    if current := [write for write in part if write.view not in outdated]:
                        parts.appendleft(current)
                    for write in part:
                        if write.view in outdated:
                            _fail(write, Outdated())
                elif len(compares) == 1:
                    for write in part:
                        _fail(write, CompareFailed(compares[0].key))
                else:
                    parts.extendleft(reversed(_halves(part)))

    async def _outdated(self, views: Sequence[UnchangedSince]) -> set[UnchangedSince]:
        """Returns the views that do not hold any more. All others still held when an earlier transaction was compared."""
        written = {key: await self._store.get(key) for key in {view.key for view in views}}
        return {view for view in views if (kept := written[view.key]) is not None and kept.mod_revision > view.revision}

    def _fail_unknown(self, part: Sequence[_Write], error: OutcomeUnknown) -> None:
        for key in dict.fromkeys(write.compare.key for write in part):
            self._unknown(key)
        for write in part:
            _fail(write, error)

    def _still_sound(self, waiting: Sequence[_Write] | deque[_Write], unknown: Sequence[Compare]) -> list[_Write]:
        """Returns the writes that survive a late write: one that writes the compared key fences it."""
        sound: list[_Write] = []
        for write in waiting:
            if write.compare in unknown and all(operation.key != write.compare.key for operation in write.operations):
                _fail(write, CompareFailed(write.compare.key))
            else:
                sound.append(write)
        return sound


def _halves(writes: list[_Write]) -> list[list[_Write]]:
    """Splits the writes; returns no parts of a single one."""
    middle = len(writes) // 2
    return [writes[:middle], writes[middle:]] if middle else []


def _fail(write: _Write, error: Exception) -> None:
    if not write.written.done():
        write.written.set_exception(error)


def _stopping() -> Stopping:
    return Stopping("the broker is shutting down")
