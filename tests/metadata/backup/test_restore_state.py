"""What a restore adds to the metadata: a marker that holds everybody back, and the base of revisions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.backup.restore_state import (
    RANGES_MAX,
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
        unseen = SkippedSessions.between(map(SessionId, (1, 2, 4, 7)), SessionId(10))
        await store.transact([], [Put(LAYOUT.skipped_sessions, encode_skipped(unseen))])
        skipped = await read_skipped_sessions(store, LAYOUT)
        assert [number for number in range(12) if SessionId(number) in skipped] == [3, 5, 6, 8, 9]
        for damaged in (b"7-", b"7-8,", b"7", b"7-8;9-10"):
            await store.transact([], [Put(LAYOUT.skipped_sessions, damaged)])
            with pytest.raises(Corrupt, match="/tidelog/skipped_sessions holds no ranges"):
                await read_skipped_sessions(store, LAYOUT)
        await store.close()

    asyncio.run(main())


@given(st.sets(st.integers(1, 40)), st.integers(1, 40))
def test_the_numbers_that_a_restore_has_not_seen_are_all_others_below_the_next_one(seen: set[int], end: int) -> None:
    skipped = SkippedSessions.between(map(SessionId, sorted(seen)), SessionId(end))
    assert {number for number in range(50) if SessionId(number) in skipped} == set(range(1, end)) - seen


def test_of_many_ranges_of_numbers_the_highest_are_kept() -> None:
    skipped = SkippedSessions.between(map(SessionId, range(2, 1000, 2)), SessionId(5_000))
    assert len(skipped.ranges) == RANGES_MAX
    assert skipped.ranges[-1] == (999, 5_000)
