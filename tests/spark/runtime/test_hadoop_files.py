"""What a replay keeps beside Spark's checkpoint, over a file system that behaves as Hadoop's of local files; without a JVM."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.errors import Rejected
from spark.runtime.hadoop_files import CONFIGURED_BY, HadoopFolder, local_folder


class Local:
    """Hadoop's RawLocalFileSystem: its rename writes over what is there."""

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def create(self, path: str, overwrite: bool) -> Any:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb" if overwrite else "xb")

    def open(self, path: str) -> Any:
        body = Path(path).read_bytes()
        return SimpleNamespace(readAllBytes=lambda: body, close=lambda: None)

    def rename(self, old: str, new: str) -> bool:
        os.replace(old, new)
        return True

    def listStatus(self, path: str) -> list[Any]:  # noqa: N802  # the names are Hadoop's
        return [self._status(name) for name in os.listdir(path)]

    @staticmethod
    def _status(name: str) -> Any:
        return SimpleNamespace(getPath=lambda: SimpleNamespace(getName=lambda: name))


class LocalPath(str):
    def getFileSystem(self, configuration: object) -> Local:
        return Local()


@pytest.fixture
def folder(tmp_path: Path) -> HadoopFolder:
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=LocalPath))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    spark: Any = SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    return HadoopFolder(spark, f"{tmp_path}/checkpoint/")


def test_a_file_that_is_there_is_not_written_over_though_the_file_system_would(folder: HadoopFolder) -> None:
    assert folder.read("replay.json") is None
    folder.create("replay.json", b"first")
    with pytest.raises(Rejected, match=r"replay\.json is there already"):
        folder.create("replay.json", b"second")
    assert folder.read("replay.json") == b"first"


def test_the_draft_of_a_run_that_was_killed_is_nothing(folder: HadoopFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Local, old: str, new: str) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Local, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.create("replay.json", b"first")
    assert folder.names("")
    assert folder.is_empty()
    folder.create("replay.json", b"second")
    assert folder.read("replay.json") == b"second"
    assert not folder.is_empty()
    assert folder.is_empty(but="replay.json")


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("file:///rows", "/rows"),
        ("file:/rows", "/rows"),
        ("file://localhost/rows", "/rows"),
        ("/rows", "/rows"),
        ("/a%20b#c?d", "/a%20b#c?d"),
        ("file:///a%20b", None),
        ("file:/rows#1", None),
        ("file:/rows?1", None),
        ("file:/rows#", None),
        ("file://elsewhere/rows", None),
        ("s3a://bucket/rows", None),
    ],
)
def test_an_address_is_a_folder_of_this_machine_only_where_hadoop_reads_it_so(
    uri: str, folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop decodes nothing, and takes # and ? for letters of the name."""
    for name in CONFIGURED_BY:
        monkeypatch.delenv(name, raising=False)
    assert local_folder(uri, master="local[*]", config={}) == (None if folder is None else Path(folder))
