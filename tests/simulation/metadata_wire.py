"""What lies between one broker and the metadata store: every call and every event of a watch takes its time, or its answer is lost.

The wire belongs to its broker: what a frozen process had sent lands when it thaws, late, which is the harder case for whoever
decides on what it read before.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from metadata.errors import OutcomeUnknown, Unavailable
from metadata.model import Revision
from metadata.store import NOW, Compare, KeyValue, LeaseId, MetadataStore, Operation, RangeResult, TransactionResult, WatchBatch
from tests.simulation.appointments import Writer


class MetadataWire:
    def __init__(
        self,
        store: MetadataStore,
        chance: random.Random,
        *,
        sender: Callable[[], Writer],
        wrote: Callable[[Revision, Writer], None],
    ) -> None:
        """`wrote` is told of each transaction that has happened, with its `sender` as of when it was sent."""
        self._store = store
        self._chance = chance
        self._sender = sender
        self._wrote = wrote
        self.counts: Counter[str] = Counter()
        """Calls by kind: "transact", "range", …"""
        self.latency_s = 0.001
        self.watch_delay_s = 0.0
        """Events come up to this much later."""
        self.answer_lost = 0.0
        """How often a transaction happens and its answer does not come, and how often a request does not arrive."""
        self._up = asyncio.Event()
        self._up.set()

    @property
    def down(self) -> bool:
        return not self._up.is_set()

    def cut(self) -> None:
        """From now on nothing arrives; watches are silent and then break."""
        self._up.clear()

    def mend(self) -> None:
        self._up.set()

    async def _travel(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.2, 1.0) * self.latency_s)
        if self.down:
            await asyncio.sleep(self._chance.uniform(0.0, 2.0))
            raise Unavailable("the metadata store can't be reached")

    async def get(self, key: str) -> KeyValue | None:
        self.counts["get"] += 1
        await self._travel()
        return await self._store.get(key)

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        self.counts["range"] += 1
        await self._travel()
        return await self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        sender = self._sender()
        self.counts["transact"] += 1
        await self._travel()
        if self._chance.random() < self.answer_lost:
            raise OutcomeUnknown("the request was lost")
        result = await self._store.transact(compares, operations)
        if result.succeeded:
            self._wrote(result.revision, sender)
        await asyncio.sleep(self._chance.uniform(0.2, 1.0) * self.latency_s)
        if self.down or self._chance.random() < self.answer_lost:
            raise OutcomeUnknown("the answer was lost")
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        await self._travel()
        return await self._store.grant_lease(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        await self._travel()
        return await self._store.keep_alive(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._travel()
        await self._store.revoke_lease(lease)

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        await self._travel()
        async for batch in self._store.watch(prefix, from_revision):
            if self.watch_delay_s:
                await asyncio.sleep(self._chance.uniform(0, self.watch_delay_s))
            await self._travel()
            yield batch

    async def close(self) -> None:
        return
