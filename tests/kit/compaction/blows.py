"""A bucket as one process sees it that is to be killed, or whose network fails, at a certain call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from metadata.errors import OutcomeUnknown, Unavailable
from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail

Answer = TypeVar("Answer")
Blow = Literal["dies before", "dies after", "refused", "answer lost", "request lost"]
BLOWS: tuple[Blow, ...] = ("dies before", "dies after", "refused", "answer lost", "request lost")


class StruckStore:
    """`store`, but for call number `at` (from 1). Of a process that died no later call does anything."""

    def __init__(self, store: ObjectStore, *, at: int = 0, blow: Blow = "refused") -> None:
        self._store = store
        self._at = at
        self._blow = blow
        self.calls: list[tuple[str, str]] = []
        self.died = asyncio.Event()
        self.hold: Callable[[str, str], Awaitable[None]] | None = None
        """Called before each call with its kind and key: may wait."""

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._call("create", key, lambda: self._store.create(key, body, crc32c=crc32c))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._call("get", key, lambda: self._store.get(key, start=start, end=end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._call("tail", key, lambda: self._store.tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._call("list", prefix, lambda: self._store.list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._call("delete", key, lambda: self._store.delete(key))

    async def close(self) -> None:
        pass

    def count(self, kind: str, prefix: str = "") -> int:
        return sum(kind == called and key.startswith(prefix) for called, key in self.calls)

    async def _call(self, kind: str, key: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        if self.died.is_set():
            await asyncio.get_running_loop().create_future()
        self.calls.append((kind, key))
        if self.hold is not None:
            await self.hold(kind, key)
        if len(self.calls) != self._at:
            return await call()
        changes = kind in {"create", "delete"}
        if self._blow == "refused" or (self._blow in {"answer lost", "request lost"} and not changes):
            raise Unavailable("503 SlowDown")
        if self._blow in {"answer lost", "dies after"}:
            await call()
        if self._blow in {"answer lost", "request lost"}:
            raise OutcomeUnknown("the connection was reset")
        self.died.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("the dead don't answer")
