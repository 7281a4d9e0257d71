"""A metadata store that remembers when it has answered last, so that the doors can tell how old what they describe may be.

It asks nothing by itself: a broker renews its lease every third of session_timeout_ms. Nothing is changed about what the store
answers or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from metadata.model import Revision
from metadata.store import (
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


class HeardMetadata:
    """MetadataStore over `store`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._heard_s = asyncio.get_running_loop().time()

    @property
    def silent_s(self) -> float:
        """For how long the store has not answered anything. Without trouble at most a third of session_timeout_ms."""
        return asyncio.get_running_loop().time() - self._heard_s

    async def get(self, key: str) -> KeyValue | None:
        return await self._heard(self._store.get(key))

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        return await self._heard(self._store.range(prefix, start_after=start_after, limit=limit, revision=revision))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._heard(self._store.transact(compares, operations))

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self._heard(self._store.grant_lease(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._heard(self._store.keep_alive(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._heard(self._store.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            self._note()
            yield batch

    async def compact(self, to_revision: Revision) -> None:
        await self._heard(self._store.compact(to_revision))

    async def close(self) -> None:
        await self._store.close()

    async def _heard(self, answer: Awaitable[T]) -> T:
        try:
            found = await answer
        except LeaseLost:
            self._note()
            raise
        self._note()
        return found

    def _note(self) -> None:
        self._heard_s = asyncio.get_running_loop().time()
