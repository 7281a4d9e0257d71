"""A metadata store that remembers when it has answered last, so that the doors can tell how old what they describe may be, and
counts what it is asked.

It asks nothing by itself: a broker renews its lease every third of session_timeout_ms. Nothing is changed about what the store
answers or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeVar

from metadata.errors import TidelogError
from metadata.measurements import CallMeter
from metadata.model import Revision
from metadata.store.etcd.settings import EtcdStatus
from metadata.store.interface import (
    NOW,
    Compare,
    KeyValue,
    LeaseId,
    LeaseLost,
    MetadataStore,
    Operation,
    RangeResult,
    TransactionResult,
    WatchBatch,
)

T = TypeVar("T")

OPERATIONS: Final = ("get", "range", "transact", "lease", "compact")


class HeardMetadata:
    """MetadataStore over `store`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._heard_s = asyncio.get_running_loop().time()
        self.meter = CallMeter(OPERATIONS)
        self.watch_events = 0

    @property
    def silent_s(self) -> float:
        """For how long the store has not answered anything. Without trouble at most a third of session_timeout_ms."""
        return asyncio.get_running_loop().time() - self._heard_s

    @property
    def etcd(self) -> EtcdStatus | None:
        """What etcd tells of itself, where the store is etcd."""
        status = getattr(self._store, "status", None)
        return status if isinstance(status, EtcdStatus) else None

    async def get(self, key: str) -> KeyValue | None:
        return await self._heard("get", self._store.get(key))

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        asked = self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)
        return await self._heard("range", asked)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._heard("transact", self._store.transact(compares, operations))

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self._heard("lease", self._store.grant_lease(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._heard("lease", self._store.keep_alive(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._heard("lease", self._store.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            self._note()
            self.watch_events += len(batch.events)
            yield batch

    async def compact(self, to_revision: Revision) -> None:
        await self._heard("compact", self._store.compact(to_revision))

    async def close(self) -> None:
        await self._store.close()

    async def _heard(self, operation: str, answer: Awaitable[T]) -> T:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        code: str | None = None
        try:
            found = await answer
        except LeaseLost:
            self._note()
            raise
        except TidelogError as error:
            code = error.code
            raise
        finally:
            self.meter.ended(operation, clock() - began_s, code)
        self._note()
        return found

    def _note(self) -> None:
        self._heard_s = asyncio.get_running_loop().time()
