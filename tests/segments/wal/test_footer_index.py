"""Footers of many segments in one object: few reads for a takeover, and never a footer that is not the segment's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId
from segments.wal.footer_index import (
    BLOCK_BYTES_MAX,
    FooterBlocks,
    FooterRead,
    IndexBlock,
    IndexRange,
    cover,
    encode_index,
    parse_index,
)
from segments.wal.segment_file import EncodedSegment, FooterBytes
from tests.kit.segments.batches import ORDERS, batch_of, segment_of, stamped_run

SESSION, KEY = SessionId(7), "wal/7/index"


def segment(seq: int) -> EncodedSegment:
    return segment_of(SESSION, seq, [(ORDERS, stamped_run(seq, batch_of(b"x")))], committed_to=seq)


def index_of(first: int, end: int) -> tuple[IndexBlock, bytes]:
    footers = tuple(segment(seq).footer_bytes for seq in range(first, end))
    block = IndexBlock(SegmentSeq(first), SegmentSeq(end), footers)
    return block, b"".join(encode_index(SESSION, block))


def parsed(body: bytes, first: int, end: int) -> list[int]:
    found = parse_index(body, session=SESSION, first=SegmentSeq(first), end=SegmentSeq(end), key=KEY)
    return [footer.seq for footer in found]


def written(segments: int, *, every: int) -> list[tuple[int, int]]:
    blocks = FooterBlocks(every)
    due = [blocks.add(SegmentSeq(seq), FooterBytes(b"x", 100)) for seq in range(segments)]
    return [(block.first, block.end) for block in due if block is not None]


# ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_indexes_are_written_as_the_drawing_says() -> None:
    assert written(141, every=32) == [(0, 32), (0, 64), (64, 96), (0, 128)]


def test_a_large_footer_block_is_not_merged_again() -> None:
    blocks = FooterBlocks(2)
    footers = [FooterBytes(bytes(BLOCK_BYTES_MAX // 4), 1 << 30)] * 4 + [FooterBytes(b"x", 100)] * 4
    due = [blocks.add(SegmentSeq(seq), footer) for seq, footer in enumerate(footers)]
    assert [(block.first, block.end) for block in due if block is not None] == [(0, 2), (0, 4), (4, 6), (4, 8)]


def test_footers_of_thousands_of_partitions_are_not_held_until_there_are_so_many() -> None:
    """32 of them would be hundreds of megabytes, which nothing accounts for."""
    blocks = FooterBlocks(32)
    half, whole = (FooterBytes(bytes(size), 1 << 30) for size in (BLOCK_BYTES_MAX // 2, BLOCK_BYTES_MAX))
    due = [blocks.add(SegmentSeq(seq), footer) for seq, footer in enumerate([half, half, whole, half, *[half] * 4])]
    assert [(block.first, block.end) for block in due if block is not None] == [(0, 2), (2, 4), (4, 6), (6, 8)]


@given(st.integers(1, 2000), st.integers(1, 40), st.integers(0, 100))
def test_the_footers_of_any_session_are_read_in_few_parts_each_once(segments: int, every: int, trimmed_to: int) -> None:
    trimmed_to = min(trimmed_to, segments)
    indexes = [IndexRange(SegmentSeq(first), SegmentSeq(end)) for first, end in written(segments, every=every)]
    parts = cover(SegmentSeq(trimmed_to), SegmentSeq(segments), indexes)
    assert seqs_read(parts, segments) == list(range(trimmed_to, segments))
    assert len(parts) <= (segments // every).bit_length() + every


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(2, 30)), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_whatever_indexes_there_are_each_footer_is_read_once(ranges: list[tuple[int, int]], first: int, segments: int) -> None:
    indexes = [IndexRange(SegmentSeq(begin), SegmentSeq(begin + count)) for begin, count in ranges]
    parts = cover(SegmentSeq(first), SegmentSeq(segments), indexes)
    assert all(index is None or index.first <= seq < index.end for seq, index in parts)
    assert seqs_read(parts, segments) == list(range(first, segments))


def seqs_read(parts: Sequence[FooterRead], segments: int) -> list[int]:
    return [seq for first, index in parts for seq in range(first, min(index.end, segments) if index else first + 1)]


# ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_footers_read_back_as_the_segments_have_them() -> None:
    _, body = index_of(3, 6)
    found = parse_index(body, session=SESSION, first=SegmentSeq(3), end=SegmentSeq(6), key=KEY)
    for seq, footer in enumerate(found, start=3):
        theirs = segment(seq).footer
        assert (footer.session, footer.seq, footer.committed_to, footer.runs) == (SESSION, seq, seq, theirs.runs)
        assert footer.batches(footer.runs[0]) == theirs.batches(theirs.runs[0])


def test_a_damaged_torn_or_foreign_index_is_corrupt() -> None:
    _, body = index_of(3, 6)
    assert parsed(body, 3, 6) == [3, 4, 5]
    for wrong in (b"", body[:20], body[:-1], body + b"\0", bytes(len(body))):
        with pytest.raises(Corrupt):
            parsed(wrong, 3, 6)
    for first, end in ((3, 5), (2, 6), (4, 7)):
        with pytest.raises(Corrupt, match="not the index"):
            parsed(body, first, end)


@given(st.data())
def test_a_flipped_bit_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    _, whole = index_of(0, 2)
    body = bytearray(whole)
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        parsed(bytes(body), 0, 2)


def test_counts_that_lie_are_corrupt_though_the_checksum_is_right() -> None:
    block, _ = index_of(0, 3)
    for footers in (block.footers[:2], block.footers * 2):
        body = b"".join(encode_index(SESSION, IndexBlock(block.first, block.end, footers)))
        with pytest.raises(Corrupt):
            parsed(body, 0, 3)
