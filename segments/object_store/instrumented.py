"""An object store that counts: calls, how long they took, how they failed, and bytes. What it answers or raises is not changed.

Prices are of requests as S3 lists them: a PUT and a LIST at one, a GET at another, a DELETE for nothing. What the client of S3
tries again by itself is one call here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from metadata.errors import AlreadyExists, NotFound, TidelogError
from metadata.measurements import CallMeter
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail

OPERATIONS: Final = ("create", "get", "tail", "list", "delete")
PRICED_AS_WRITES: Final = ("create", "list")
PRICED_AS_READS: Final = ("get", "tail")
_ANSWERS: Final = (AlreadyExists, NotFound)
"""These say how it is, and not that the call went wrong."""
CANCELLED: Final = "CANCELLED"
"""For a code: the caller gave up, or another of two calls was faster."""

_Answer = TypeVar("_Answer")


class MeteredStore:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.meter = CallMeter(OPERATIONS)
        self.bytes_written = 0
        """Of creates that succeeded."""
        self.bytes_read = 0

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._metered("create", self._store.create(key, body, crc32c=crc32c))
        self.bytes_written += sum(memoryview(part).nbytes for part in body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        body = await self._metered("get", self._store.get(key, start=start, end=end))
        self.bytes_read += len(body)
        return body

    async def tail(self, key: str, bytes_max: int) -> Tail:
        tail = await self._metered("tail", self._store.tail(key, bytes_max))
        self.bytes_read += len(tail.body)
        return tail

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._metered("list", self._store.list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._metered("delete", self._store.delete(key))

    async def close(self) -> None:
        await self._store.close()

    async def _metered(self, operation: str, call: Awaitable[_Answer]) -> _Answer:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        code: str | None = None
        try:
            return await call
        except _ANSWERS:
            raise
        except TidelogError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            self.meter.ended(operation, clock() - began_s, code)
