"""Drops the history of the metadata that nobody needs any more: etcd keeps every version of every key until somebody compacts it.

    look        a    b    c    d    e   …           every third of `kept_s`
    compacts    -    -    -    a    b   …           to the revision that the store had `kept_s` ago

Of the controller, while it is it. By revisions that were seen, not by a clock: so whatever was written in the last `kept_s` is
there, and a watch that was broken for no longer resumes where it was. Whoever comes later is told, and reads its range anew.

It does no harm where etcd compacts by itself (--auto-compaction-retention): what is compacted already is no error. History is that
of all who share the etcd. One that can't be compacted grows, and nothing else is wrong: it is told in the log and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from metadata.errors import TidelogError
from metadata.model import Revision
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout

LOOKS_PER_TIME_KEPT = 3

log = logging.getLogger(__name__)


class RevisionCompaction:
    """Of one election: its owner runs `run()` as a task for as long as this broker is the controller."""

    def __init__(self, metadata: MetadataStore, layout: KeyLayout, *, kept_s: float) -> None:
        self._metadata = metadata
        self._layout = layout
        self._interval_s = kept_s / LOOKS_PER_TIME_KEPT

    async def run(self) -> None:
        """Until cancelled."""
        seen: deque[Revision] = deque(maxlen=LOOKS_PER_TIME_KEPT + 1)
        compacted = Revision(0)
        while True:
            try:
                seen.append((await self._metadata.range(self._layout.controller, limit=1)).revision)
                if len(seen) > LOOKS_PER_TIME_KEPT and seen[0] > compacted:
                    await self._metadata.compact(seen[0])
                    log.info("the history of the metadata was compacted to revision %s, of %s", seen[0], seen[-1])
                    compacted = seen[0]
            except TidelogError as error:
                log.warning("the history of the metadata was not compacted, and grows: %s", error)
            await asyncio.sleep(self._interval_s)
