"""Stores footers of many segments in one object, so that a takeover reads tens of objects instead of thousands. Pure.

    seq      0 ──── 31 │ 32 ─── 63 │ 64 ─── 95 │ 96 ── 127 │ 128 … 140
    written  [ 0, 32)    [ 0, 64)    [64, 96)    [ 0, 128)
    read     [ 0 …………………………………………………… 128)    + the footers of 128 … 140 one by one

Each time `every` more segments are committed, an index of them is written; it takes in the indexes just before it that are not
larger, as a binary counter carries, so n segments lie in at most log2(n / every) indexes. One that has grown to BLOCK_BYTES_MAX
stays as it is. Where the footers have so many bytes sooner (of segments with batches of thousands of partitions), it is written
sooner. A leader that takes over from a sealed session, and reads the last ones one by one, writes an index of these, for the next.

    index = magic "TIDEINDX" · session u64 · first u64 · end u64
            each footer: object size u64 · length u32 · footer and trailer as they end the segment
            crc32c u32 of all before it

An index only saves reads. It can be missing, damaged or deleted, and then the footers are read from the segments; it is written
after its segments were committed. Invariant: a footer that is read from an index is the segment's own, with its own CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from awscrt.checksums import crc32c

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId
from segments.object_store.interface import Buffer
from segments.wal.segment_file import FooterBytes, SegmentFooter, parse_footer

INDEX_MAGIC: Final = b"TIDEINDX"
BLOCK_BYTES_MAX: Final = 4 << 20
# Segments at the end of a sealed session, for which an index is written by who took over from it.
TAIL_MIN: Final = 4
_HEAD = struct.Struct("<8sQQQ")
_ENTRY = struct.Struct("<QI")
_CRC = struct.Struct("<I")


class IndexBlock(NamedTuple):
    """Footers of the segments [first, end) of a session."""

    first: SegmentSeq
    end: SegmentSeq
    footers: tuple[FooterBytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(footer.body) for footer in self.footers)


class FooterBlocks:
    """Decides which indexes a session writes. Holds the footers that may still be merged, some BLOCK_BYTES_MAX, or two."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._next = SegmentSeq(0)
        self._recent: list[FooterBytes] = []
        self._recent_bytes = 0
        self._blocks: list[IndexBlock] = []

    def add(self, seq: SegmentSeq, footer: FooterBytes) -> IndexBlock | None:
        """Adds the next committed segment. Returns the index that is due with it, if any."""
        assert seq == self._next, "segments are committed in order"
        self._next = SegmentSeq(seq + 1)
        self._recent.append(footer)
        self._recent_bytes += len(footer.body)
        if len(self._recent) < self._every and (len(self._recent) < 2 or self._recent_bytes < BLOCK_BYTES_MAX):
            return None
        due = IndexBlock(SegmentSeq(self._next - len(self._recent)), self._next, tuple(self._recent))
        self._recent.clear()
        self._recent_bytes = 0
        while self._blocks and self._blocks[-1].end - self._blocks[-1].first <= due.end - due.first:
            before = self._blocks.pop()
            due = IndexBlock(before.first, due.end, before.footers + due.footers)
        if due.size_bytes >= BLOCK_BYTES_MAX:
            self._blocks.clear()  # what stands before it could only be merged with more than this
        else:
            self._blocks.append(due)
        return due


def index_of_the_tail(end: SegmentSeq, singly: Mapping[SegmentSeq, FooterBytes]) -> IndexBlock | None:
    """Returns the index of a sealed session's last segments, which no index covers; None if they are too few to be worth it."""
    first = end
    while (before := SegmentSeq(first - 1)) in singly:
        first = before
    if end - first < TAIL_MIN:
        return None
    block = IndexBlock(first, end, tuple(singly[SegmentSeq(seq)] for seq in range(first, end)))
    return block if block.size_bytes <= BLOCK_BYTES_MAX else None


def encode_index(session: SessionId, block: IndexBlock) -> list[Buffer]:
    body: list[Buffer] = [_HEAD.pack(INDEX_MAGIC, session, block.first, block.end)]
    for footer in block.footers:
        body += (_ENTRY.pack(footer.object_size, len(footer.body)), footer.body)
    checksum = 0
    for part in body:
        checksum = crc32c(part, checksum)
    return [*body, _CRC.pack(checksum)]


def parse_index(body: bytes, *, session: SessionId, first: SegmentSeq, end: SegmentSeq, key: str) -> list[SegmentFooter]:
    """Returns the footers of the segments [first, end). Raises Corrupt if the index is damaged, or is not of these segments."""
    if len(body) < _HEAD.size + _CRC.size or crc32c(body[: -_CRC.size]) != _CRC.unpack_from(body, len(body) - _CRC.size)[0]:
        raise Corrupt(f"{key}: the index does not match its CRC-32C", key=key)
    if _HEAD.unpack_from(body) != (INDEX_MAGIC, session, first, end):
        raise Corrupt(f"{key} is not the index that its name says", key=key)
    footers: list[SegmentFooter] = []
    at, stop = _HEAD.size, len(body) - _CRC.size
    for seq in range(first, end):
        if at + _ENTRY.size > stop:
            raise Corrupt(f"{key} ends before the footer of segment {seq}", key=key)
        object_size, length = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        if at + length > stop:
            raise Corrupt(f"{key} ends inside the footer of segment {seq}", key=key)
        footer = body[at : at + length]
        footers.append(parse_footer(footer, object_size=object_size, session=session, seq=SegmentSeq(seq), key=key))
        at += length
    if at != stop:
        raise Corrupt(f"{key} has {stop - at} bytes after its last footer", key=key)
    return footers


class IndexRange(NamedTuple):
    """Holds the range in an index's name: it has the footers of the segments [first, end)."""

    first: SegmentSeq
    end: SegmentSeq


class FooterRead(NamedTuple):
    """Plans a read of the footers from `first` on: those of an index, or the one of a segment."""

    first: SegmentSeq
    held_in: IndexRange | None


def cover(start: SegmentSeq, end: SegmentSeq, indexes: Iterable[IndexRange]) -> Sequence[FooterRead]:
    """Plans the reads for the footers of [start, end), in order: indexes where they are, single segments elsewhere.

    An index may begin before the place from which it is needed, since a successor may have written one that overlaps with the
    dead leader's, and the last one may end after `end`.
    """
    indexes = tuple(indexes)
    parts: list[FooterRead] = []
    seq = start
    while seq < end:
        holding = [index for index in indexes if index.first <= seq and index.end > seq + 1]
        longest = max(holding, key=lambda index: index.end, default=None)
        parts.append(FooterRead(seq, longest))
        seq = SegmentSeq(seq + 1) if longest is None else longest.end
    return parts
