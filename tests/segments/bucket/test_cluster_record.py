"""No cluster begins above or below another one's prefix, as far as a check can find."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metadata.errors import Denied, Rejected
from segments.bucket.cluster_record import check_no_prefix_overlap, sign_bucket
from segments.object_store.interface import ListPage, ObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.open import open_store


async def _signed(url: str, cluster_id: str) -> None:
    store = await open_store(url, make_directory=True)
    await sign_bucket(store, cluster_id, now_ms=0)
    await store.close()


async def _check(url: str) -> None:
    store = await open_store(url, make_directory=True)
    try:
        await check_no_prefix_overlap(store, url)
    finally:
        await store.close()


def _in_memory(keys: Sequence[str], *, kind: type[MemoryObjectStore] = MemoryObjectStore) -> MemoryObjectStore:
    store = kind()

    async def fill() -> None:
        for key in keys:
            await store.create(key, [b'{"cluster_id": "inner", "created_at_ms": 0, "format_version": 1}'])

    asyncio.run(fill())
    return store


def _check_in_memory(store: ObjectStore) -> None:
    asyncio.run(check_no_prefix_overlap(store, "memory://"))


def _check_both_directions(base: str) -> None:
    async def check() -> None:
        await _signed(f"{base}/outer", "first")
        await _check(f"{base}/beside")
        await _check(f"{base}/outer-2")  # the name begins alike; the prefix does not
        with pytest.raises(Rejected, match=r"lies within .*/outer, which belongs to cluster first") as refused:
            await _check(f"{base}/outer/inner")
        assert "neither above nor below" in refused.value.hint
        with pytest.raises(Rejected, match="/outer belongs to cluster first, and lies within"):
            await _check(base)

    asyncio.run(check())


def test_of_directories_neither_the_inner_nor_the_outer_one_may_begin(tmp_path: Path) -> None:
    _check_both_directions(tmp_path.as_uri())


@pytest.mark.slow
def test_of_prefixes_on_s3_neither_the_inner_nor_the_outer_one_may_begin(moto_bucket: str) -> None:
    parts = urlsplit(moto_bucket)
    prefix = f"{parts.path.strip('/')}/{secrets.token_hex(4)}".strip("/")
    url = f"s3://{parts.netloc}/{prefix}"

    async def check() -> None:
        await _signed(f"{url}/outer?{parts.query}", "first")
        await _check(f"{url}/beside?{parts.query}")
        with pytest.raises(Rejected, match=r"lies within .*/outer, which belongs to cluster first"):
            await _check(f"{url}/outer/a/b?{parts.query}")
        with pytest.raises(Rejected, match="/outer belongs to cluster first, and lies within"):
            await _check(f"{url}?{parts.query}")

    asyncio.run(check())


def test_a_file_of_that_name_that_is_no_record_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "below").mkdir()
    (tmp_path / "bucket" / "below" / "cluster.json").write_text("[]")
    asyncio.run(_check((tmp_path / "bucket").as_uri()))


def test_a_way_that_only_leads_through_another_clusters_directory_ends_outside_of_it(tmp_path: Path) -> None:
    asyncio.run(_signed((tmp_path / "outer").as_uri(), "first"))
    asyncio.run(_check(str(tmp_path / "outer" / ".." / "beside")))
    (tmp_path / "link").symlink_to(tmp_path / "outer")
    with pytest.raises(Rejected, match=r"lies within .*/outer, which belongs to cluster first"):
        asyncio.run(_check(str(tmp_path / "link" / "inner")))


def test_a_cluster_behind_a_large_folder_of_others_is_found() -> None:
    store = _in_memory([*(f"a/{number:05d}" for number in range(12_000)), "b/c/cluster.json"])
    with pytest.raises(Rejected, match="memory:///b/c belongs to cluster inner"):
        _check_in_memory(store)


def test_no_more_than_some_pages_are_listed() -> None:
    class Counting(MemoryObjectStore):
        pages = 0

        async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
            self.pages += 1
            return await super().list(prefix, start_after=start_after, limit=limit)

    store = _in_memory([f"{number:05d}" for number in range(12_000)], kind=Counting)
    _check_in_memory(store)
    assert isinstance(store, Counting)
    assert store.pages == 10


def test_a_bucket_that_may_not_be_listed_is_passed_over() -> None:
    class Closed(MemoryObjectStore):
        async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
            raise Denied("no right to list")

    _check_in_memory(Closed())
