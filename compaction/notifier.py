"""Notifies brokers which partitions have a newer manifest. One key of the metadata, under a lease, names all of a poll.

A notice saves brokers requests to the bucket, and nothing depends on it: a compactor does not repeat one that fails. The leader
finds the newer manifest when a segment that it reads is gone. Leaders repeat notices of DeleteRecords
(gateway/cluster/manifest_watch.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from metadata.cluster.manifest_notice import NOTICE_KEPT_S, ManifestNotice, encode_notices
from metadata.errors import TidelogError
from metadata.store.interface import LeaseLost, MetadataStore, Put
from metadata.store.keys import KeyLayout

TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class ManifestNotifier:
    """Writes notices of newer manifests under a lease."""

    def __init__(self, store: MetadataStore, layout: KeyLayout) -> None:
        self._store = store
        self._layout = layout

    async def notify(self, unit: str, changed: Sequence[ManifestNotice]) -> bool:
        """Writes the notices, and returns whether all were written. `unit` is a name that is never used again."""
        if not changed:
            return True
        try:
            async with asyncio.timeout(TIMEOUT_S):
                lease = await self._store.grant_lease(NOTICE_KEPT_S)
                for number, value in enumerate(encode_notices(changed)):
                    await self._store.transact([], [Put(self._layout.compaction(f"{unit}-{number}"), value, lease)])
        except (TidelogError, LeaseLost, TimeoutError) as error:
            log.warning("notices of newer manifests failed partitions=%d: %s", len(changed), error or "no answer in time")
            return False
        return True
