"""What Tidelog keeps on a disk is for its own user, whatever the umask is."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.private_files import make_private_directories
from metadata.store.data_directory import DataDirectory
from metadata.store.interface import Put
from metadata.store.sqlite.store import SqliteStore

UMASKS = (0o000, 0o022, 0o077, 0o177)


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_one(path: Path) -> dict[str, int]:
    """Writes a key to the store at `path`. Returns the rights of all files in its directory while the store is open."""

    async def write() -> dict[str, int]:
        store = SqliteStore(path)
        await store.transact([], [Put("/a", b"secret")])
        found = {entry.name: rights(entry) for entry in path.parent.iterdir()}
        await store.close()
        return found

    return asyncio.run(write())


@pytest.mark.usefixtures("umask")
def test_a_data_directory_and_its_files_are_for_their_user_alone(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "parent" / "data") as data:
        found = write_one(data.metadata_path)
    assert found.keys() >= {"LOCK", "metadata.sqlite", "metadata.sqlite-wal"}
    assert set(found.values()) == {0o600}, found
    assert rights(data.path) == rights(tmp_path / "parent") == 0o700


def test_files_of_the_metadata_that_others_could_read_are_tightened(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    write_one(path)
    (tmp_path / "LOCK").write_bytes(b"")
    left_over = [path, tmp_path / "metadata.sqlite-shm", tmp_path / "LOCK"]
    for file in left_over:
        file.touch()
        file.chmod(0o644)
    with DataDirectory(tmp_path):
        found = write_one(path)
    assert set(found.values()) == {0o600}, found


def test_a_directory_of_the_user_keeps_its_rights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    tmp_path.chmod(0o750)
    with DataDirectory(tmp_path) as data:
        data.bucket_path.mkdir(mode=0o700)
    make_private_directories(tmp_path)
    assert rights(tmp_path) == 0o750
    assert caplog.messages == []


def test_a_data_directory_that_all_users_can_write_or_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    tmp_path.chmod(0o777)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket").chmod(0o755)
    with DataDirectory(tmp_path):
        pass
    replaced, read = caplog.messages
    assert "can replace the metadata" in replaced
    assert "can read the records" in read
    tmp_path.chmod(0o1777)
    (tmp_path / "bucket").chmod(0o700)
    with DataDirectory(tmp_path):
        assert len(caplog.messages) == 2


def test_the_locks_of_an_open_store_outlive_an_attempt_to_open_it_again(tmp_path: Path) -> None:
    """The file is never opened beside SQLite: closing any descriptor of a file drops this process's locks on it."""
    path = tmp_path / "metadata.sqlite"

    async def test() -> None:
        store = SqliteStore(path)
        await store.transact([], [Put("/a", b"1")])
        inode = path.stat().st_ino
        locks = _locks(inode)
        assert locks
        with pytest.raises(Exception, match="another process"):
            SqliteStore(path)
        assert _locks(inode) == locks
        await store.close()

    asyncio.run(test())


def _locks(inode: int) -> list[str]:
    """The POSIX locks on a file, as the kernel lists them."""
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.partition(":")[2] for line in lines if f":{inode} " in line and "POSIX" in line]
