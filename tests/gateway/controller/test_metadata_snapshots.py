"""Copies of the metadata on the bucket: in time, each at one revision, a few of them, and no harm where one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from gateway.controller import metadata_snapshots
from gateway.controller.metadata_snapshots import SNAPSHOTS_KEPT, MetadataSnapshots, list_snapshots, take_snapshot
from metadata.backup.snapshot import parse_snapshot
from metadata.controller.appointments import Progress, encode_progress
from metadata.errors import OutcomeUnknown, Unavailable
from metadata.model import Revision
from metadata.store.interface import NOW, MetadataStore, Put, RangeResult, RevisionCompacted
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.layout import SnapshotPosition, snapshot_key
from segments.object_store.interface import Buffer
from segments.object_store.memory import MemoryObjectStore
from tests.kit.gateway.listenerless_cluster import cluster_of
from tests.kit.metadata.faulty_store import FaultyStore
from tests.simulation.virtual_loop import run as run_virtually

LAYOUT = KeyLayout()
INTERVAL_S = 600.0


class FailingBucket(MemoryObjectStore):
    """Fails creates while `fails` is set."""

    fails: Exception | None = None

    async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
        if self.fails is not None:
            raise self.fails
        await super().create(key, body, crc32c=crc32c)


def now_ms() -> int:
    return 77


async def proven() -> None:
    """No other copy of the metadata has appointed leaders."""


async def positions(bucket: MemoryObjectStore) -> list[SnapshotPosition]:
    return [found.position for found in await list_snapshots(bucket)]


async def snapshot_of(bucket: MemoryObjectStore, metadata: MetadataStore) -> SnapshotPosition | None:
    return await take_snapshot(bucket, metadata, LAYOUT, now_ms=now_ms)


def with_cluster(tmp_path: Path, test: Callable[[FailingBucket, SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"the-cluster")])
        try:
            await test(FailingBucket(), metadata)
        finally:
            await metadata.close()

    asyncio.run(main())


def test_a_snapshot_holds_every_key_of_the_cluster_but_the_leased_ones_and_no_key_of_others(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        lease = await metadata.grant_lease(60)
        await metadata.transact(
            [], [Put(LAYOUT.broker("b1"), b"", lease), Put("/other/key", b""), Put(f"{LAYOUT.root}acls/1", b"A")]
        )
        position = await snapshot_of(bucket, metadata)
        assert position is not None
        snapshot = parse_snapshot(await bucket.get(snapshot_key(position)), key="s")
        assert snapshot.header.cluster_id == "the-cluster"
        assert (snapshot.header.revision, snapshot.header.taken_at_ms) == (position.revision, 77)
        assert [entry.key for entry in snapshot.entries] == ["acls/1", "cluster_id"]

    with_cluster(tmp_path, test)


def test_a_snapshot_holds_one_revision_though_keys_change_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_snapshots, "PAGE_KEYS", 2)

    class Changing(FaultyStore):
        async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
            result = await super().range(prefix, start_after=start_after, limit=limit, revision=revision)
            await self.store.transact([], [Put(f"{LAYOUT.root}acls/{n}", b"changed") for n in range(9)])
            return result

    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(f"{LAYOUT.root}acls/{n}", b"as it was") for n in range(9)])
        position = await snapshot_of(bucket, Changing(metadata))
        assert position is not None
        entries = parse_snapshot(await bucket.get(snapshot_key(position)), key="s").entries
        assert [entry.value for entry in entries if entry.key.startswith("acls/")] == [b"as it was"] * 9

    with_cluster(tmp_path, test)


def test_none_is_written_where_nothing_has_changed(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        first = await snapshot_of(bucket, metadata)
        assert first is not None
        assert await snapshot_of(bucket, metadata) is None
        assert await positions(bucket) == [first]

    with_cluster(tmp_path, test)


def test_a_cluster_without_an_id_has_none(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        assert await take_snapshot(bucket, metadata, KeyLayout("unborn"), now_ms=now_ms) is None

    with_cluster(tmp_path, test)


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        written = []
        for number in range(SNAPSHOTS_KEPT + 3):
            await metadata.transact([], [Put(f"{LAYOUT.root}acls/1", str(number).encode())])
            written.append(await snapshot_of(bucket, metadata))
        assert await positions(bucket) == written[-SNAPSHOTS_KEPT:]

    with_cluster(tmp_path, test)


def test_after_a_restore_revisions_go_on_where_they_were(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        await bucket.create(snapshot_key(SnapshotPosition(0, Revision(9000))), [b"of the old metadata"])
        await metadata.transact([], [Put(LAYOUT.revision_base, b"9000")])
        position = await snapshot_of(bucket, metadata)
        assert position is not None
        assert position.revision > 9000
        entries = parse_snapshot(await bucket.get(snapshot_key(position)), key="s").entries
        assert all(9000 < entry.revision <= position.revision for entry in entries)

    with_cluster(tmp_path, test)


def test_metadata_that_were_restored_from_a_backup_are_logged_and_not_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        await bucket.create(snapshot_key(SnapshotPosition(0, Revision(9000))), [b"newer"])
        assert await snapshot_of(bucket, metadata) is None
        assert "etcd was set back to a backup" in caplog.text

    with_cluster(tmp_path, test)


def test_a_snapshot_with_fewer_appointments_stands_before_this_one_whatever_its_revision(tmp_path: Path) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        await bucket.create(snapshot_key(SnapshotPosition(6, Revision(9000))), [b"of the copy that has lost"])
        await metadata.transact([], [Put(LAYOUT.appointments, encode_progress(Progress(7)))])
        position = await snapshot_of(bucket, metadata)
        assert position is not None
        assert position.number == 7
        assert position.revision < 9000
        assert (await positions(bucket))[-1] == position

    with_cluster(tmp_path, test)


def test_a_snapshot_with_more_appointments_shows_that_the_metadata_are_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.revision_base, b"9000"), Put(LAYOUT.appointments, encode_progress(Progress(7)))])
        await bucket.create(snapshot_key(SnapshotPosition(8, Revision(5))), [b"of the copy that goes on"])
        assert await snapshot_of(bucket, metadata) is None
        assert "or the metadata exist twice" in caplog.text

    with_cluster(tmp_path, test)


@pytest.mark.parametrize("changed", [True, False])
def test_a_batch_of_appointments_is_created_before_a_snapshot_and_only_where_something_has_changed(
    tmp_path: Path, changed: bool
) -> None:
    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        batches: list[int] = []

        async def prove() -> None:
            batches.append(len(await positions(bucket)))

        await snapshot_of(bucket, metadata)
        if changed:
            await metadata.transact([], [Put(f"{LAYOUT.root}acls/1", b"")])
        await MetadataSnapshots(bucket, metadata, layout=LAYOUT, interval_s=INTERVAL_S, now_ms=now_ms, prove=prove).last()
        assert batches == ([1] if changed else [])
        assert len(await positions(bucket)) == (2 if changed else 1)

    with_cluster(tmp_path, test)


def test_history_that_is_compacted_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    class Compacting(FaultyStore):
        holes = 1

        async def range(self, prefix: str, *, start_after: str = "", limit: int = 0, revision: Revision = NOW) -> RangeResult:
            if revision and self.holes:
                self.holes -= 1
                raise RevisionCompacted(Revision(revision + 1))
            return await super().range(prefix, start_after=start_after, limit=limit, revision=revision)

    async def test(bucket: FailingBucket, metadata: SqliteStore) -> None:
        store = Compacting(metadata)
        assert await snapshot_of(bucket, store) is not None
        store.holes = 100
        await metadata.transact([], [Put(f"{LAYOUT.root}acls/1", b"")])
        with pytest.raises(Unavailable, match="changed too fast"):
            await snapshot_of(bucket, store)

    with_cluster(tmp_path, test)


@pytest.mark.parametrize("error", [Unavailable("the bucket is away"), OutcomeUnknown("no answer")])
def test_a_failed_snapshot_is_logged_and_the_next_one_is_taken_on_schedule(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        metadata = SqliteStore(Path(":memory:"))
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"the-cluster")])
        bucket = FailingBucket()
        bucket.fails = error
        copies = MetadataSnapshots(bucket, metadata, layout=LAYOUT, interval_s=INTERVAL_S, now_ms=now_ms, prove=proven)
        running = asyncio.ensure_future(copies.run())
        await asyncio.sleep(1.5 * INTERVAL_S)
        assert await positions(bucket) == []
        assert "metadata snapshot failed" in caplog.text
        bucket.fails = None
        await asyncio.sleep(INTERVAL_S)
        assert len(await positions(bucket)) == 1
        running.cancel()
        await metadata.close()

    run_virtually(main())


@pytest.mark.parametrize("killed", [False, True])
def test_a_controller_that_stops_in_order_leaves_a_snapshot_of_the_last_change(killed: bool, tmp_path: Path) -> None:
    async def main() -> None:
        metadata, bucket = SqliteStore(tmp_path / "metadata.sqlite"), MemoryObjectStore()
        async with cluster_of(bucket, metadata, ["b1"], killed=killed) as cluster:
            topic = await cluster.create("orders")
        written = await positions(bucket)
        assert len(written) == (0 if killed else 1)
        assert all(position.revision > topic.revision for position in written)
        await metadata.close()

    asyncio.run(main())


def test_the_last_snapshot_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    class HangingBucket(MemoryObjectStore):
        async def create(self, key: str, body: Sequence[Buffer], *, crc32c: int | None = None) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        metadata = SqliteStore(Path(":memory:"))
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"the-cluster")])
        await MetadataSnapshots(HangingBucket(), metadata, layout=LAYOUT, interval_s=INTERVAL_S, now_ms=now_ms, prove=proven).last()
        assert "it took longer than 5 s" in caplog.text
        await metadata.close()

    run_virtually(main())
