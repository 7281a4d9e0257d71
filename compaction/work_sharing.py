"""Shares the work among the compactors: each keeps a key under its lease, and follows all keys.

A name (of a session, a partition) belongs to one of them by rendezvous hashing. While one comes or goes, two may take the same
name: the manifests decide, and the loser's work is wasted. So a failure here costs time, never a record: without the
metadata, each goes on with the compactors that it knew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from metadata.errors import TidelogError
from metadata.rendezvous import Rendezvous
from metadata.store.interface import NO_LEASE, Event, KeyValue, LeaseId, LeaseLost, MetadataStore, Put
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch

PAUSE_S = 1.0
LEAVE_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


class CompactorMembership:
    """Registers one compactor and follows the others. Its owner runs `run()` as a task."""

    def __init__(self, store: MetadataStore, layout: KeyLayout, compactor_id: str, *, version: str, ttl_s: float) -> None:
        self._store = store
        self._layout = layout
        self._id = compactor_id
        self._version = version
        self._ttl_s = ttl_s
        self._others: set[str] = set()
        self._rendezvous = Rendezvous([compactor_id])
        self._lease = NO_LEASE
        # Set once the others know of this one, and it knows of them.
        self.joined = asyncio.Event()
        self._watched = RangeWatch(store, layout.compactors, replace=self._replace, apply=self._apply)

    @property
    def compactors(self) -> frozenset[str]:
        return frozenset(self._others | {self._id})

    def is_mine(self, name: str) -> bool:
        return self._rendezvous.highest(name) == self._id

    async def run(self) -> None:
        """Keeps the registration until cancelled, then ends it, so that the others need not wait for its lease."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watched.run(), name="compactors")
                await self._keep()
        finally:
            await self._leave()

    async def _keep(self) -> None:
        while True:
            pause_s = self._ttl_s / 3
            try:
                if self._lease == NO_LEASE:
                    self._lease = await self._join()
                await self._store.keep_alive(self._lease)
            except LeaseLost:
                self._lease, pause_s = NO_LEASE, 0.0
            except TidelogError as error:
                log.warning("renewing the compactor's registration failed: %s; going on", error)
                pause_s = min(pause_s, PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _join(self) -> LeaseId:
        lease = await self._store.grant_lease(self._ttl_s)
        put = Put(self._layout.compactor(self._id), self._version.encode(), lease)
        result = await self._store.transact([], [put])
        if await self._watched.wait_for(result.revision, timeout_s=self._ttl_s):
            self.joined.set()
        return lease

    async def _leave(self) -> None:
        if self._lease == NO_LEASE:
            return
        with contextlib.suppress(TidelogError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._store.revoke_lease(self._lease)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        self._others = {item.key.removeprefix(self._layout.compactors) for item in items}
        self._share()

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            name = event.key.removeprefix(self._layout.compactors)
            if event.kind == "delete":
                self._others.discard(name)
            else:
                self._others.add(name)
        self._share()

    def _share(self) -> None:
        self._rendezvous = Rendezvous(self.compactors)
