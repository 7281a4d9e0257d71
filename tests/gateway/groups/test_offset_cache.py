"""What is remembered of committed offsets: the newest, whole once it was read, and little."""

from __future__ import annotations

from gateway.groups.offset_cache import CommittedOffsetCache
from metadata.groups.offsets import CommittedOffset
from tests.kit.gateway.reported_log import P0, P1


def committed(offset: int, at_ms: int = 0, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_at_ms=at_ms, metadata=metadata)


def test_commits_alone_don_t_make_a_group_whole() -> None:
    known = CommittedOffsetCache()
    known.committed("g", {P0: committed(1)})
    assert not known.is_whole("g")
    known.read("g", {P0: committed(0), P1: committed(5)}, began_ms=0)
    assert known.is_whole("g")
    assert {at: offset.offset for at, offset in known["g"].items()} == {P0: 1, P1: 5}


def test_an_offset_committed_during_a_read_is_newer_than_it_and_one_from_before_is_not() -> None:
    known = CommittedOffsetCache()
    known.committed("g", {P0: committed(1, 99), P1: committed(8, 100)})
    known.read("g", {P0: committed(3, 50), P1: committed(7, 90)}, began_ms=100)
    assert {at: offset.offset for at, offset in known["g"].items()} == {P0: 3, P1: 8}


def test_an_offset_that_the_store_has_no_more_is_forgotten() -> None:
    known = CommittedOffsetCache()
    known.committed("g", {P0: committed(1), P1: committed(2)})
    known.read("g", {P0: committed(1)}, began_ms=100)
    assert list(known["g"]) == [P0]
    known.deleted("g", [P0, P1])
    assert not known["g"]
    known.forget("g")
    assert not known.is_whole("g")
    known.deleted("never was", [P0])
    assert list(known) == []


def test_only_the_groups_that_are_asked_for_are_kept() -> None:
    known = CommittedOffsetCache()
    for name in ("a", "b", "c"):
        known.read(name, {P0: committed(1)}, began_ms=0)
    known.keep_only({"b"})
    assert list(known) == ["b"]
    assert not known["a"]


def test_a_group_that_begins_here_need_not_be_read_and_is_forgotten_like_others() -> None:
    known = CommittedOffsetCache()
    known.has_none_before("a")
    assert known.is_whole("a")
    assert list(known) == []
    known.keep_only({"b"})
    assert not known.is_whole("a")


def test_metadata_that_clients_keep_with_an_offset_take_no_memory_here() -> None:
    known = CommittedOffsetCache()
    known.committed("g", {P0: committed(1, metadata="m" * 4096)})
    known.read("g", {P1: committed(1, metadata="m" * 4096)}, began_ms=0)
    assert {offset.metadata for offset in known["g"].values()} == {""}
