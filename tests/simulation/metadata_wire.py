"""What lies between one broker and the metadata store: every call and every event of a watch takes its time, or its answer is lost.

Half of the transactions are on their own once they are sent: they happen though their sender is frozen, dead, or has given up.
The others belong to their sender, so that they land when it thaws, late: either is the harder case for somebody.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import (
    NOW,
    Compare,
    KeyValue,
    LeaseId,
    LeaseLost,
    Operation,
    RangeResult,
    TransactionResult,
    WatchBatch,
)
from tests.simulation.appointments import Writer
from tests.simulation.etcd_model import EtcdModel

_Request = Coroutine[None, None, TransactionResult | TidelogError | LeaseLost]


class MetadataWire:
    def __init__(
        self,
        store: EtcdModel,
        chance: random.Random,
        *,
        sender: Callable[[], Writer],
        wrote: Callable[[Revision, Writer], None],
    ) -> None:
        """`wrote` is called with each transaction that has happened, with its `sender` as of when it was sent."""
        self._store = store
        self._chance = chance
        self.sender = sender
        self._wrote = wrote
        self.counts: Counter[str] = Counter()
        """Calls by kind: "transact", "range", …"""
        self.latency_s = self.write_latency_s = self.watch_delay_s = self.all_watches_delay_s = self.answer_lost = 0.0
        self.lands_late = 0.0
        self.range_delays_s: dict[str, float] = {}
        """By prefix: events of this range come so much later, to whichever watch. Kept by `calm_down`."""
        # By prefix, when a watch was handed which revision. Kept for the prefixes that are in it.
        self.handed: dict[str, list[tuple[float, Revision]]] = {}
        self.calm_down()
        self._on_the_wire: set[asyncio.Task[TransactionResult | TidelogError | LeaseLost]] = set()
        self._up = asyncio.Event()
        self._up.set()

    def calm_down(self) -> None:
        """Each may be raised at any time."""
        self.latency_s = 0.001
        self.write_latency_s = 0.0
        """How much later a transaction arrives than other requests, at most."""
        self.watch_delay_s = 0.0
        """Events come up to this much later to the watches that lag, which is every other one: so what is known of brokers may be
        older than what is known of partitions, or newer."""
        self.all_watches_delay_s = 0.0
        """So much later they come to all watches."""
        self.answer_lost = 0.0
        """How often a transaction happens and its answer does not come, and how often a request does not arrive."""
        self.lands_late = 0.0
        """How often a transaction happens only after its sender got an unknown outcome: its deadline ended first."""

    @property
    def writes_on_the_wire(self) -> int:
        """Transactions that happen whatever becomes of their sender, and have no answer yet."""
        return len(self._on_the_wire)

    @property
    def down(self) -> bool:
        return not self._up.is_set()

    def cut(self) -> None:
        """From now on nothing arrives; watches are silent and then break."""
        self._up.clear()

    def mend(self) -> None:
        self._up.set()

    async def _travel(self, later_s: float = 0.0) -> None:
        await asyncio.sleep(self._chance.uniform(0.2, 1.0) * (self.latency_s + later_s))
        if self.down:
            await asyncio.sleep(self._chance.uniform(0.0, 2.0))
            raise Unavailable("the metadata store can't be reached")

    async def get(self, key: str) -> KeyValue | None:
        self.counts["get"] += 1
        await self._travel()
        found = await self._store.get(key)
        await self._travel()
        return found

    async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
        self.counts["range"] += 1
        await self._travel()
        found = await self._store.range(prefix, start_after=start_after, limit=limit, revision=revision)
        await self._travel()
        return found

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        self.counts["transact"] += 1
        request = self._carry(self.sender(), compares, operations)
        if self.lands_late and self._chance.random() < self.lands_late:
            self._on_its_own(self._land_late(request))
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            raise OutcomeUnknown("the answer did not come in time")
        if self._chance.random() < 0.5:
            answer = await request
        else:
            answer = await asyncio.shield(self._on_its_own(request))
        if isinstance(answer, TidelogError | LeaseLost):
            raise answer
        return answer

    def _on_its_own(self, request: _Request) -> asyncio.Task[TransactionResult | TidelogError | LeaseLost]:
        carried = asyncio.get_running_loop().create_task(request, context=Context())
        self._on_the_wire.add(carried)
        carried.add_done_callback(self._on_the_wire.discard, context=Context())
        return carried

    async def _land_late(self, request: _Request) -> TransactionResult | TidelogError | LeaseLost:
        await asyncio.sleep(self._chance.choice((0.5, 2.0, 8.0)) * self._chance.random())
        return await request

    async def _carry(
        self, sender: Writer, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult | TidelogError | LeaseLost:
        """There and back. An error is an answer here, since no caller may be there to take it."""
        try:
            await self._travel(self.write_latency_s)
            if self._chance.random() < self.answer_lost:
                return OutcomeUnknown("the request was lost")
            before = self._store.revision
            result = await self._store.transact(compares, operations)
        except (TidelogError, LeaseLost) as error:
            return error
        if result.succeeded and result.revision > before:  # one that deletes what is gone already names the revision of another's
            self._wrote(result.revision, sender)
        await asyncio.sleep(self._chance.uniform(0.2, 1.0) * self.latency_s)
        if self.down or self._chance.random() < self.answer_lost:
            return OutcomeUnknown("the answer was lost")
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
        lags = self._chance.random() < 0.5
        await self._travel()
        async for batch in self._store.watch(prefix, from_revision):
            if lags and self.watch_delay_s:
                await asyncio.sleep(self._chance.uniform(0, self.watch_delay_s))
            if (range_delay_s := self.range_delays_s.get(prefix, 0.0)) > 0:
                await asyncio.sleep(range_delay_s)
            if self.all_watches_delay_s:
                await asyncio.sleep(self.all_watches_delay_s)
            await self._travel()
            if prefix in self.handed:
                self.handed[prefix].append((asyncio.get_running_loop().time(), batch.revision))
            yield batch

    async def compact(self, to_revision: Revision) -> None:
        await self._travel()
        await self._store.compact(to_revision)

    async def close(self) -> None:
        return
