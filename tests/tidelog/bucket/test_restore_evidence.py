"""Which of the snapshots on the bucket a restore takes."""

from __future__ import annotations

import asyncio

from metadata.backup.snapshot import SnapshotHeader, SnapshotWriter
from metadata.controller.appointments import Progress, encode_progress
from metadata.model import Revision
from metadata.store.interface import KeyValue
from metadata.store.keys import KeyLayout
from segments.bucket.layout import snapshot_key
from segments.object_store.memory import MemoryObjectStore
from tidelog.bucket.restore_evidence import read_evidence

LAYOUT = KeyLayout()


async def plant(bucket: MemoryObjectStore, revision: int, progress: Progress | None) -> None:
    """Writes a snapshot that includes the batches of appointments up to `progress`."""
    writer = SnapshotWriter(SnapshotHeader("cluster", Revision(revision), 0), root=LAYOUT.root, revision_base=0)
    if progress is not None:
        writer.add([KeyValue(LAYOUT.appointments, encode_progress(progress), Revision(1), Revision(1), version=1)])
    await bucket.create(snapshot_key(Revision(revision)), writer.finish())


def taken(*snapshots: tuple[int, Progress | None]) -> int:
    """Returns the revision of the snapshot that a restore takes."""

    async def main() -> int:
        bucket = MemoryObjectStore()
        for revision, progress in snapshots:
            await plant(bucket, revision, progress)
        found = await read_evidence(bucket, "cluster", LAYOUT, now_ms=lambda: 0, dry_run=True, advance=lambda *_: None)
        assert found.evidence.snapshot is not None
        return found.evidence.snapshot.header.revision

    return asyncio.run(main())


def test_the_snapshot_with_the_latest_appointments_is_taken_though_a_losing_copy_has_a_higher_revision() -> None:
    assert taken((100, Progress(7)), (900, Progress(6)), (50, Progress(7))) == 100


def test_a_snapshot_that_names_no_appointments_is_read_and_comes_last() -> None:
    assert taken((100, Progress(1)), (900, None)) == 100
    assert taken((100, None), (900, None)) == 900
