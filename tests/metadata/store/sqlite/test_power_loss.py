"""What the embedded store has acknowledged survives a loss of power."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadata.errors import Corrupt
from metadata.model import Revision
from metadata.store.interface import Put
from metadata.store.sqlite.mvcc import SqliteMvcc
from metadata.store.sqlite.store import SqliteStore
from tests.kit.metadata.lost_power import Disk, operations_of

FULL = 2
COMMITS = 30
# Large enough that the log is written back into the database (at 1,000 pages of 4 KiB) on the way.
VALUE_BYTES = 200_000
SEED = 20_260_114

PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from metadata.store.sqlite.store import SqliteStore
from metadata.store.interface import Put

async def main(root, synchronous, commits, value_bytes):
    store = SqliteStore(root / "metadata.sqlite")
    if synchronous:
        store._history._all(f"PRAGMA synchronous = {synchronous}")
    acknowledged = os.open(root / "ACKNOWLEDGED", os.O_WRONLY | os.O_CREAT)
    for number in range(commits):
        await store.transact([], [Put(f"/{number}", bytes([number]) * value_bytes)])
        os.write(acknowledged, b"1")
    await store.close()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def test_each_connection_of_the_store_syncs_at_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`synchronous = NORMAL` syncs at checkpoints alone: acknowledged transactions would be lost with the power."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    made: list[sqlite3.Connection] = []

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)

    async def test() -> None:
        for opened in ("new", "again"):
            store = SqliteStore(tmp_path / "metadata.sqlite")
            await store.transact([], [Put("/a", opened.encode())])
            await store.grant_lease(1)
            for connection in made:
                assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            await store.close()
            made.clear()

    asyncio.run(test())


def lost(root: Path, scratch: Path, *, synchronous: str = "") -> list[int]:
    """Writes to a store, and ends its power at each sync and each acknowledgement. Returns, for each of these moments, how many of
    the acknowledged transactions were missing afterwards: all, where the store was damaged."""
    root.mkdir()
    scratch.mkdir()
    arguments = [str(root), synchronous, str(COMMITS), str(VALUE_BYTES)]
    disk, drawn, left = Disk(root), random.Random(SEED), scratch / "left"
    acknowledged, missing = 0, []
    for operation in operations_of(PROGRAM, arguments, root, scratch):
        if operation.path.name == "ACKNOWLEDGED":
            acknowledged += operation.kind == "w"
        else:
            disk.apply(operation)
        if operation.kind == "s" or operation.path.name == "ACKNOWLEDGED":
            for kept in (None, drawn):
                disk.leave(left, kept)
                try:
                    missing.append(max(0, acknowledged - kept_transactions(left / "metadata.sqlite")))
                except Corrupt:
                    missing.append(COMMITS)
                shutil.rmtree(left)
    assert acknowledged == COMMITS
    return missing


def kept_transactions(path: Path) -> int:
    """How many transactions are there, each of them whole and none without those before it."""
    history = SqliteMvcc(path, lambda: 0.0)
    try:
        items = sorted(history.range("/", "", 0, Revision(0)).items, key=lambda item: int(item.key[1:]))
        assert [item.key for item in items] == [f"/{number}" for number in range(len(items))]
        assert all(item.value == bytes([number]) * VALUE_BYTES for number, item in enumerate(items))
        assert history.revision == 1 + len(items)
        return len(items)
    finally:
        history.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_each_acknowledged_transaction_survives_a_disk_that_loses_what_was_not_synced(tmp_path: Path) -> None:
    missing = lost(tmp_path / "data", tmp_path / "scratch")
    assert len(missing) > 2 * COMMITS
    assert set(missing) == {0}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_store_that_syncs_less_is_found_out(tmp_path: Path, synchronous: str) -> None:
    """Proves that the disk of these tests loses something."""
    assert max(lost(tmp_path / "data", tmp_path / "scratch", synchronous=synchronous)) > 0
