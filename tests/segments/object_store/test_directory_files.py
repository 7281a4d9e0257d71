"""The order of keys is that of their bytes, whatever order the directories are walked in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.directory_files import list_in_key_order

components = st.text("a-.=0", min_size=1, max_size=3).map(lambda text: text.strip(".") or "b")
trees = st.lists(st.lists(components, min_size=1, max_size=4).map("/".join), max_size=15, unique=True).map(
    lambda keys: [key for key in keys if not any(other.startswith(key + "/") for other in keys)]
)


def plant(root: Path, *keys: str) -> None:
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).touch()


def listed(root: Path, prefix: str = "", start_after: str = "") -> list[str]:
    return [key for key, _ in list_in_key_order(str(root), prefix, start_after)]


@pytest.mark.slow
@given(tree=trees, data=st.data())
def test_a_walk_gives_the_keys_in_the_order_of_their_bytes(tree: list[str], data: st.DataObject) -> None:
    starts = ["", "a", "a/", "a-", "zz", *tree, *(key[:-1] for key in tree), *(key + "0" for key in tree)]
    prefix, start_after = data.draw(st.sampled_from(starts)), data.draw(st.sampled_from(starts))
    with tempfile.TemporaryDirectory() as root:
        plant(Path(root), *tree)
        expected = sorted(key for key in tree if key.startswith(prefix) and key > start_after)
        assert listed(Path(root), prefix, start_after) == expected


def test_a_file_that_is_not_an_object_is_passed_over(tmp_path: Path) -> None:
    plant(tmp_path, "wal/00", ".tmp/half-written", ".hidden", "lost+found/x", "two words", "wal/ümlaut")
    (tmp_path / "link").symlink_to(tmp_path / "wal/00")
    (tmp_path / "linked").symlink_to(tmp_path / "wal")
    (tmp_path / "empty/er").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    assert listed(tmp_path) == ["wal/00"]


@pytest.fixture
def read_directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    scandir = os.scandir

    def recorded(path: str) -> object:
        read.append(os.path.basename(path.rstrip("/")))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", recorded)
    return read


def test_no_directory_is_read_that_can_hold_no_wanted_key(tmp_path: Path, read_directories: list[str]) -> None:
    plant(tmp_path, *(f"wal/{session}/{seq}" for session in "123456" for seq in "ab"), "topics/orders/x", "zoo/x")
    assert listed(tmp_path, "wal/", "wal/5/a") == ["wal/5/b", "wal/6/a", "wal/6/b"]
    assert read_directories == ["wal", "5", "6"]
    read_directories.clear()
    assert listed(tmp_path, "wal/3") == ["wal/3/a", "wal/3/b"]
    assert read_directories == ["wal", "3"]


def test_a_walk_that_is_left_early_reads_no_further(tmp_path: Path, read_directories: list[str]) -> None:
    plant(tmp_path, *(f"wal/{session}/0" for session in "123456"))
    walk = list_in_key_order(str(tmp_path), "", "")
    assert [next(walk)[0], next(walk)[0]] == ["wal/1/0", "wal/2/0"]
    assert read_directories == [tmp_path.name, "wal", "1", "2"]


def test_a_directory_that_vanishes_during_the_walk_is_passed_over(tmp_path: Path) -> None:
    plant(tmp_path, "a/0", "b/0", "c/0")
    walk = list_in_key_order(str(tmp_path), "", "")
    assert next(walk)[0] == "a/0"
    (tmp_path / "b/0").unlink()
    (tmp_path / "b").rmdir()
    assert [key for key, _ in walk] == ["c/0"]
