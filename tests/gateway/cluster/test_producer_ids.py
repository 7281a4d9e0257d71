"""Producer ids where the metadata exist twice: a second producer with the id of a first one would lose records as repeats."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from metadata.cluster.id_allocation import ProducerIds, next_session
from metadata.model import SessionId
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore
from segments.object_store.memory import MemoryObjectStore
from segments.wal.session import Session, claim

LAYOUT = KeyLayout()


async def opened(bucket: MemoryObjectStore, directory: Path, writer: bytes) -> Session:
    """Claims the next session that the metadata in this directory know as free on the bucket."""
    metadata = SqliteStore(directory / "metadata.sqlite")

    async def pass_over(_: SessionId) -> None:
        """Another copy has claimed the number."""

    try:
        return await claim(
            bucket,
            next_number=lambda: next_session(metadata, LAYOUT),
            writer=writer,
            broker_id="b-1",
            now_ms=lambda: 0,
            pass_over=pass_over,
        )
    finally:
        await metadata.close()


def test_brokers_on_copies_of_the_metadata_give_different_producer_ids(tmp_path: Path) -> None:
    async def main() -> None:
        bucket = MemoryObjectStore()
        original, copy = tmp_path / "original", tmp_path / "copy"
        original.mkdir()
        sessions = [await opened(bucket, original, b"1" * 16)]
        shutil.copytree(original, copy)
        sessions += [await opened(bucket, copy, b"2" * 16), await opened(bucket, original, b"3" * 16)]
        given: list[int] = []
        for session in sessions:
            ids = ProducerIds(lambda number=session.id: number, bytes)  # type: ignore[misc]  # the default binds the loop's session
            given += [ids.next() for _ in range(3)]
        assert len(set(given)) == 9

    asyncio.run(main())
