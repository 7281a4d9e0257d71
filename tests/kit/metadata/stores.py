"""The metadata stores that the contract suite runs against. A new store adds its opener to STORES, and passes the same tests.

On etcd, leases end by the test's clock as well: what is due is revoked, which is what etcd itself does with a lease that has
expired. That real time ends them, too, is tested in tests/metadata/store/etcd/test_store.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import pytest

from metadata.model import Revision
from metadata.store.etcd.store import EtcdStore
from metadata.store.interface import NO_LEASE, Compare, Delete, LeaseId, MetadataStore, Operation, Put, WatchBatch
from metadata.store.sqlite.store import SqliteStore
from tests.kit.etcd_server import OF_THE_SYSTEM, SHARED, SharedEtcd, settings
from tests.simulation.etcd_model import EtcdModel

T = TypeVar("T")
NOW = Revision(0)
# How long a test waits for what must happen before it fails. Nothing waits this long when all is well.
PATIENCE_S = 60


@dataclass
class OpenStore:
    """A store under test, of which the test has the keys under `prefix` to itself."""

    store: MetadataStore
    prefix: str
    # Lets so many seconds go by for leases, and sees to it that those which are due have ended.
    pass_time: Callable[[float], Awaitable[None]]
    compact: Callable[[Revision], Awaitable[None]]
    # Number of transactions of 10 kB that may be on their way to a watch that is not read.
    sent_ahead: int = 0

    def key(self, name: str) -> str:
        return self.prefix + name

    async def put(self, name: str, value: bytes = b"", lease: LeaseId = NO_LEASE) -> Revision:
        return await self.write(Put(self.key(name), value, lease))

    async def delete(self, name: str) -> Revision:
        return await self.write(Delete(self.key(name)))

    async def write(self, *operations: Operation, compares: Sequence[Compare] = ()) -> Revision:
        result = await self.store.transact(compares, operations)
        assert result.succeeded
        return result.revision

    async def names(self, revision: Revision = NOW) -> dict[str, bytes]:
        found = await self.store.range(self.prefix, revision=revision)
        return {item.key.removeprefix(self.prefix): item.value for item in found.items}

    async def watched(self, from_revision: Revision, transactions: int) -> list[WatchBatch]:
        """So many transactions under the prefix from a revision on."""
        return await take(self.store.watch(self.prefix, from_revision), transactions)


class Opener(Protocol):
    def __call__(self, directory: Path) -> AbstractAsyncContextManager[OpenStore]: ...


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_sqlite(directory: Path) -> AsyncIterator[OpenStore]:
    clock = Clock()
    store = SqliteStore(directory / "metadata.sqlite", clock=clock)

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await store.get("/any")  # every call first ends the leases that are due

    try:
        yield OpenStore(store, "/contract/", pass_time, store.compact)
    finally:
        await store.close()


@asynccontextmanager
async def open_model(directory: Path) -> AsyncIterator[OpenStore]:
    """The etcd of the simulation."""
    clock = Clock()
    store = EtcdModel(clock)

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await store.get("/any")  # every call first ends the leases that are due

    try:
        yield OpenStore(store, "/contract/", pass_time, store.compact)
    finally:
        await store.close()


class EtcdWithClock(EtcdStore):
    """An etcd whose leases end by a clock that the test moves: for etcd itself they are much longer."""

    STRETCHED = 20

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(settings(url))
        self._clock = clock
        self._leases: dict[LeaseId, tuple[float, float]] = {}  # time to live, and when it ends by the clock; seconds

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        lease = await super().grant_lease(self.STRETCHED * ttl_s)
        self._leases[lease] = (ttl_s, self._clock() + ttl_s)
        return lease

    async def keep_alive(self, lease: LeaseId) -> float:
        answered = await super().keep_alive(lease)
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = (ttl_s, self._clock() + ttl_s)
        return answered / self.STRETCHED

    async def end_leases(self, *, all_of_them: bool) -> None:
        for lease, (_, ends_at) in tuple(self._leases.items()):
            if all_of_them or ends_at <= self._clock():
                await self.revoke_lease(lease)
                del self._leases[lease]


@asynccontextmanager
async def open_etcd(directory: Path, *, shared: SharedEtcd = SHARED) -> AsyncIterator[OpenStore]:
    clock = Clock()
    store = EtcdWithClock(shared.member.url, clock)

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await store.end_leases(all_of_them=False)

    try:
        yield OpenStore(store, f"/contract/{uuid.uuid4().hex}/", pass_time, shared.member.compact, sent_ahead=400)
    finally:
        await store.end_leases(all_of_them=True)  # or they would end, and raise the revision, during the next test
        await store.close()


STORES: dict[str, Opener] = {"sqlite": open_sqlite, "model": open_model, "etcd": open_etcd}
if OF_THE_SYSTEM is not None:
    STORES["etcd of the system"] = partial(open_etcd, shared=OF_THE_SYSTEM)
EACH_STORE = [pytest.param(opener, id=name, marks=[pytest.mark.slow] * name.startswith("etcd")) for name, opener in STORES.items()]


async def take(batches: AsyncIterator[WatchBatch], count: int) -> list[WatchBatch]:
    """The first `count` of a watch, which is then closed."""
    taken: list[WatchBatch] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(cast(Any, batches)):
        while len(taken) < count:
            taken.append(await anext(batches))
    return taken


async def until(happened: Callable[[], bool]) -> None:
    """Lets the loop run until something has happened."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if happened():
                return
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(test)
