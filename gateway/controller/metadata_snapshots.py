"""Copies the cluster's metadata to the bucket from time to time, so that losing etcd loses little. Its bytes:
metadata/backup/snapshot.py.

    metadata/snapshot-9001   …   metadata/snapshot-9760        the newest SNAPSHOTS_KEPT are kept

The controller writes a snapshot at each interval and once more when it ends in order, unless nothing has changed. A controller
that was replaced by another one of the same metadata does no harm: its snapshot is true of its revision. Revisions of two copies
of the metadata cannot be compared, so the controller looks for appointments of another copy before each snapshot. A snapshot
that fails is logged and tried again at the next interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from metadata.backup.restore_state import read_revision_base
from metadata.backup.snapshot import SnapshotHeader, SnapshotWriter
from metadata.errors import AlreadyExists, TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import MetadataStore, RevisionCompacted
from metadata.store.keys import KeyLayout
from segments.bucket.layout import SNAPSHOTS, parse_snapshot_key, snapshot_key
from segments.object_store.interface import ObjectStore, list_all

SNAPSHOTS_KEPT = 10
PAGE_KEYS = 1000
# History may be compacted while it is read, where the keys are many and changes too.
ATTEMPTS_MAX = 3
# For the snapshot at the end.
LAST_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class MetadataSnapshots:
    """Its owner runs `run()` as a task while this broker is the controller, and calls `last()` when it ends in order."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        *,
        layout: KeyLayout,
        interval_s: float,
        now_ms: Callable[[], int],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        """`confirm` raises a TidelogError where these metadata may not be copied: another copy of them has appointed leaders."""
        self._confirm = confirm
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._interval_s = interval_s
        self._now_ms = now_ms

    async def run(self) -> None:
        """One snapshot every interval, the first after one, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._try()

    async def last(self) -> None:
        """One more snapshot, unless it takes too long."""
        try:
            async with asyncio.timeout(LAST_TIMEOUT_S):
                await self._try()
        except TimeoutError:
            log.warning("no last snapshot of the metadata was written: it took longer than %g s", LAST_TIMEOUT_S)

    async def _try(self) -> None:
        try:
            await self._confirm()
            await take_snapshot(self._bucket, self._metadata, self._layout, now_ms=self._now_ms)
        except TidelogError as error:
            log.error("no snapshot of the metadata was written: %s", error)


async def take_snapshot(
    bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout, *, now_ms: Callable[[], int]
) -> Revision | None:
    """Writes a snapshot of now, and deletes those that are too many. None where the newest one is of this revision, or where the
    cluster has no id yet. Raises Unavailable, OutcomeUnknown, Denied, Corrupt."""
    identity = await metadata.get(layout.cluster_id)
    if identity is None:
        return None
    base = await read_revision_base(metadata, layout)
    kept = await snapshot_revisions(bucket)
    for _ in range(ATTEMPTS_MAX):
        revision = Revision((await metadata.range(layout.root, limit=1)).revision + base)
        if kept and kept[-1] >= revision:
            if kept[-1] > revision:
                log.error(
                    "snapshot %s is newer than the metadata, at %s: etcd was set back to a backup, and should have been restored "
                    "from the bucket",
                    kept[-1],
                    revision,
                )
            return None
        header = SnapshotHeader(identity.value.decode(), revision, now_ms())
        try:
            body = await _read(metadata, layout, header, base)
        except RevisionCompacted:
            continue
        with contextlib.suppress(AlreadyExists):  # by the controller before this one, or by an attempt whose answer was lost
            await bucket.create(snapshot_key(revision), body)
        for old in kept[: 1 - SNAPSHOTS_KEPT]:
            await bucket.delete(snapshot_key(old))
        log.info("snapshot %s of the metadata was written: %d bytes", revision, sum(map(len, body)))
        return revision
    raise Unavailable(f"the metadata changed too fast to be read at one revision, {ATTEMPTS_MAX} times")


async def snapshot_revisions(bucket: ObjectStore) -> list[Revision]:
    """Of the snapshots that lie on the bucket, the newest last."""
    return [revision async for found in list_all(bucket, SNAPSHOTS) if (revision := parse_snapshot_key(found.key)) is not None]


async def _read(metadata: MetadataStore, layout: KeyLayout, header: SnapshotHeader, base: int) -> list[bytes]:
    writer = SnapshotWriter(header, root=layout.root, revision_base=base)
    at = Revision(header.revision - base)
    page = await metadata.range(layout.root, limit=PAGE_KEYS, revision=at)
    while True:
        writer.add(item for item in page.items if item.key != layout.peer_secret)  # who reads the bucket is no broker
        if not page.more:
            return writer.finish()
        page = await metadata.range(layout.root, start_after=page.items[-1].key, limit=PAGE_KEYS, revision=at)
