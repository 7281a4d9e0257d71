"""Defines what Tidelog needs of an object store: create-only PUT, ranged GET, ordered listing, delete.

Implemented by memory.py, directory.py and s3/store.py; one contract suite runs against all of them.
Invariant: of all creates of one key, ever, at most one succeeds until the key is deleted; a created object never changes;
a created object is visible to every get and list that starts later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from metadata.errors import TidelogError

_Error = TypeVar("_Error", bound=TidelogError)
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Describes a listed object."""

    key: str
    # Size of the object in bytes.
    size: int


@dataclass(frozen=True, slots=True)
class ListPage:
    """Holds one page of a listing."""

    # In ascending byte order of their keys.
    objects: tuple[ObjectInfo, ...]
    # Whether more keys may follow; pass the last key as `start_after` to read on. After a full page there may be none:
    # versitygw reports more where any key of the bucket follows.
    more: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """Holds the end of an object, as a suffix range GET returns it."""

    body: bytes
    # Size of the whole object in bytes.
    size: int


def unsynced(kind: type[_Error], message: str, *, hint: str, **details: str) -> _Error:
    """Returns the error of a create for which the store can't prove that the object outlives a power cut, now or by a repeat."""
    return kind(message, hint=hint, unsynced=True, **details)


def is_unsynced(error: TidelogError) -> bool:
    """Returns whether the error is of `unsynced`: a repeat of the create proves nothing, even where it finds the object."""
    return error.details.get("unsynced") is True


class ObjectStore(Protocol):
    """Keys are relative to the store's prefix.

    Errors: Unavailable (the store answered that it wrote nothing, or could not be reached before a byte was sent),
    OutcomeUnknown (a timeout, a reset, a 500, a 409 conflict: a create may have happened), Denied (credentials, missing bucket).
    One for which `is_unsynced` holds says that the object may be gone after a power cut, and that a repeat can't change that.
    """

    @property
    def url(self) -> str:
        """Returns the store's place, for people: s3://bucket/prefix, file:///path, memory://"""
        ...

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        """Writes the buffers one after the other as a new object. Raises AlreadyExists if the key has one, of any writer.

        `crc32c` of the whole body, where the caller knows it, lets the store check what it received. A create that is cancelled
        may still go on in the background, so the buffers must never change.
        """
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes in [start, end), or to the end of the object.

        NotFound if the key has no object, InvalidArgument if start is past its end.
        """
        ...

    async def tail(self, key: str, bytes_max: int) -> Tail:
        """Returns the last `bytes_max` bytes, or the whole object where it is smaller. NotFound."""
        ...

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage: ...

    async def delete(self, key: str) -> None:
        """Deletes the object. A missing one is no error."""
        ...

    async def close(self) -> None: ...


async def list_all(store: ObjectStore, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
    """Yields all objects under the prefix, page by page, in ascending byte order of keys. Concurrent changes may be seen or not."""
    while True:
        page = await store.list(prefix, start_after=start_after)
        for found in page.objects:
            yield found
        if not page.more:
            return
        start_after = page.objects[-1].key
