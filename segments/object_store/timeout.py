"""An object store whose every call ends in bounded time, whatever the disk or the network behind it does.

For stores that have no time limits of their own: a hung disk or a dead NFS server must not hold up a takeover for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from metadata.errors import OutcomeUnknown, Unavailable
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail

_Answer = TypeVar("_Answer")


class BoundedStore:
    """`store`, whose calls are given up after `timeout_s`: a create or delete as OutcomeUnknown, a read as Unavailable."""

    def __init__(self, store: ObjectStore, *, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._bounded(self._store.create(key, body, crc32c=crc32c), key, OutcomeUnknown)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._bounded(self._store.get(key, start=start, end=end), key, Unavailable)

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._bounded(self._store.tail(key, bytes_max), key, Unavailable)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._bounded(self._store.list(prefix, start_after=start_after, limit=limit), prefix, Unavailable)

    async def delete(self, key: str) -> None:
        await self._bounded(self._store.delete(key), key, OutcomeUnknown)

    async def close(self) -> None:
        await self._store.close()

    async def _bounded(self, call: Awaitable[_Answer], key: str, late: type[OutcomeUnknown | Unavailable]) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            raise late(f"{key} of {self.url}: no answer within {self._timeout_s:g} s", key=key) from None
