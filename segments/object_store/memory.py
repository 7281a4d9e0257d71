"""An object store in a dictionary: the plainest thing that keeps the contract. For tests and the simulation.

It answers at once and never fails. Its objects live as long as the store; several clients of one bucket share one instance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from awscrt.checksums import crc32c as crc32c_of

from metadata.errors import AlreadyExists, NotFound, Unavailable
from segments.object_store.interface import Buffer, ListPage, ObjectInfo, Tail
from segments.object_store.validation import check_key, check_list, check_range, check_tail, past_the_end


class MemoryObjectStore:
    """Keeps objects in memory, for tests and simulations."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []  # in ascending order

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        check_key(key)
        content = b"".join(body)
        if crc32c is not None and crc32c_of(content) != crc32c:
            raise Unavailable(f"{key} arrived at {self.url} with another CRC-32C than was sent; nothing was written", key=key)
        if key in self._objects:
            raise AlreadyExists(f"{key} exists already in {self.url}", key=key)
        self._objects[key] = content
        insort(self._keys, key)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_range(key, start, end)
        content = self._content(key)
        if start >= len(content) and start > 0:
            raise past_the_end(self.url, key, start, len(content))
        return content[start:end]

    async def tail(self, key: str, bytes_max: int) -> Tail:
        check_tail(key, bytes_max)
        content = self._content(key)
        return Tail(content[-bytes_max:], len(content))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
        check_list(prefix, start_after, limit)
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        end = bisect_left(self._keys, prefix[:-1] + chr(ord(prefix[-1]) + 1), lo=first) if prefix else len(self._keys)
        keys = self._keys[first : min(end, first + limit)]
        return ListPage(tuple([ObjectInfo(key, len(self._objects[key])) for key in keys]), more=end > first + limit)

    async def delete(self, key: str) -> None:
        check_key(key)
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        pass

    def _content(self, key: str) -> bytes:
        content = self._objects.get(check_key(key))
        if content is None:
            raise NotFound(f"{self.url} has no object {key}", key=key)
        return content
