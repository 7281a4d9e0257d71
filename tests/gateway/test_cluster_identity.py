"""Metadata and bucket must be of one cluster; metadata that were lost are never taken for those of a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.cluster_identity import identify_cluster
from metadata.errors import Rejected
from metadata.etcd_layout import EtcdLayout
from metadata.model import SegmentSeq, SessionId
from metadata.sqlite_store import SqliteStore
from metadata.store import DeletePrefix, Put
from segments.bucket_layout import segment_key
from segments.cluster_record import read_cluster_record, sign_bucket
from segments.memory_store import MemoryStore

LAYOUT = EtcdLayout()


def with_parts(tmp_path: Path, test: Callable[[MemoryStore, SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        metadata = SqliteStore(tmp_path / "metadata.sqlite")
        try:
            await test(MemoryStore(), metadata)
        finally:
            await metadata.close()

    asyncio.run(main())


async def identify(bucket: MemoryStore, metadata: SqliteStore, new_id: str = "new") -> str:
    return await identify_cluster(bucket, metadata, LAYOUT, new_id=new_id, now_ms=0)


def test_empty_metadata_and_an_empty_bucket_become_a_new_cluster_and_stay_it(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        assert await identify(bucket, metadata) == "new"
        assert await identify(bucket, metadata, "another") == "new"
        record = await read_cluster_record(bucket)
        assert record is not None
        assert record.cluster_id == "new"

    with_parts(tmp_path, test)


def test_a_first_start_that_was_interrupted_before_it_signed_the_bucket_is_completed(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"first")])
        assert await identify(bucket, metadata) == "first"

    with_parts(tmp_path, test)


def test_metadata_and_bucket_of_two_clusters_are_refused_with_both_names(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        await metadata.transact([], [Put(LAYOUT.cluster_id, b"one")])
        await sign_bucket(bucket, "other", now_ms=0)
        with pytest.raises(Rejected, match="belongs to cluster other, but this broker's metadata to cluster one"):
            await identify(bucket, metadata)

    with_parts(tmp_path, test)


def test_empty_metadata_beside_a_clusters_bucket_are_refused_with_the_way_to_restore_them(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        await identify(bucket, metadata, "lost")
        await metadata.transact([], [DeletePrefix(LAYOUT.root)])
        with pytest.raises(Rejected, match="belongs to cluster lost, but the metadata under /tidelog/ are empty") as refused:
            await identify(bucket, metadata)
        assert "tidelog cluster restore" in refused.value.hint
        assert (await metadata.range(LAYOUT.root)).items == ()

    with_parts(tmp_path, test)


def test_records_without_a_cluster_json_are_no_empty_bucket_either(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        await bucket.create(segment_key(SessionId(1), SegmentSeq(0)), [b"records"])
        with pytest.raises(Rejected, match=r"holds records, though no cluster\.json"):
            await identify(bucket, metadata)
        assert await read_cluster_record(bucket) is None

    with_parts(tmp_path, test)


def test_brokers_that_start_at_once_on_a_new_bucket_all_start(tmp_path: Path) -> None:
    async def test(bucket: MemoryStore, metadata: SqliteStore) -> None:
        assert len(set(await asyncio.gather(*(identify(bucket, metadata, f"id-{n}") for n in range(8))))) == 1

    with_parts(tmp_path, test)
