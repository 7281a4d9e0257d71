"""Hands out producer ids, from blocks that are taken from the cluster's counter.

    1 … 2^61 - 1         handed out here
    2^61 … 2^62 - 1      derived from what is written (by Spark: spark/sink/staged_files.py), never handed out
    2^62 … 2^63 - 1      made from idempotency keys, never handed out

Where `run()` is a task, half a block is kept in hand, so that producers can begin while the metadata store is away.

Invariant: no producer id is handed out twice, over restarts and brokers; what is left of a block at a restart is never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from metadata.cluster.counters import take_numbers
from metadata.errors import TidelogError
from metadata.model import ProducerId
from metadata.store.interface import MetadataStore
from metadata.store.keys import EtcdLayout

BLOCK = 1000
"""Ids taken at once: one write to the store serves so many producers."""
DERIVED_IDS = 1 << 61
"""The first producer id that producers derive by themselves, to be the same after a crash. To brokers it is as any other."""
IDEMPOTENCY_KEY_IDS = 1 << 62
"""The first producer id that stands for an idempotency key."""
PAUSE_S = 1.0
"""Before a block that could not be taken in advance is asked for again."""

log = logging.getLogger(__name__)


class ProducerIds:
    def __init__(self, store: MetadataStore, layout: EtcdLayout | None = None) -> None:
        self._store = store
        self._layout = layout or EtcdLayout()
        self._ids: deque[int] = deque()
        self._taking = asyncio.Lock()
        self._used = asyncio.Event()

    @property
    def in_hand(self) -> int:
        """Ids that can be given without asking the store."""
        return len(self._ids)

    async def next(self) -> ProducerId:
        """An id that nobody else has. Raises Unavailable; Rejected when all are used up; Corrupt."""
        if not self._ids:
            async with self._taking:
                if not self._ids:
                    await self._take()
        self._used.set()
        return ProducerId(self._ids.popleft())

    async def run(self) -> None:
        """Takes blocks in advance, until cancelled."""
        while True:
            self._used.clear()
            try:
                async with self._taking:
                    if len(self._ids) < BLOCK // 2:
                        await self._take()
            except TidelogError as error:
                log.warning("no producer ids could be taken in advance; trying again: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            await self._used.wait()

    async def _take(self) -> None:
        self._ids.extend(await take_numbers(self._store, self._layout.next_producer_id, BLOCK, end=DERIVED_IDS))
