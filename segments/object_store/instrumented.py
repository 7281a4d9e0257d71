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
from segments.object_store.decorator import ObjectStoreDecorator, Operation
from segments.object_store.interface import Buffer, ObjectStore, Tail

OPERATIONS: Final = ("create", "get", "tail", "list", "delete")
PRICED_AS_WRITES: Final = ("create", "list")
PRICED_AS_READS: Final = ("get", "tail")
# These errors are answers: the call did not fail.
_ANSWERS: Final = (AlreadyExists, NotFound)
# As an error code: the caller gave up, or another of two calls was faster.
CANCELLED: Final = "CANCELLED"

_Answer = TypeVar("_Answer")


class InstrumentedObjectStore(ObjectStoreDecorator):
    """Counts the calls of a store by operation, with their durations, errors and bytes."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.meter = CallMeter(OPERATIONS)
        # Of creates that succeeded.
        self.bytes_written = 0
        self.bytes_read = 0

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._call("create", key, self._store.create(key, body, crc32c=crc32c))
        self.bytes_written += sum(memoryview(part).nbytes for part in body)

    async def _call(self, operation: Operation, key: str, call: Awaitable[_Answer]) -> _Answer:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        code: str | None = None
        try:
            answer = await call
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
        if isinstance(answer, bytes):
            self.bytes_read += len(answer)
        elif isinstance(answer, Tail):
            self.bytes_read += len(answer.body)
        return answer
