"""What a restore adds to the metadata: a marker that holds everybody back, and the base of revisions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metadata.backup.restore_state import (
    RestoreState,
    SkippedSessions,
    check_not_restoring,
    decode_restoring,
    encode_restoring,
    encode_skipped,
    read_revision_base,
    read_skipped_sessions,
)
from metadata.errors import Corrupt, Rejected
from metadata.model import Revision, SessionId
from metadata.store.interface import KeyValue, Put
from metadata.store.keys import KeyLayout
from metadata.store.sqlite.store import SqliteStore

LAYOUT = KeyLayout()


def test_the_marker_says_which_cluster_is_restored() -> None:
    value = encode_restoring(RestoreState("abc", 5))
    assert decode_restoring(KeyValue(LAYOUT.restoring, value, Revision(1), Revision(1), 1)) == RestoreState("abc", 5)
    with pytest.raises(Corrupt, match="/tidelog/restoring"):
        decode_restoring(KeyValue(LAYOUT.restoring, b"\xff", Revision(1), Revision(1), 1))


def test_a_broker_cannot_start_while_the_restore_marker_exists(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "metadata.sqlite")
        await check_not_restoring(store, LAYOUT)
        await store.transact([], [Put(LAYOUT.restoring, b"")])
        with pytest.raises(Rejected, match="being restored") as refused:
            await check_not_restoring(store, LAYOUT)
        assert "tidelog cluster restore" in refused.value.hint
        await store.close()

    asyncio.run(main())


def test_revisions_have_no_base_until_a_restore_writes_one(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "metadata.sqlite")
        assert await read_revision_base(store, LAYOUT) == 0
        await store.transact([], [Put(LAYOUT.revision_base, b"9001")])
        assert await read_revision_base(store, LAYOUT) == 9001
        await store.close()

    asyncio.run(main())


def test_no_session_is_skipped_until_a_restore_skips_some(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "metadata.sqlite")
        assert SessionId(0) not in await read_skipped_sessions(store, LAYOUT)
        await store.transact([], [Put(LAYOUT.skipped_sessions, encode_skipped(SkippedSessions(SessionId(7), SessionId(9))))])
        skipped = await read_skipped_sessions(store, LAYOUT)
        assert [number for number in range(12) if SessionId(number) in skipped] == [7, 8]
        await store.transact([], [Put(LAYOUT.skipped_sessions, b"7-")])
        with pytest.raises(Corrupt, match="/tidelog/skipped_sessions holds no range"):
            await read_skipped_sessions(store, LAYOUT)
        await store.close()

    asyncio.run(main())
