"""Hands out producer ids, from blocks that are taken from the cluster's counter.

    1 … 2^62 - 1         handed out here
    2^62 … 2^63 - 1      made from idempotency keys, never handed out

Invariant: no producer id is handed out twice, over restarts and brokers; what is left of a block at a restart is never used.
"""

from __future__ import annotations

import asyncio

from metadata.counters import take_numbers
from metadata.etcd_layout import EtcdLayout
from metadata.model import ProducerId
from metadata.store import MetadataStore

BLOCK = 1000
"""Ids taken at once: one write to the store serves so many producers."""
IDEMPOTENCY_KEY_IDS = 1 << 62
"""The first producer id that stands for an idempotency key."""


class ProducerIds:
    def __init__(self, store: MetadataStore, layout: EtcdLayout | None = None) -> None:
        self._store = store
        self._layout = layout or EtcdLayout()
        self._block = iter(range(0))
        self._taking = asyncio.Lock()

    async def next(self) -> ProducerId:
        """An id that nobody else has. Raises Unavailable; Rejected when all are used up; Corrupt."""
        async with self._taking:
            producer_id = next(self._block, None)
            if producer_id is None:
                self._block = iter(await take_numbers(self._store, self._layout.next_producer_id, BLOCK, end=IDEMPOTENCY_KEY_IDS))
                producer_id = next(self._block)
            return ProducerId(producer_id)
