"""An object store that counts: calls, how long they took, how they failed, and bytes. What it answers or raises is not changed.

Prices are of requests as S3 lists them: a PUT and a LIST at one, a GET at another, a DELETE for nothing. What the client of S3
tries again by itself is one call here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from metadata.errors import AlreadyExists, NotFound, TidelogError
from metadata.measurements import CallMeter, Histogram, counter, histograms
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


@dataclass(slots=True)
class BucketMeter(CallMeter):
    """Counts the calls of a bucket."""

    seconds: dict[str, Histogram] = histograms(
        "tidelog_bucket_request_seconds", "Requests to the bucket: how long they took.", "operation", OPERATIONS
    )
    errors: Counter[tuple[str, str]] = counter(
        "tidelog_bucket_errors",
        "Requests to the bucket that failed, by code. CANCELLED: given up, or another of two was faster.",
        labels=("operation", "code"),
        known=[(operation, "UNAVAILABLE") for operation in OPERATIONS],
    )
    bytes_written: int = counter("tidelog_bucket_written_bytes", "Bytes of objects that were created.")
    bytes_read: int = counter("tidelog_bucket_read_bytes", "Bytes that were read from objects.")


class InstrumentedObjectStore(ObjectStoreDecorator):
    """Counts the calls of a store by operation, with their durations, errors and bytes."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.meter = BucketMeter()

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._call("create", key, self._store.create(key, body, crc32c=crc32c))
        self.meter.bytes_written += sum(memoryview(part).nbytes for part in body)

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
            self.meter.bytes_read += len(answer)
        elif isinstance(answer, Tail):
            self.meter.bytes_read += len(answer.body)
        return answer
