"""Compacts the revisions of the metadata store: etcd keeps every version of every key until a client compacts them.

    poll        a    b    c    d    e   …           every third of `kept_s`
    compacts    -    -    -    a    b   …           to the revision that the store had `kept_s` ago

Only the controller runs it. It counts by revisions that it has seen, not by a clock, so every write of the last `kept_s` is still
there, and a watch that was broken for less time resumes where it was. A watch that was broken for longer reads its range again.

etcd's own compaction (--auto-compaction-retention) may run beside it: a revision that is already compacted is no error. Compaction
applies to all users of the etcd. If it fails, the database grows; the failure is logged, and the next poll tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from metadata.errors import TidelogError
from metadata.model import Revision
from metadata.store.interface import MetadataStore
from metadata.store.keys import KeyLayout

CHECKS_PER_TIME_KEPT = 3

log = logging.getLogger(__name__)


async def compact_revisions(metadata: MetadataStore, layout: KeyLayout, *, kept_s: float) -> None:
    """Polls and compacts until cancelled. The controller runs it as a task during its election."""
    seen: deque[Revision] = deque(maxlen=CHECKS_PER_TIME_KEPT + 1)
    compacted = Revision(0)
    while True:
        try:
            seen.append((await metadata.range(layout.controller, limit=1)).revision)
            if len(seen) > CHECKS_PER_TIME_KEPT and seen[0] > compacted:
                await metadata.compact(seen[0])
                log.info("metadata revisions compacted to=%s current=%s", seen[0], seen[-1])
                compacted = seen[0]
        except TidelogError as error:
            log.warning("metadata revisions not compacted, so the store grows: %s", error)
        await asyncio.sleep(kept_s / CHECKS_PER_TIME_KEPT)
