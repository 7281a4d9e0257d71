"""A session notes that it writes: once in a while, under its lease, and not while it writes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cluster import write_notes
from gateway.cluster.identity import identify_cluster
from gateway.cluster.write_notes import NOTE_INTERVAL_S, note_writes
from gateway.controller.metadata_snapshots import current_position
from metadata.errors import Rejected
from metadata.model import Partition, SegmentSeq, SessionId, TopicPartition
from metadata.store.sqlite.store import SqliteStore
from segments.bucket.layout import APPOINTMENTS
from segments.object_store.interface import list_all
from segments.object_store.memory import MemoryObjectStore
from tests.kit.gateway.listenerless_cluster import LAYOUT, cluster_of, now_ms, until
from tests.kit.metadata.faulty_store import FaultyStore
from tests.simulation.virtual_loop import run, virtual_loop

SESSION = SessionId(7)


def test_a_session_notes_its_writes_once_in_a_while_and_nothing_while_it_is_idle() -> None:
    async def main() -> None:
        sqlite = SqliteStore(Path(":memory:"), clock=virtual_loop().time)
        metadata = FaultyStore(sqlite)
        lease = await sqlite.grant_lease(1e6)
        committed = SegmentSeq(0)
        noting = asyncio.create_task(note_writes(metadata, LAYOUT, SESSION, lease, lambda: committed))

        async def noted() -> str | None:
            await asyncio.sleep(NOTE_INTERVAL_S)
            held = await sqlite.get(LAYOUT.written_by(SESSION))
            return held.value.decode() if held is not None else None

        await asyncio.sleep(1)
        assert await noted() is None
        committed = SegmentSeq(900)
        assert await noted() == "900"
        for _ in range(100):
            assert await noted() == "900"
        assert len(metadata.transactions) == 1
        committed, metadata.lose_requests = SegmentSeq(901), 1
        assert await noted() == "900"
        assert await noted() == "901"
        await sqlite.revoke_lease(lease)
        assert await noted() is None
        committed = SegmentSeq(902)
        assert await noted() is None
        assert noting.done()
        await sqlite.close()

    run(main())


async def applied(metadata: SqliteStore, number: int) -> bool:
    return (await current_position(metadata, LAYOUT)).number >= number


def test_a_bucket_that_lacks_only_records_is_older_than_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last night's copy: no leader and no topic has changed since."""
    monkeypatch.setattr(write_notes, "NOTE_INTERVAL_S", 0.01)

    async def main() -> None:
        bucket, copy = MemoryObjectStore("s3://ours"), MemoryObjectStore("s3://copy")
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        async with cluster_of(bucket, metadata, ["b1"], killed=True) as cluster:
            orders = await cluster.create("orders")

            for info in [found async for found in list_all(bucket, "")]:
                await copy.create(info.key, [await bucket.get(info.key)])
            before = [found.key async for found in list_all(bucket, APPOINTMENTS)]

            async def is_proven() -> bool:
                return [found.key async for found in list_all(bucket, APPOINTMENTS)] != before

            await cluster.produce(TopicPartition(orders.id, Partition(0)), 1, 0)
            await until(is_proven)
            await until(lambda: applied(metadata, len(before) + 1))
        await identify_cluster(bucket, metadata, LAYOUT, new_id="new", now_ms=now_ms())
        with pytest.raises(Rejected, match="is older than the metadata of cluster"):
            await identify_cluster(copy, metadata, LAYOUT, new_id="new", now_ms=now_ms())
        await metadata.close()

    asyncio.run(main())
