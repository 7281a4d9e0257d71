"""Counts the calls of a metadata store, and keeps the time of its last answer, so that listeners know how old their view is.

It sends nothing by itself: a broker renews its lease every third of session_timeout_ms. Answers and errors pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from metadata.errors import TidelogError
from metadata.measurements import CallMeter, Histogram, counter, histograms
from metadata.model import Revision
from metadata.store.etcd.settings import EtcdStatus
from metadata.store.interface import (
    NOW,
    Compare,
    KeyValue,
    LeaseId,
    LeaseLost,
    MetadataStore,
    Operation,
    RangeResult,
    TransactionResult,
    WatchBatch,
)

_Answer = TypeVar("_Answer")

OPERATIONS: Final = ("get", "range", "transact", "lease", "compact")


@dataclass(slots=True)
class MetadataMeter(CallMeter):
    """Counts the calls of a metadata store, and what its watches bring."""

    seconds: dict[str, Histogram] = histograms(
        "tidelog_metadata_request_seconds",
        "Requests to the metadata store (etcd, or SQLite): how long they took.",
        "operation",
        OPERATIONS,
    )
    errors: Counter[tuple[str, str]] = counter(
        "tidelog_metadata_errors",
        "Requests to the metadata store that failed, by code.",
        labels=("operation", "code"),
        known=[(operation, "UNAVAILABLE") for operation in OPERATIONS],
    )
    watch_events: int = counter("tidelog_metadata_watch_events", "Changes that watches of the metadata store delivered.")


class InstrumentedMetadataStore:
    """Decorates a MetadataStore: counts its calls, and keeps the time of its last answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._answered_s = asyncio.get_running_loop().time()
        self.meter = MetadataMeter()

    @property
    def idle_s(self) -> float:
        """Returns the seconds since the last answer. Without an outage at most a third of session_timeout_ms."""
        return asyncio.get_running_loop().time() - self._answered_s

    @property
    def etcd(self) -> EtcdStatus | None:
        """Returns the status of etcd; None on another store, or before the first answer."""
        status = getattr(self._store, "status", None)
        return status if isinstance(status, EtcdStatus) else None

    async def get(self, key: str) -> KeyValue | None:
        return await self._call("get", self._store.get(key))

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        read = self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)
        return await self._call("range", read)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._call("transact", self._store.transact(compares, operations))

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self._call("lease", self._store.grant_lease(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._call("lease", self._store.keep_alive(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._call("lease", self._store.revoke_lease(lease))

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(prefix, from_revision):
            self._answered()
            self.meter.watch_events += len(batch.events)
            yield batch

    async def compact(self, to_revision: Revision) -> None:
        await self._call("compact", self._store.compact(to_revision))

    async def close(self) -> None:
        await self._store.close()

    async def _call(self, operation: str, call: Awaitable[_Answer]) -> _Answer:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        code: str | None = None
        try:
            answer = await call
        except LeaseLost:
            self._answered()
            raise
        except TidelogError as error:
            code = error.code
            raise
        finally:
            self.meter.ended(operation, clock() - began_s, code)
        self._answered()
        return answer

    def _answered(self) -> None:
        self._answered_s = asyncio.get_running_loop().time()
