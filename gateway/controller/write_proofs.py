"""Creates a batch of appointments once in a while as long as records are written, so that an older bucket is noticed.

    a session notes that it writes ─▶ the watch shows it ─▶ an empty batch on the bucket ─▶ its number in the metadata
    (gateway/cluster/write_notes.py)                         └── at most one in PROOF_INTERVAL_S

A broker does not start on a bucket that lacks the last batch which its metadata have applied (gateway/cluster/identity.py). Without
these batches a copy would pass that was made after the last change of a leader or a topic, and lacks hours of records.

A cluster without writes costs no request. A batch that fails is logged, and tried again after the interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from metadata.errors import TidelogError
from metadata.store.interface import Event, KeyValue, MetadataStore
from metadata.store.keys import KeyLayout
from metadata.store.range_watch import RangeWatch

PROOF_INTERVAL_S: Final = 60.0

log = logging.getLogger(__name__)


class WriteProofs:
    """Follows the notes of all sessions during one election. Its owner runs `run()` while this broker is the controller."""

    def __init__(self, metadata: MetadataStore, layout: KeyLayout, *, prove: Callable[[], Awaitable[None]]) -> None:
        """`prove` creates a batch of appointments, as for MetadataSnapshots."""
        self._prove = prove
        self._written = asyncio.Event()
        self._watched = RangeWatch(metadata, layout.written, replace=self._replace, apply=self._apply)

    async def run(self) -> None:
        """Creates batches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watched.run(), name="notes of writes")
            while True:
                await self._written.wait()
                self._written.clear()
                try:
                    await self._prove()
                except TidelogError as error:
                    log.warning("no batch of appointments for records that were written: %s", error)
                    self._written.set()
                await asyncio.sleep(PROOF_INTERVAL_S)

    def _replace(self, items: Sequence[KeyValue]) -> None:
        if items:
            self._written.set()

    def _apply(self, events: Sequence[Event]) -> None:
        if any(event.kind == "put" for event in events):
            self._written.set()
