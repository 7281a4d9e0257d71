"""Encodes the positions of a member as a text that its client stores, so that no broker keeps state for members over HTTP. Pure.

    cursor = base64url( version u8 · checksum 8 bytes · generation · rotation · topics [ id 16 bytes · partitions [ entry ] ] )
    entry  = distance from the previous partition · offset << 1 | must stay

Numbers are LEB128 varints, and partitions are in order. The checksum covers the cluster, the group and the member, so a damaged
cursor and one of another member are refused. It prevents mistakes, not attacks: a cursor gives no access beyond the member's
rights.

A cursor is bounded (ENTRIES_MAX), so that it fits a URL: it has all entries if they fit, else those that must stay. A partition
without an entry is read from its committed offset. Invariant: positions that were read and not committed are always in the cursor.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument
from metadata.groups.model import Generation, MemberId
from metadata.model import Partition, TopicId, TopicPartition

# Bound of partitions plus TOPIC_WEIGHT for each topic: five to seven KiB of text, ten at most.
ENTRIES_MAX: Final = 600
TEXT_CHARACTERS_MAX: Final = 16_384
_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 8
TOPIC_WEIGHT: Final = 2
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class CursorEntry(NamedTuple):
    """Holds the position in one partition."""

    # The offset of the next record to read.
    offset: int
    # The position would be lost without the entry: neither a commit nor the log start restores it.
    must_stay: bool


class Cursor(NamedTuple):
    """Holds the positions of a member in one generation."""

    generation: Generation
    entries: Mapping[TopicPartition, CursorEntry]
    # The index of the partition that the next answer begins with, so that none starves the others.
    rotation: int = 0

    @property
    def uncommitted(self) -> dict[TopicPartition, int]:
        """Returns the offsets that a commit of this cursor commits."""
        return {partition: entry.offset for partition, entry in self.entries.items() if entry.must_stay}


class CursorOwner(NamedTuple):
    """Identifies the member that a cursor belongs to."""

    cluster_id: str
    group: str
    member_id: MemberId


def weight(partitions: Mapping[TopicPartition, object]) -> int:
    """Returns what the partitions count towards ENTRIES_MAX."""
    return len(partitions) + TOPIC_WEIGHT * len({partition.topic_id for partition in partitions})


def encode_cursor(cursor: Cursor, owner: CursorOwner) -> str:
    """Encodes the cursor; without the entries that need not stay, if all would exceed ENTRIES_MAX."""
    entries = cursor.entries
    if weight(entries) > ENTRIES_MAX:
        entries = {partition: entry for partition, entry in entries.items() if entry.must_stay}
    body = b"".join(_body(cursor, entries))
    return base64.urlsafe_b64encode(bytes([_VERSION]) + _checksum(body, owner) + body).rstrip(b"=").decode()


def decode_cursor(text: str, owner: CursorOwner) -> Cursor:
    """Decodes a cursor. Raises InvalidArgument for other texts, and for cursors of another member, group or cluster."""
    if not text.isascii() or len(text) > TEXT_CHARACTERS_MAX:
        raise _refused()
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise _refused() from None
    checksum, body = data[1 : 1 + _CHECKSUM_BYTES], data[1 + _CHECKSUM_BYTES :]
    if data[:1] != bytes([_VERSION]) or checksum != _checksum(body, owner):
        raise _refused()
    try:
        return _decode(body)
    except (IndexError, OverflowError):
        raise _refused() from None


def _body(cursor: Cursor, entries: Mapping[TopicPartition, CursorEntry]) -> Iterator[bytes]:
    by_topic = [(topic, list(of_one)) for topic, of_one in groupby(sorted(entries), key=lambda partition: partition.topic_id)]
    yield _varint(cursor.generation) + _varint(cursor.rotation) + _varint(len(by_topic))
    for topic_id, partitions in by_topic:
        yield bytes.fromhex(topic_id) + _varint(len(partitions))
        before = 0
        for partition in partitions:
            entry = entries[partition]
            yield _varint(partition.partition - before) + _varint(entry.offset << 1 | entry.must_stay)
            before = partition.partition


def _decode(body: bytes) -> Cursor:
    """Decodes the body. Raises IndexError if it is too short, OverflowError if a number is too large."""
    numbers = _Numbers(body)
    generation, rotation = numbers.next(_INT32_MAX), numbers.next(_INT32_MAX)
    entries: dict[TopicPartition, CursorEntry] = {}
    for _ in range(numbers.next(ENTRIES_MAX)):
        topic_id = TopicId(numbers.take(16).hex())
        partition = 0
        for _ in range(numbers.next(ENTRIES_MAX)):
            partition += numbers.next(_INT32_MAX)
            offset = numbers.next(_INT64_MAX << 1 | 1)
            entries[TopicPartition(topic_id, Partition(partition))] = CursorEntry(offset >> 1, must_stay=bool(offset & 1))
    return Cursor(Generation(generation), entries, rotation)


class _Numbers:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def next(self, most: int) -> int:
        number = shift = 0
        while number <= most:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80 and number <= most:
                return number
            shift += 7
        raise OverflowError

    def take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - size : self._at]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _checksum(body: bytes, owner: CursorOwner) -> bytes:
    key = hashlib.blake2b("\0".join(owner).encode(errors="surrogatepass"), digest_size=32).digest()
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _refused() -> InvalidArgument:
    return InvalidArgument(
        "the cursor was not issued to this member of this group",
        hint="Send the cursor of the last answer unchanged, or leave it out: then reading begins at the committed offsets.",
    )
