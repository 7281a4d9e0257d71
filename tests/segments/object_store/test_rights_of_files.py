"""Who may read what Tidelog keeps in local directories: objects of a file:// bucket, and the disk tier."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from segments.object_store.directory import DirectoryObjectStore
from segments.read.disk_cache import DiskCache


@pytest.fixture(params=(0o000, 0o022, 0o077, 0o177), ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def written(root: Path) -> tuple[set[int], set[int]]:
    """Creates an object in the bucket. Returns the rights of all directories below the root, and of all files."""

    async def write() -> None:
        store = await DirectoryObjectStore.open(root, make_root=True)
        await store.create("wal/a/1", [b"records"])
        await store.close()

    asyncio.run(write())
    below = list(root.rglob("*"))
    assert {root / ".tmp", root / "wal/a/1"} <= set(below)
    return {rights(path) for path in below if path.is_dir()}, {rights(path) for path in below if path.is_file()}


@pytest.mark.usefixtures("umask")
def test_a_bucket_that_tidelog_makes_is_for_its_user_alone(tmp_path: Path) -> None:
    assert written(tmp_path / "bucket") == ({0o700}, {0o600})
    assert rights(tmp_path / "bucket") == 0o700


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("root", "directories", "objects"),
    [
        (0o700, 0o700, 0o600),
        (0o750, 0o750, 0o640),
        (0o755, 0o755, 0o644),
        (0o770, 0o770, 0o640),
        (0o1777, 0o1777, 0o644),
        (0o2750, 0o2750, 0o640),
    ],
)
def test_objects_take_the_rights_of_a_bucket_that_the_user_has_made(
    tmp_path: Path, root: int, directories: int, objects: int
) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket").chmod(root)
    assert written(tmp_path / "bucket") == ({directories}, {objects})
    assert rights(tmp_path / "bucket") == root


@pytest.mark.usefixtures("umask")
def test_the_disk_tier_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cold" / "broker-1"

    async def put() -> None:
        await DiskCache(folder, bytes_max=100).put("a", b"records")

    asyncio.run(put())
    assert [rights(path) for path in folder.iterdir()] == [0o600]
    assert [rights(path) for path in (folder, *folder.parents[:2])] == [0o700] * 3
