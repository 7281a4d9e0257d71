"""Copies the cluster's metadata to the bucket at an interval, so that losing etcd loses little.

metadata/backup/snapshot.py draws the bytes of a snapshot.

    metadata/snapshot-41-9001   …   metadata/snapshot-57-9760        the newest SNAPSHOTS_KEPT are kept
                      │  └ revision
                      └ the last batch of appointments that these metadata have applied

The controller writes a snapshot at each interval and once more when it ends in order, unless nothing has changed. A controller
that was replaced by another one of the same metadata does no harm: its snapshot is correct for its revision. A snapshot that fails
is logged and tried again at the next interval.

Revisions of two copies of the metadata cannot be compared. So the controller creates a batch of appointments before each snapshot,
which succeeds in one copy only. Invariant: of two copies, the snapshot of the one that has lost stands before each snapshot that
the winner has written since they were copied (tests/simulation/snapshots_model.py explores all interleavings).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from metadata.backup.restore_state import read_revision_base
from metadata.backup.snapshot import SnapshotHeader, SnapshotWriter
from metadata.controller.appointments import decode_progress
from metadata.errors import AlreadyExists, TidelogError, Unavailable
from metadata.model import Revision
from metadata.store.interface import MetadataStore, RevisionCompacted
from metadata.store.keys import KeyLayout
from segments.bucket.layout import SNAPSHOTS, SnapshotPosition, parse_snapshot_key, snapshot_key
from segments.object_store.interface import ObjectStore, list_all

SNAPSHOTS_KEPT = 10
PAGE_KEYS = 1000
# Attempts to read all keys at one revision: with many keys and changes, etcd may compact that revision in between.
ATTEMPTS_MAX = 3
# Time limit of the snapshot before a clean stop.
LAST_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class MetadataSnapshots:
    """Writes snapshots of the metadata at an interval. Its owner runs `run()` as a task while this broker is the controller, and
    calls `last()` before a clean stop."""

    def __init__(
        self,
        bucket: ObjectStore,
        metadata: MetadataStore,
        *,
        layout: KeyLayout,
        interval_s: float,
        now_ms: Callable[[], int],
        prove: Callable[[], Awaitable[None]],
    ) -> None:
        """`prove` creates a batch of appointments. It raises a TidelogError if another copy of the metadata has appointed."""
        self._prove = prove
        self._bucket = bucket
        self._metadata = metadata
        self._layout = layout
        self._interval_s = interval_s
        self._now_ms = now_ms

    async def run(self) -> None:
        """Writes a snapshot after each interval until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._try()

    async def last(self) -> None:
        """Writes one more snapshot, or logs that it took longer than LAST_TIMEOUT_S."""
        try:
            async with asyncio.timeout(LAST_TIMEOUT_S):
                await self._try()
        except TimeoutError:
            log.warning("last metadata snapshot not written: it took longer than %g s", LAST_TIMEOUT_S)

    async def _try(self) -> None:
        try:
            if await self._metadata.get(self._layout.cluster_id) is None:
                return
            if await _next_position(self._bucket, self._metadata, self._layout) is None:
                return
            await self._prove()
            await take_snapshot(self._bucket, self._metadata, self._layout, now_ms=self._now_ms)
        except TidelogError as error:
            log.error("metadata snapshot failed: %s", error)


async def take_snapshot(
    bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout, *, now_ms: Callable[[], int]
) -> SnapshotPosition | None:
    """Writes a snapshot of the present metadata, and deletes all but the newest SNAPSHOTS_KEPT. Returns its place.

    Returns None if the newest snapshot has this revision or a later one, or if the cluster has no id yet. Raises Unavailable,
    OutcomeUnknown, Denied, Corrupt.
    """
    identity = await metadata.get(layout.cluster_id)
    if identity is None:
        return None
    base = await read_revision_base(metadata, layout)
    for _ in range(ATTEMPTS_MAX):
        position = await _next_position(bucket, metadata, layout)
        if position is None:
            return None
        header = SnapshotHeader(identity.value.decode(), position.revision, now_ms())
        try:
            body = await _read(metadata, layout, header, base)
        except RevisionCompacted:
            continue
        with contextlib.suppress(AlreadyExists):  # the previous controller wrote it, or an attempt whose answer was lost
            await bucket.create(snapshot_key(position), body)
        others = [found for found in await list_snapshots(bucket) if found.position != position]
        for old in others[: 1 - SNAPSHOTS_KEPT]:
            await bucket.delete(old.key)
        log.info("metadata snapshot written revision=%s bytes=%d", position.revision, sum(map(len, body)))
        return position
    raise Unavailable(f"the metadata changed too fast to be read at one revision, {ATTEMPTS_MAX} times")


class ListedSnapshot(NamedTuple):
    """A snapshot on the bucket: its place in the order of snapshots, and its key."""

    position: SnapshotPosition
    key: str


async def list_snapshots(bucket: ObjectStore) -> list[ListedSnapshot]:
    """Returns the snapshots on the bucket, the newest last. Raises Unavailable, Denied."""
    found = [
        ListedSnapshot(position, info.key)
        async for info in list_all(bucket, SNAPSHOTS)
        if (position := parse_snapshot_key(info.key))
    ]
    return sorted(found)


async def current_position(metadata: MetadataStore, layout: KeyLayout) -> SnapshotPosition:
    """Returns the place that a snapshot of the present metadata would have. Raises Unavailable, Corrupt."""
    base = await read_revision_base(metadata, layout)
    found = await metadata.range(layout.appointments, limit=1)
    kept = next((item for item in found.items if item.key == layout.appointments), None)
    return SnapshotPosition(decode_progress(kept, key=layout.appointments).number, Revision(found.revision + base))


async def _next_position(bucket: ObjectStore, metadata: MetadataStore, layout: KeyLayout) -> SnapshotPosition | None:
    """Returns the place of the next snapshot; None if that snapshot or a later one exists."""
    listed = await list_snapshots(bucket)  # before the metadata are read, so that no listed snapshot of theirs is newer
    now = await current_position(metadata, layout)
    if not listed or listed[-1].position < now:
        return now
    if listed[-1].position > now:
        log.error(
            "snapshot is newer than the metadata key=%s revision=%s appointments=%s: etcd was set back to a backup, and should "
            "have been restored from the bucket, or the metadata exist twice",
            listed[-1].key,
            now.revision,
            now.number,
        )
    return None


async def _read(metadata: MetadataStore, layout: KeyLayout, header: SnapshotHeader, base: int) -> list[bytes]:
    writer = SnapshotWriter(header, root=layout.root, revision_base=base)
    at = Revision(header.revision - base)
    page = await metadata.range(layout.root, limit=PAGE_KEYS, revision=at)
    while True:
        # Readers of the bucket must not be able to act as a broker, or to guess passwords.
        writer.add(
            item
            for item in page.items
            if item.key not in {layout.peer_secret, layout.scram_secret} and not item.key.startswith(layout.scram_users)
        )
        if not page.more:
            return writer.finish()
        page = await metadata.range(layout.root, start_after=page.items[-1].key, limit=PAGE_KEYS, revision=at)
