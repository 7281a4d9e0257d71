"""etcd in memory, under the clock of the run: keys and all their versions, leases, watches. It answers at once and never fails.

    versions    by key, each (revision, what the key held from then on; None where it was deleted)
    log         every transaction, in order: what the watches tell
    leases      end by the clock, on time or `late_s` late; `restart` grants each its whole time again, as a new leader of etcd does

It passes the contract suite of the metadata stores (tests/metadata). Invariant: what a call does happens at one instant: no call
but `run` and a watch that has caught up ever waits.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from metadata.errors import InvalidArgument, Stopping, Unavailable
from metadata.model import Revision
from metadata.store.interface import (
    NO_LEASE,
    NOW,
    Compare,
    Delete,
    Event,
    KeyValue,
    LeaseId,
    LeaseLost,
    Operation,
    Put,
    RangeResult,
    RevisionCompacted,
    TransactionResult,
    WatchBatch,
)
from metadata.store.transaction_limits import check_key, check_transaction, encode_key


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    due_s: float


@dataclass(eq=False, slots=True)
class _Watcher:
    """One that has seen everything before `from_revision`, and waits for what touches its prefix."""

    prefix: str
    from_revision: Revision
    woken: asyncio.Future[Revision]


class EtcdModel:
    """A MetadataStore. Its owner runs `run()` as a task where leases shall end by themselves, and else with the next call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.revision = Revision(1)
        self.late_s = 0.0
        """So much later than they are due, leases end."""
        self.ends_of_leases: set[Revision] = set()
        """Transactions by which leases ended because they were not renewed, and not because they were revoked."""
        self._clock = clock
        self._keys: list[str] = []  # all that have a version, in order; which for UTF-8 is that of its bytes
        self._versions: dict[str, list[tuple[Revision, KeyValue | None]]] = {}
        self._log: list[WatchBatch] = []
        self._compacted = Revision(0)
        self._leases: dict[LeaseId, _Lease] = {}
        self._next_lease = 1
        self._granted = asyncio.Event()
        self._watchers: dict[_Watcher, None] = {}
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        self._begin()
        check_key(key)
        return self._live(key)

    def copy(self) -> EtcdModel:
        """Another store with what this one holds now, as from a copy of its files. Its leases have their whole time again."""
        copied = EtcdModel(self._clock)
        copied.revision = self.revision
        copied._keys = list(self._keys)
        copied._versions = {key: list(versions) for key, versions in self._versions.items()}
        copied._log = list(self._log)
        copied._compacted = self._compacted
        copied._leases = {lease: _Lease(kept.ttl_s, kept.due_s) for lease, kept in self._leases.items()}
        copied._next_lease = self._next_lease
        copied.ends_of_leases = set(self.ends_of_leases)
        return copied

    def peek(self, key: str) -> KeyValue | None:
        """For the judge: what stands there now, which no request tells."""
        return self._live(key)

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        self._begin()
        if limit < 0 or revision < 0 or revision > self.revision:
            raise InvalidArgument(f"no range at revision {revision} with limit {limit}: the store is at {self.revision}")
        at = revision or self.revision
        if at < self._compacted:
            raise RevisionCompacted(self._compacted)
        encode_key(prefix)
        encode_key(start_after)
        items: list[KeyValue] = []
        for key in self._under(prefix, max(prefix, start_after + "\0" if start_after else "")):
            held = self._held(key, at)
            if held is None:
                continue
            if limit and len(items) == limit:
                return RangeResult(tuple(items), at, more=True)
            items.append(held)
        return RangeResult(tuple(items), at, more=False)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        self._begin()
        check_transaction(compares, operations)
        if not all(map(self._holds, compares)):
            return TransactionResult(succeeded=False, revision=self.revision)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease != NO_LEASE and operation.lease not in self._leases:
                raise LeaseLost(f"{operation.key}: lease {operation.lease} has ended")
        self._write(operations)
        return TransactionResult(succeeded=True, revision=self.revision)

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        self._begin()
        if not 0 < ttl_s <= 10**9:  # also refuses NaN
            raise InvalidArgument(f"a lease of {ttl_s} s is not between 0 and 10^9 s")
        lease = LeaseId(self._next_lease)
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl_s, self._clock() + ttl_s)
        self._granted.set()
        return lease

    async def keep_alive(self, lease: LeaseId) -> float:
        self._begin()
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} has ended")
        kept = self._leases[lease]
        kept.due_s = self._clock() + kept.ttl_s
        return kept.ttl_s

    async def revoke_lease(self, lease: LeaseId) -> None:
        self._begin()
        self._end_lease(lease)

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        if from_revision < 1:
            raise InvalidArgument(f"a watch begins at a revision of 1 or more, not at {from_revision}")
        return self._watch(prefix, from_revision)

    async def close(self) -> None:
        self._closed = True
        self._break_watches(Stopping("the metadata store is closed"))

    # ── what etcd does by itself, and what befalls it ───────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Ends leases that are not renewed, until cancelled."""
        while True:
            if not self._leases:
                self._granted.clear()
                await self._granted.wait()
            until_s = min(lease.due_s for lease in self._leases.values()) + self.late_s
            await asyncio.sleep(max(0.001, until_s - self._clock()))  # for rounding: a clock that stands would end none
            self._end_leases()

    async def compact(self, to_revision: Revision) -> None:
        """Drops history: ranges before `to_revision` and watches from it or earlier then raise RevisionCompacted."""
        self._begin()
        if to_revision > self.revision:
            raise InvalidArgument(f"cannot compact to revision {to_revision}: the store is at {self.revision}")
        if to_revision <= self._compacted:
            return
        self._compacted = to_revision
        del self._log[: bisect_left(self._log, to_revision + 1, key=lambda batch: batch.revision)]
        for key in list(self._keys):
            versions = self._versions[key]
            first = max((index for index, (revision, _) in enumerate(versions) if revision <= to_revision), default=0)
            del versions[:first]
            if versions[0][1] is None and versions[0][0] <= to_revision:
                del versions[0]
            if not versions:
                del self._versions[key], self._keys[bisect_left(self._keys, key)]

    def restart(self) -> None:
        """Every watch breaks, and every lease has its whole time again."""
        self._end_leases()
        for lease in self._leases.values():
            lease.due_s = self._clock() + lease.ttl_s
        self._break_watches(Unavailable("the metadata store restarts"))

    # ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        if self._closed:
            raise Stopping("the metadata store is closed")
        self._end_leases()

    def _live(self, key: str) -> KeyValue | None:
        versions = self._versions.get(key)
        return versions[-1][1] if versions else None

    def _held(self, key: str, at: Revision) -> KeyValue | None:
        for revision, held in reversed(self._versions[key]):
            if revision <= at:
                return held
        return None

    def _under(self, prefix: str, start: str) -> Iterator[str]:
        for index in range(bisect_left(self._keys, start), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                return
            yield self._keys[index]

    def _holds(self, compare: Compare) -> bool:
        live = self._live(compare.key)
        held, asked = (live.mod_revision if live is not None else 0), compare.mod_revision
        return {"=": held == asked, "!=": held != asked, "<": held < asked, ">": held > asked}[compare.is_]

    def _write(self, operations: Sequence[Operation]) -> None:
        revision = Revision(self.revision + 1)
        events: list[Event] = []
        for operation in operations:
            if isinstance(operation, Put):
                self._put(operation, revision)
                events.append(Event("put", operation.key, operation.value, revision))
            elif isinstance(operation, Delete):
                events += self._delete([operation.key], revision)
            else:
                events += self._delete(list(self._under(operation.prefix, operation.prefix)), revision)
        if events:
            self.revision = revision
            self._log.append(WatchBatch(revision, tuple(events)))
            self._wake_watchers(events)

    def _put(self, operation: Put, revision: Revision) -> None:
        live = self._live(operation.key)
        create_revision, version = (live.create_revision, live.version + 1) if live is not None else (revision, 1)
        if operation.key not in self._versions:
            insort(self._keys, operation.key)
            self._versions[operation.key] = []
        held = KeyValue(operation.key, operation.value, create_revision, revision, version, operation.lease)
        self._versions[operation.key].append((revision, held))

    def _delete(self, keys: Sequence[str], revision: Revision) -> list[Event]:
        gone = [key for key in keys if self._live(key) is not None]
        for key in gone:
            self._versions[key].append((revision, None))
        return [Event("delete", key, b"", revision) for key in gone]

    # ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end_leases(self) -> None:
        """Those that are due, each in a transaction of its own."""
        due_s = self._clock() - self.late_s
        for lease in [lease for lease, kept in self._leases.items() if kept.due_s <= due_s]:
            before = self.revision
            self._end_lease(lease)
            if self.revision != before:
                self.ends_of_leases.add(self.revision)

    def _end_lease(self, lease: LeaseId) -> None:
        if self._leases.pop(lease, None) is not None:
            leased = ((key, self._live(key)) for key in self._keys)
            self._write([Delete(key) for key, live in leased if live is not None and live.lease == lease])

    # ── watches ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self, prefix: str, from_revision: Revision) -> AsyncGenerator[WatchBatch, None]:
        next_revision = from_revision
        while True:
            self._begin()
            if next_revision <= self._compacted:
                raise RevisionCompacted(Revision(self._compacted + 1))
            batch = self._first_batch(prefix, next_revision)
            if batch is None:
                next_revision = await self._wait_for(prefix, Revision(max(next_revision, self.revision + 1)))
            else:
                next_revision = Revision(batch.revision + 1)
                yield batch

    def _first_batch(self, prefix: str, from_revision: Revision) -> WatchBatch | None:
        index = max(0, from_revision - self._log[0].revision) if self._log else 0  # each revision above the first is one batch
        for batch in self._log[index:]:
            events = tuple(event for event in batch.events if event.key.startswith(prefix))
            if events:
                return batch if len(events) == len(batch.events) else WatchBatch(batch.revision, events)
        return None

    async def _wait_for(self, prefix: str, from_revision: Revision) -> Revision:
        """The first revision, from one on, that touches a prefix."""
        watcher = _Watcher(prefix, from_revision, asyncio.get_running_loop().create_future())
        self._watchers[watcher] = None
        try:
            return await watcher.woken
        finally:
            self._watchers.pop(watcher, None)

    def _wake_watchers(self, events: Sequence[Event]) -> None:
        for watcher in list(self._watchers):
            if self.revision >= watcher.from_revision and any(event.key.startswith(watcher.prefix) for event in events):
                del self._watchers[watcher]
                if not watcher.woken.done():
                    watcher.woken.set_result(self.revision)

    def _break_watches(self, why: Stopping | Unavailable) -> None:
        for watcher in list(self._watchers):
            if not watcher.woken.done():
                watcher.woken.set_exception(why)
        self._watchers.clear()
