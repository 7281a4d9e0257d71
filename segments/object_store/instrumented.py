"""An object store that counts: calls, how long they took, how they failed, and bytes. What it answers or raises is not changed.

Prices are of requests as S3 lists them: a PUT and a LIST at one, a GET at another, a DELETE for nothing. What the client of S3
tries again by itself is one call here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
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
# The kind of objects of which nothing is known.
OTHER: Final = "other"

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
    requests: Counter[tuple[str, str]] = counter(
        "tidelog_bucket_requests", "Requests to the bucket, by what they were for.", labels=("operation", "kind")
    )
    request_bytes: Counter[tuple[str, str]] = counter(
        "tidelog_bucket_request_bytes", "Bytes that these requests wrote or read.", labels=("operation", "kind")
    )
    bytes_written: int = counter("tidelog_bucket_written_bytes", "Bytes of objects that were created.")
    bytes_read: int = counter("tidelog_bucket_read_bytes", "Bytes that were read from objects.")


class InstrumentedObjectStore(ObjectStoreDecorator):
    """Counts the calls of a store by operation, with their durations, errors and bytes."""

    def __init__(self, store: ObjectStore, kind_of: Callable[[str], str] = lambda key: OTHER) -> None:
        """`kind_of` names the kind of objects that a key or a prefix stands for: few, whatever the keys."""
        super().__init__(store)
        self.meter = BucketMeter()
        self._kind_of = kind_of

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        await self._call("create", key, self._store.create(key, body, crc32c=crc32c))
        size_bytes = sum(memoryview(part).nbytes for part in body)
        self.meter.bytes_written += size_bytes
        self.meter.request_bytes["create", self._kind_of(key)] += size_bytes

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
            self.meter.requests[operation, self._kind_of(key)] += 1
        if isinstance(answer, bytes | Tail):
            size_bytes = len(answer.body if isinstance(answer, Tail) else answer)
            self.meter.bytes_read += size_bytes
            self.meter.request_bytes[operation, self._kind_of(key)] += size_bytes
        return answer
