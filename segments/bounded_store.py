"""An object store whose every call ends in bounded time, whatever the disk or the network behind it does.

For stores that have no time limits of their own: a hung disk or a dead NFS server must not hold up a takeover for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from metadata.errors import OutcomeUnknown, Unavailable
from segments.object_store import Buffer, ListPage, ObjectStore, Tail


class BoundedStore:
    """`store`, whose calls are given up after `timeout_s`: a create or delete as OutcomeUnknown, a read as Unavailable."""

    def __init__(self, store: ObjectStore, *, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        async with self._bounded(key, OutcomeUnknown):
            await self._store.create(key, body, crc32c=crc32c)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        async with self._bounded(key, Unavailable):
            return await self._store.get(key, start=start, end=end)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        async with self._bounded(key, Unavailable):
            return await self._store.tail(key, bytes_max)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        async with self._bounded(prefix, Unavailable):
            return await self._store.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, key: str) -> None:
        async with self._bounded(key, OutcomeUnknown):
            await self._store.delete(key)

    async def close(self) -> None:
        await self._store.close()

    @asynccontextmanager
    async def _bounded(self, key: str, late: type[OutcomeUnknown | Unavailable]) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise late(f"{key} of {self.url}: no answer within {self._timeout_s:g} s", key=key) from None
