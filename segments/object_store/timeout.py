"""An object store whose every call ends in bounded time, whatever the disk or the network behind it does.

For stores that have no time limits of their own: a hung disk or a dead NFS server must not block a takeover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from metadata.errors import OutcomeUnknown, Unavailable
from segments.object_store.decorator import ObjectStoreDecorator, Operation
from segments.object_store.interface import ObjectStore

_Answer = TypeVar("_Answer")


class TimeoutObjectStore(ObjectStoreDecorator):
    """Gives up each call after `timeout_s`: a create or delete as OutcomeUnknown, a read as Unavailable."""

    def __init__(self, store: ObjectStore, *, timeout_s: float) -> None:
        super().__init__(store)
        self._timeout_s = timeout_s

    async def _call(self, operation: Operation, key: str, call: Awaitable[_Answer]) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            late = OutcomeUnknown if operation in ("create", "delete") else Unavailable
            raise late(f"{key} of {self.url}: no answer within {self._timeout_s:g} s", key=key) from None
