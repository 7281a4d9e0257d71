"""The base of object stores that add one thing to another store: counts, a time limit, a record of its health."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Literal, TypeVar

from segments.object_store.interface import Buffer, ListPage, ObjectStore, Tail

Operation = Literal["create", "get", "tail", "list", "delete"]
_Answer = TypeVar("_Answer")


class ObjectStoreDecorator:
    """An ObjectStore over `store`. A subclass overrides `_call`, which awaits each call of the store below."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def _call(self, operation: Operation, key: str, call: Awaitable[_Answer]) -> _Answer:
        """Returns what `call` returns; `key` is its key or prefix."""
        return await call

    @property
    def url(self) -> str:
        return self._store.url

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._call("create", key, self._store.create(key, body, crc32c=crc32c))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return await self._call("get", key, self._store.get(key, start=start, end=end))

    async def tail(self, key: str, bytes_max: int) -> Tail:
        return await self._call("tail", key, self._store.tail(key, bytes_max))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        return await self._call("list", prefix, self._store.list(prefix, start_after=start_after, limit=limit))

    async def delete(self, key: str) -> None:
        await self._call("delete", key, self._store.delete(key))

    async def close(self) -> None:
        await self._store.close()
