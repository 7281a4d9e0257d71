"""A data directory belongs to one broker process."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metadata.errors import Denied, Rejected, TidelogError, Unavailable
from metadata.store.data_directory import DataDirectory
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.stores import PATIENCE_S, run

HOLDER = """
import sys
from pathlib import Path
from metadata.store.data_directory import DataDirectory

DataDirectory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_directory_that_is_missing_is_created_with_its_parents(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "a" / "b") as data:
        assert data.path == tmp_path / "a" / "b"
        assert entries(data.path) == ["LOCK"]
        assert data.metadata_path == data.path / "metadata.sqlite"
        assert data.bucket_path == data.path / "bucket"


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with DataDirectory(Path("data")) as data:
        assert data.path == tmp_path / "data"


def test_the_lock_says_whose_the_directory_is(tmp_path: Path) -> None:
    with DataDirectory(tmp_path):
        title, holder = (tmp_path / "LOCK").read_text().splitlines()
        assert title == "tidelog data directory"
        assert json.loads(holder)["pid"] == os.getpid()
        assert json.loads(holder)["host"] == socket.gethostname()


def test_a_directory_in_use_is_refused_with_the_holder_and_what_to_do(tmp_path: Path) -> None:
    with DataDirectory(tmp_path):
        with pytest.raises(Rejected, match=f"in use by process {os.getpid()} on {socket.gethostname()}") as refused:
            DataDirectory(tmp_path)
        assert "another --data-dir" in refused.value.hint
        assert refused.value.details["pid"] == os.getpid()


def test_a_directory_is_free_again_when_it_was_closed(tmp_path: Path) -> None:
    for _ in range(2):
        data = DataDirectory(tmp_path)
        data.close()
        data.close()


def test_a_lock_file_of_an_ended_process_is_taken_over_whatever_its_contents(tmp_path: Path) -> None:
    for text in (b"", b"tidelog data directory\n{", b"tidelog data directory\n" + b"x" * 10_000):
        (tmp_path / "LOCK").write_bytes(text)
        with DataDirectory(tmp_path):
            assert len((tmp_path / "LOCK").read_text().splitlines()) == 2


def test_a_lock_whose_text_is_damaged_still_locks(tmp_path: Path) -> None:
    with DataDirectory(tmp_path):
        for text in (b"", b"\xff\xff\n\xff", b"tidelog data directory\n{}"):
            (tmp_path / "LOCK").write_bytes(text)
            with pytest.raises(Rejected, match="in use by another process"):
                DataDirectory(tmp_path)


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Rejected, match=f"in use by process {process.pid} "):
            DataDirectory(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        with DataDirectory(tmp_path):
            pass


def test_a_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(Rejected, match=r"no data directory of Tidelog: it holds thesis\.tex"):
        DataDirectory(tmp_path)
    assert entries(tmp_path) == ["thesis.tex"]
    (tmp_path / "LOCK").write_bytes(b"")  # other programs have a LOCK too
    with pytest.raises(Rejected, match="no data directory of Tidelog"):
        DataDirectory(tmp_path)
    assert (tmp_path / "LOCK").read_bytes() == b""


def test_a_copy_of_a_running_broker_without_its_lock_is_ours(tmp_path: Path) -> None:
    for name in ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"):
        (tmp_path / name).write_bytes(b"")
    with DataDirectory(tmp_path):
        assert "LOCK" in entries(tmp_path)


def test_a_mount_point_and_what_the_broker_put_there_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    with DataDirectory(tmp_path) as data:
        run(SqliteStore(data.metadata_path).close())
        data.bucket_path.mkdir()
        (data.path / "cache").mkdir()
    with DataDirectory(tmp_path):
        assert {"LOCK", "bucket", "cache", "lost+found", "metadata.sqlite"} <= set(entries(tmp_path))


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_path_that_is_no_directory_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Rejected, match="is not a directory"):
        DataDirectory(tmp_path / path)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_a_path_that_cannot_be_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(Rejected):
        DataDirectory(tmp_path / path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, Denied, "no permission"),
        (errno.EPERM, Denied, "no permission"),
        (errno.EROFS, Denied, "read-only file system"),
        (errno.ENOSPC, Unavailable, "no space is left"),
        (errno.EDQUOT, Unavailable, "no space is left"),
        (errno.ENOLCK, Rejected, "cannot be used"),
    ],
)
@pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "ftruncate"])
def test_each_failure_of_the_disk_says_what_to_do_and_gives_the_lock_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[TidelogError], message: str, call: str
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "data"
    with monkeypatch.context() as failing:
        failing.setattr(Path if call == "mkdir" else os, call, fails)
        with pytest.raises(kind, match=message) as refused:
            DataDirectory(path)
    assert refused.value.hint
    assert refused.value.details["path"] == str(path)
    with DataDirectory(path):
        assert entries(path) == ["LOCK"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(Denied, match="no permission"):
            DataDirectory(tmp_path)
    finally:
        tmp_path.chmod(0o700)
