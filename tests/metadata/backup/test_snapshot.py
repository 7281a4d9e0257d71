"""The bytes of a snapshot: all keys but the leased ones come back, and a damaged one is never taken for whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.backup.snapshot import BLOCK_BYTES, SnapshotEntry, SnapshotHeader, SnapshotWriter, parse_snapshot
from metadata.errors import Corrupt, Rejected
from metadata.model import Revision
from metadata.store.interface import NO_LEASE, VALUE_BYTES_MAX, KeyValue, LeaseId

HEADER = SnapshotHeader("0123abcd", Revision(900), 1_767_225_600_000)
ENTRIES = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30), st.binary(max_size=200)),
    max_size=30,
    unique_by=lambda entry: entry[0],
)


def kept(key: str, value: bytes, revision: int = 1, lease: LeaseId = NO_LEASE) -> KeyValue:
    return KeyValue(f"/tidelog/{key}", value, Revision(1), Revision(revision), 1, lease)


def encoded(*pages: list[KeyValue], base: int = 0) -> bytes:
    writer = SnapshotWriter(HEADER, root="/tidelog/", revision_base=base)
    for page in pages:
        writer.add(page)
    return b"".join(writer.finish())


@given(ENTRIES)
def test_a_written_snapshot_is_read_back_with_its_header(entries: list[tuple[str, bytes]]) -> None:
    snapshot = parse_snapshot(encoded([kept(key, value) for key, value in entries]), key="s")
    assert snapshot.header == HEADER
    assert [(entry.key, entry.value) for entry in snapshot.entries] == entries


def test_leased_keys_are_left_out_since_their_holders_are_gone_with_the_store() -> None:
    snapshot = parse_snapshot(encoded([kept("brokers/b1", b"", lease=LeaseId(7)), kept("topics/a", b"A")]), key="s")
    assert [entry.key for entry in snapshot.entries] == ["topics/a"]


def test_revisions_are_counted_on_from_the_base() -> None:
    snapshot = parse_snapshot(encoded([kept("topics/a", b"A", revision=3)], base=1000), key="s")
    assert snapshot.entries == (SnapshotEntry("topics/a", b"A", Revision(1003)),)


def test_many_keys_are_compressed_block_by_block_and_values_may_be_as_large_as_the_store_takes() -> None:
    pages = [[kept(f"offsets/{page}/{n}", b"x" * 1000) for n in range(500)] for page in range(5)]
    pages.append([kept("large", b"y" * VALUE_BYTES_MAX), kept("after", b"")])
    body = encoded(*pages)
    assert len(body) < BLOCK_BYTES // 10
    assert [(entry.key, entry.value) for entry in parse_snapshot(body, key="s").entries] == [
        (item.key.removeprefix("/tidelog/"), item.value) for page in pages for item in page
    ]


@given(st.data())
def test_any_changed_byte_and_any_lost_tail_is_noticed(data: st.DataObject) -> None:
    body = encoded([kept("topics/a", b"A" * 50), kept("topics/b", b"B" * 50)])
    at = data.draw(st.integers(0, len(body) - 1))
    changed = bytearray(body)
    changed[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), body[:at]):
        with pytest.raises((Corrupt, Rejected)):
            parse_snapshot(damaged, key="s")


@given(st.binary(max_size=300))
def test_other_bytes_are_no_snapshot(body: bytes) -> None:
    with pytest.raises(Corrupt, match="s is no snapshot"):
        parse_snapshot(body, key="s")


def test_a_snapshot_of_a_newer_version_is_refused_and_not_called_damaged() -> None:
    from awscrt.checksums import crc32c

    body = bytearray(encoded([kept("topics/a", b"A")]))
    body[8] = 2
    body[-4:] = crc32c(bytes(body[:-4])).to_bytes(4, "little")
    with pytest.raises(Rejected, match="format version 2"):
        parse_snapshot(bytes(body), key="s")
