"""The bytes of a segment and of a seal: what is written reads back, and no flipped or missing bit passes for sound."""

from __future__ import annotations

import struct

import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId, TopicPartition
from segments.records.batch import check_stored, parse_header, split_batches
from segments.wal.segment_file import (
    BATCH_DTYPE,
    BATCH_ENTRY_BYTES,
    FOOTER_READ_BYTES,
    HEADER_BYTES,
    SEAL_BYTES,
    SEGMENT_BYTES_MIN,
    TRAILER_BYTES,
    EncodedSegment,
    Seal,
    SegmentFooter,
    StampedBatch,
    encode_seal,
    footer_bytes_needed,
    parse_footer,
    parse_head,
    parse_seal,
)
from tests.kit.segments.batches import (
    ORDERS,
    PAYMENTS,
    SUCCESSOR,
    WRITER,
    batch_of,
    partition_of,
    seal_of,
    segment_of,
    sequenced_batch,
    stamped_run,
)

SESSION, SEQ, KEY = SessionId(7), SegmentSeq(3), "wal/7/3"

batches = st.builds(
    lambda values, producer_id, base_sequence: batch_of(
        *values, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1, base_sequence=base_sequence
    ),
    st.lists(st.binary(max_size=20), min_size=1, max_size=3),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**31 - 1),
)
runs = st.lists(st.tuples(st.integers(0, 2**40), st.lists(batches, min_size=1, max_size=4)), min_size=1, max_size=4)


def bytes_of(segment: EncodedSegment) -> bytes:
    return b"".join(segment.body)


def two_partitions() -> EncodedSegment:
    return segment_of(
        SESSION,
        SEQ,
        [
            (ORDERS, stamped_run(100, batch_of(b"one", b"two"), sequenced_batch(9, 5, b"three"))),
            (PAYMENTS, stamped_run(0, batch_of(b"four"))),
        ],
    )


