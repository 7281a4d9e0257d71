"""Which of the snapshots on the bucket a restore takes."""

from __future__ import annotations

import asyncio

from metadata.backup.snapshot import SnapshotHeader, SnapshotWriter
from metadata.model import Revision
from metadata.store.keys import KeyLayout
from segments.bucket.layout import SnapshotPosition, snapshot_key
from segments.object_store.memory import MemoryObjectStore
from tidelog.bucket.restore_evidence import read_evidence

LAYOUT = KeyLayout()


async def plant(bucket: MemoryObjectStore, number: int | None, revision: int) -> None:
    """Writes a snapshot that includes the batches of appointments up to `number`; None: under a name without a number."""
    writer = SnapshotWriter(SnapshotHeader("cluster", Revision(revision), 0), root=LAYOUT.root, revision_base=0)
    named = (
        snapshot_key(SnapshotPosition(number, Revision(revision))) if number is not None else f"metadata/snapshot-{revision:020d}"
    )
    await bucket.create(named, writer.finish())


def taken(*snapshots: tuple[int | None, int]) -> int:
    """Returns the revision of the snapshot that a restore takes."""

    async def main() -> int:
        bucket = MemoryObjectStore()
        for number, revision in snapshots:
            await plant(bucket, number, revision)
        found = await read_evidence(bucket, "cluster", LAYOUT, now_ms=lambda: 0, dry_run=True, advance=lambda *_: None)
        assert found.evidence.snapshot is not None
        return found.evidence.snapshot.header.revision

    return asyncio.run(main())


def test_the_snapshot_with_the_latest_appointments_is_taken_though_a_losing_copy_has_a_higher_revision() -> None:
    assert taken((7, 100), (6, 900), (7, 50)) == 100


def test_a_snapshot_whose_name_holds_no_number_is_read_and_comes_last() -> None:
    assert taken((1, 100), (None, 900)) == 100
    assert taken((None, 100), (None, 900)) == 900
