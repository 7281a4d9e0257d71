"""Encodes a copy of the cluster's metadata for the bucket: all keys without a lease, as they were at one revision. Pure.

    snapshot = magic "TIDESNAP" · format version u32 · header bytes u32 · header, JSON
                 {"cluster_id":"…","revision":9301,"taken_at_ms":1767225600000}
               each block: raw bytes u32 · compressed bytes u32 · zstd( entries )
               the end:    0 u32 · 0 u32 · entries u64 · crc32c u32 of all before
    entry    = mod revision u64 · key bytes u32 · value bytes u32 · key, without /{cluster}/ · value

All integers are little-endian. Blocks bound the memory of the writer: compressed entries are about a tenth of their size.

Revisions here are those of the store plus `revision_base`, which a restore writes: a new etcd counts from 1 again, yet later
revisions must be above all that lie on the bucket. Invariant: a parsed snapshot matched its CRC-32C, and its keys were true
together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import cramjam
import msgspec
import numpy as np
from awscrt.checksums import crc32c

from metadata.errors import Corrupt, Rejected
from metadata.model import Revision
from metadata.store.interface import NO_LEASE, VALUE_BYTES_MAX, KeyValue

MAGIC: Final = b"TIDESNAP"
FORMAT_VERSION: Final = 1
# A block is compressed when it has this many bytes; the entry that fills it may make it longer.
BLOCK_BYTES: Final = 1 << 20
BLOCK_BYTES_MAX: Final = BLOCK_BYTES + VALUE_BYTES_MAX + (64 << 10)
_HEAD = struct.Struct("<8sII")
_BLOCK = struct.Struct("<II")
_ENTRY = struct.Struct("<QII")
_END = struct.Struct("<IIQI")
_CRC_BYTES = 4


class SnapshotHeader(msgspec.Struct, frozen=True):
    """Names the cluster and the revision of a snapshot."""

    cluster_id: str
    revision: Revision
    # Milliseconds since 1970-01-01 UTC, by the clock of the broker that took it.
    taken_at_ms: int


class SnapshotEntry(NamedTuple):
    """Holds one key of a snapshot, its value, and the revision that wrote it."""

    # Without the prefix /{cluster}/.
    key: str
    value: bytes
    revision: Revision


class Snapshot(NamedTuple):
    """Holds a parsed snapshot."""

    header: SnapshotHeader
    # In byte order of their keys.
    entries: tuple[SnapshotEntry, ...]


class SnapshotWriter:
    """Encodes a snapshot from pages of keys, and returns its parts at the end."""

    def __init__(self, header: SnapshotHeader, *, root: str, revision_base: int) -> None:
        """Begins a snapshot; `root`, the prefix of the cluster's keys, is left out of them."""
        text = msgspec.json.encode(header)
        self._parts: list[bytes] = [_HEAD.pack(MAGIC, FORMAT_VERSION, len(text)), text]
        self._root = root
        self._revision_base = revision_base
        self._block = bytearray()
        self._entries = 0

    def add(self, items: Iterable[KeyValue]) -> None:
        for item in items:
            if item.lease != NO_LEASE:
                continue
            key = item.key.removeprefix(self._root).encode()
            self._block += _ENTRY.pack(item.mod_revision + self._revision_base, len(key), len(item.value)) + key + item.value
            self._entries += 1
            if len(self._block) >= BLOCK_BYTES:
                self._close_block()

    def finish(self) -> list[bytes]:
        if self._block:
            self._close_block()
        checksum = 0
        for part in self._parts:
            checksum = crc32c(part, checksum)
        end = _END.pack(0, 0, self._entries, 0)[:-_CRC_BYTES]
        return [*self._parts, end + crc32c(end, checksum).to_bytes(_CRC_BYTES, "little")]

    def _close_block(self) -> None:
        compressed = bytes(cramjam.zstd.compress(self._block, level=3))
        self._parts += (_BLOCK.pack(len(self._block), len(compressed)), compressed)
        self._block = bytearray()


def parse_snapshot(body: bytes, *, key: str) -> Snapshot:
    """Parses a snapshot. Raises Corrupt where it is damaged, Rejected where a newer version of Tidelog wrote it."""
    if len(body) < _HEAD.size + _END.size or not body.startswith(MAGIC):
        raise Corrupt(f"{key} is no snapshot of the metadata", key=key)
    if crc32c(body[:-_CRC_BYTES]) != int.from_bytes(body[-_CRC_BYTES:], "little"):
        raise Corrupt(f"{key}: the snapshot does not match its CRC-32C", key=key)
    _, version, header_bytes = _HEAD.unpack_from(body)
    if version > FORMAT_VERSION:
        raise Rejected(f"{key} has format version {version}; this program knows {FORMAT_VERSION}", hint="Use a newer Tidelog.")
    try:
        header = msgspec.json.decode(body[_HEAD.size : _HEAD.size + header_bytes], type=SnapshotHeader)
        entries = tuple(entry for block in _blocks(body, _HEAD.size + header_bytes) for entry in _entries(block))
    except (msgspec.DecodeError, UnicodeDecodeError, struct.error, cramjam.DecompressionError, _Malformed) as error:
        raise Corrupt(f"{key} can't be read: {error}", key=key) from error
    count = _END.unpack_from(body, len(body) - _END.size)[2]
    if count != len(entries):
        raise Corrupt(f"{key} has {len(entries)} keys, and should have {count}", key=key)
    return Snapshot(header, entries)


class _Malformed(Exception):
    pass


def _blocks(body: bytes, at: int) -> Iterator[memoryview]:
    while True:
        raw_bytes, compressed_bytes = _BLOCK.unpack_from(body, at)
        at += _BLOCK.size
        if not raw_bytes:
            if at + _END.size - _BLOCK.size != len(body):
                raise _Malformed("something follows its end")
            return
        if raw_bytes > BLOCK_BYTES_MAX or at + compressed_bytes > len(body) - _END.size:
            raise _Malformed("a block is longer than it can be")
        raw = np.empty(raw_bytes, np.uint8).data
        if cramjam.zstd.decompress_into(body[at : at + compressed_bytes], raw) != raw_bytes:
            raise _Malformed("a block is shorter than it claims")
        yield raw
        at += compressed_bytes


def _entries(block: memoryview) -> Iterator[SnapshotEntry]:
    at = 0
    while at < len(block):
        revision, key_bytes, value_bytes = _ENTRY.unpack_from(block, at)
        start = at + _ENTRY.size
        at = start + key_bytes + value_bytes
        if at > len(block):
            raise _Malformed("an entry is longer than its block")
        key = bytes(block[start : start + key_bytes]).decode()
        yield SnapshotEntry(key, bytes(block[start + key_bytes : at]), Revision(revision))