def flip(body: bytearray, bit: int) -> None:
    body[bit // 8] ^= 1 << bit % 8


def read_footer(body: bytes) -> SegmentFooter:
    return parse_footer(body, object_size=len(body), session=SESSION, seq=SEQ, key=KEY)


# ── what is written reads back ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_parts_have_the_sizes_of_the_drawing() -> None:
    assert (HEADER_BYTES, TRAILER_BYTES, SEAL_BYTES, BATCH_ENTRY_BYTES) == (40, 16, 72, 64)
    assert BATCH_DTYPE.itemsize == BATCH_ENTRY_BYTES
    body = bytes_of(two_partitions())
    (footer_bytes,) = struct.unpack_from("<I", body, len(body) - TRAILER_BYTES)
    assert footer_bytes == 40 + 2 * 96 + 3 * 64


def test_a_segment_of_two_partitions_reads_back() -> None:
    segment = two_partitions()
    body = bytes_of(segment)
    footer = read_footer(body)
    orders, payments = footer.runs
    assert (footer.session, footer.seq) == (SESSION, SEQ)
    assert (orders.partition, orders.base_offset, orders.last_offset, orders.record_count) == (ORDERS, 100, 102, 3)
    assert (payments.partition, payments.base_offset, payments.last_offset, payments.record_count) == (PAYMENTS, 0, 0, 1)
    assert (orders.start, orders.end) == (HEADER_BYTES, payments.start)
    first, second = footer.batches(orders)
    assert (first.producer_id, second.producer_id, second.base_sequence, second.last_sequence) == (-1, 9, 5, 5)
    assert [parse_header(batch).base_offset for batch in split_batches(body[orders.start : orders.end])] == [100, 102]


@given(runs)
def test_whatever_is_written_reads_back(runs: list[tuple[int, list[bytes]]]) -> None:
    written: list[tuple[TopicPartition, list[StampedBatch]]] = [
        (partition_of(number), stamped_run(first_offset, *batches)) for number, (first_offset, batches) in enumerate(runs)
    ]
    segment = segment_of(SESSION, SEQ, written)
    body = bytes_of(segment)
    footer = read_footer(body)
    assert len(body) == segment.size_bytes >= SEGMENT_BYTES_MIN
    assert crc32c(body) == segment.crc32c
    assert (footer.runs, footer.batch_table.tolist()) == (segment.footer.runs, segment.footer.batch_table.tolist())
    for run, (partition, stamped) in zip(footer.runs, written, strict=True):
        headers = [batch.header for batch in stamped]
        assert run.partition == partition
        assert run.min_timestamp == min(header.base_timestamp for header in headers)
        assert run.max_timestamp == max(header.max_timestamp for header in headers)
        assert run.record_count == sum(header.record_count for header in headers)
        assert (run.base_offset, run.last_offset) == (stamped[0].base_offset, stamped[-1].last_offset)
        stored = split_batches(body[run.start : run.end])
        for entry, batch, header, view in zip(footer.batches(run), stamped, headers, stored, strict=True):
            assert check_stored(view, key=KEY, start=entry.start).crc == header.crc == entry.crc
            assert body[entry.start : entry.start + entry.size_bytes] == batch.stamp + batch.rest == bytes(view)
            assert (entry.base_offset, entry.last_offset) == (batch.base_offset, batch.last_offset)
            assert (entry.record_count, entry.max_timestamp) == (header.record_count, header.max_timestamp)
            assert (entry.producer_id, entry.producer_epoch) == (header.producer_id, header.producer_epoch)
            assert (entry.base_sequence, entry.last_sequence) == (header.base_sequence, header.last_sequence)


def test_bytes_that_changed_in_memory_since_they_were_checked_make_the_checksum_wrong() -> None:
    batch = bytearray(batch_of(b"one"))
    run = stamped_run(0, batch)
    batch[-1] ^= 1
    segment = segment_of(SESSION, SEQ, [(ORDERS, run)])
    assert crc32c(bytes_of(segment)) != segment.crc32c


def test_a_footer_too_long_for_one_read_says_how_long_it_is() -> None:
    count = FOOTER_READ_BYTES // BATCH_ENTRY_BYTES + 1
    body = bytes_of(segment_of(SESSION, SEQ, [(ORDERS, stamped_run(0, *[batch_of(b"x")] * count))]))
    needed = footer_bytes_needed(body[-FOOTER_READ_BYTES:], object_size=len(body), key=KEY)
    assert needed > FOOTER_READ_BYTES
    footer = parse_footer(body[-needed:], object_size=len(body), session=SESSION, seq=SEQ, key=KEY)
    assert footer.runs[0].batch_count == count


def test_the_head_names_the_session_position_and_writer_of_its_segment() -> None:
    head = parse_head(bytes_of(two_partitions()), key=KEY)
    assert head == (False, SESSION, SEQ, WRITER)


# ── damage is noticed ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.data())
def test_a_flipped_bit_in_footer_or_trailer_is_noticed(data: st.DataObject) -> None:
    segment = two_partitions()
    body = bytearray(bytes_of(segment))
    flip(body, data.draw(st.integers(segment.footer.runs[-1].end * 8, len(body) * 8 - 1)))
    with pytest.raises(Corrupt):
        read_footer(bytes(body))


@given(st.data())
def test_a_flipped_bit_in_a_batch_is_noticed_when_it_is_read(data: st.DataObject) -> None:
    """But for the first 16 bytes, which no CRC covers: what they must be is known from the footer
    (tests/segments/read/test_read_cache.py)."""
    segment = two_partitions()
    entry = data.draw(st.sampled_from([entry for run in segment.footer.runs for entry in segment.footer.batches(run)]))
    batch = bytearray(bytes_of(segment)[entry.start : entry.start + entry.size_bytes])
    flip(batch, data.draw(st.integers(16 * 8, len(batch) * 8 - 1)))
    with pytest.raises(Corrupt) as damage:
        check_stored(bytes(batch), key=KEY, start=entry.start)
    assert damage.value.details == {"key": KEY, "start": entry.start, "end": entry.start + entry.size_bytes}


@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_a_flipped_bit_in_the_header_makes_it_corrupt_or_another_object(bit: int) -> None:
    body = bytearray(bytes_of(two_partitions()))
    flip(body, bit)
    if bit < 8 * 8:
        with pytest.raises(Corrupt, match="neither a segment nor a seal"):
            parse_head(body, key=KEY)
    else:
        assert parse_head(body, key=KEY) != (False, SESSION, SEQ, WRITER)


@given(st.data())
def test_a_segment_that_ends_early_is_corrupt(data: st.DataObject) -> None:
    body = bytes_of(two_partitions())
    kept = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(Corrupt):
        read_footer(body[:kept])


def test_a_segment_under_the_key_of_another_is_corrupt() -> None:
    body = bytes_of(two_partitions())
    for session, seq in [(SESSION, SEQ + 1), (SESSION + 1, SEQ)]:
        with pytest.raises(Corrupt, match="holds segment 3 of session 7"):
            parse_footer(body, object_size=len(body), session=SessionId(session), seq=SegmentSeq(seq), key=KEY)


FIRST_RUN_AT = 40


@pytest.mark.parametrize(
    ("field_at", "value"),
    [
        pytest.param(0, struct.pack("<I", 3), id="a run too many"),
        pytest.param(4, struct.pack("<I", 2), id="a batch too few"),
        pytest.param(FIRST_RUN_AT + 32, struct.pack("<q", 99), id="a run from offset 100 to 99"),
        pytest.param(FIRST_RUN_AT + 48, struct.pack("<Q", HEADER_BYTES - 1), id="a run that begins in the header"),
        pytest.param(FIRST_RUN_AT + 48, struct.pack("<Q", 1 << 20), id="a run that begins after its end"),
        pytest.param(FIRST_RUN_AT + 56, struct.pack("<Q", 1 << 20), id="a run that ends in the footer"),
        pytest.param(FIRST_RUN_AT + 84, struct.pack("<I", 4), id="batches that the footer does not have"),
    ],
)
def test_a_footer_that_contradicts_itself_is_corrupt_though_its_crc_is_right(field_at: int, value: bytes) -> None:
    body = bytes_of(two_partitions())
    needed = footer_bytes_needed(body, object_size=len(body), key=KEY)
    footer = bytearray(body[-needed:-TRAILER_BYTES])
    footer[field_at : field_at + len(value)] = value
    lying = body[:-needed] + footer + struct.pack("<II8s", len(footer), crc32c(bytes(footer)), b"TIDEEND1")
    with pytest.raises(Corrupt, match="footer"):
        read_footer(lying)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_corrupt_and_nothing_worse(body: bytes) -> None:
    for parse in (lambda: read_footer(body), lambda: parse_seal(body, key=KEY)):
        with pytest.raises(Corrupt):
            parse()
    with pytest.raises(Corrupt):
        parse_head(body, key=KEY)


# ── the seal ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_seal() -> bytes:
    return encode_seal(
        session=SESSION, seq=SEQ, writer=SUCCESSOR, committed_to=SegmentSeq(SEQ - 1), sealed_at_ms=123, sealed_by=SessionId(8)
    )


def test_a_seal_reads_back() -> None:
    assert parse_seal(a_seal(), key=KEY) == Seal(SESSION, SEQ, SUCCESSOR, SegmentSeq(SEQ - 1), 123, SessionId(8))
    assert parse_head(a_seal(), key=KEY).is_seal


def test_a_seal_is_shorter_than_any_segment() -> None:
    """So a listing distinguishes them."""
    smallest = segment_of(SESSION, SEQ, [(ORDERS, stamped_run(0, batch_of(b"")))])
    assert len(a_seal()) == SEAL_BYTES < SEGMENT_BYTES_MIN < smallest.size_bytes


@given(st.integers(0, SEAL_BYTES * 8 - 1))
def test_a_flipped_bit_in_a_seal_is_noticed(bit: int) -> None:
    body = bytearray(a_seal())
    flip(body, bit)
    with pytest.raises(Corrupt):
        parse_seal(bytes(body), key=KEY)


def test_a_segment_is_no_seal_and_a_longer_seal_is_none_either() -> None:
    for body in (bytes_of(two_partitions()), a_seal() + b"\0", a_seal()[:-1]):
        with pytest.raises(Corrupt, match="not a whole seal"):
            parse_seal(body, key=KEY)


def test_a_segment_or_seal_with_a_commit_position_beyond_itself_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="tells of a commit up to"):
        parse_seal(seal_of(SESSION, SEQ, committed_to=SEQ + 1), key=KEY)
    lying = segment_of(SESSION, SEQ, [(ORDERS, stamped_run(0, batch_of(b"x")))], committed_to=SEQ + 1)
    with pytest.raises(Corrupt, match="tells of a commit up to"):
        read_footer(b"".join(lying.body))


def test_a_footer_has_the_position_up_to_which_its_session_was_committed() -> None:
    segment = segment_of(SESSION, SEQ, [(ORDERS, stamped_run(0, batch_of(b"x")))], committed_to=SEQ - 1)
    assert read_footer(b"".join(segment.body)).committed_to == segment.footer.committed_to == SEQ - 1
