"""A metadata store whose answers can be lost or refused, and in which others can come between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import (
    Compare,
    KeyValue,
    LeaseId,
    MetadataStore,
    Operation,
    RangeResult,
    TransactionResult,
    WatchBatch,
)
from tests.kit.metadata.stores import NOW


class FaultyStore:
    """Passes everything on to a real store, but for the faults that a test asks for."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.lose_answers = 0
        """So many transactions happen, and are answered with OutcomeUnknown."""
        self.lose_requests = 0
        """So many transactions don't happen, and are answered with OutcomeUnknown."""
        self.before_transaction: Callable[[], Awaitable[object]] | None = None
        """Called once before the next transaction reaches the store: another client comes between."""
        self.down: TidelogError | None = None
        """Raised by every call while it is set."""
        self.refused = 0
        """How many calls, and batches of watches, found the store down."""
        self.transactions: list[tuple[Sequence[Compare], Sequence[Operation]]] = []
        self.watches = 0
        self.ranges = 0

    async def get(self, key: str) -> KeyValue | None:
        self._check_up()
        return await self.store.get(key)

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        self._check_up()
        self.ranges += 1
        return await self.store.range(prefix, start_after=start_after, limit=limit, revision=revision)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        self._check_up()
        if self.before_transaction is not None:
            between, self.before_transaction = self.before_transaction, None
            await between()
        if self.lose_requests:
            self.lose_requests -= 1
            raise OutcomeUnknown("the request was lost")
        result = await self.store.transact(compares, operations)
        self.transactions.append((compares, operations))
        if self.lose_answers:
            self.lose_answers -= 1
            raise OutcomeUnknown("the answer was lost")
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        return await self.store.grant_lease(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self.store.keep_alive(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self.store.revoke_lease(lease)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        self._check_up()
        self.watches += 1
        async for batch in self.store.watch(prefix, from_revision):
            self._check_up()
            yield batch

    async def compact(self, to_revision: Revision) -> None:
        self._check_up()
        await self.store.compact(to_revision)

    async def close(self) -> None:
        await self.store.close()

    def _check_up(self) -> None:
        if self.down is not None:
            self.refused += 1
            raise self.down


def unavailable() -> Unavailable:
    return Unavailable("the store is down")
