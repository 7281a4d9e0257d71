"""What a broker takes of a client's record batches, what it refuses, and what it writes into them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, InvalidRecord, TooLarge
from segments.records.batch import (
    BATCH_OVERHEAD_BYTES,
    NO_LEADER_EPOCH,
    RECORDS_PER_BATCH_MAX,
    assemble,
    check_produced,
    check_stored,
    empty_batch,
    parse_header,
    parse_whole,
    split_batches,
    stamp,
    with_log_append_time,
)
from segments.records.columns import decode_batches, encode_records, iterate_records
from segments.records.compression import Codec
from segments.records.header import BatchHeader
from tests.kit.segments.kernel_forms import kernel_form
from tests.kit.segments.record_strategies import TIMESTAMP_MS, aiokafka_batch, aiokafka_records, new_records, record_lists

__all__ = ["kernel_form"]

BOUND = 1 << 20
THREE = [(b"key", b"value %d" % row, (), TIMESTAMP_MS + row) for row in range(3)]


def check(batch: bytes, *, message_bytes_max: int = BOUND, decompressed_bytes_max: int = BOUND) -> BatchHeader:
    return check_produced(batch, message_bytes_max=message_bytes_max, decompressed_bytes_max=decompressed_bytes_max)


def altered(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and a CRC that fits them."""
    header = parse_header(batch)
    return assemble(msgspec.structs.replace(header, **fields), batch[BATCH_OVERHEAD_BYTES:])


def with_section(batch: bytes, section: bytes) -> bytes:
    return assemble(parse_header(batch), section)


# What is taken


@given(record_lists)
def test_whatever_aiokafka_writes_is_taken(records: list[tuple[bytes | None, bytes | None, tuple[()], int]]) -> None:
    for codec in Codec:
        batch = aiokafka_batch(records, compression_type=codec)
        header = check(batch)
        assert header.record_count == len(records)
        assert header.size == len(batch)


def test_a_header_is_read_field_by_field() -> None:
    batch = encode_records(THREE, base_offset=7, leader_epoch=3, producer_id=2**40, producer_epoch=5, base_sequence=11)
    header = check(batch)
    assert msgspec.structs.asdict(header) == {
        "base_offset": 7,
        "batch_length": len(batch) - 12,
        "leader_epoch": 3,
        "magic": 2,
        "crc": crc32c(batch[21:]),
        "attributes": 0,
        "last_offset_delta": 2,
        "base_timestamp": TIMESTAMP_MS,
        "max_timestamp": TIMESTAMP_MS + 2,
        "producer_id": 2**40,
        "producer_epoch": 5,
        "base_sequence": 11,
        "record_count": 3,
    }
    assert (header.last_offset, header.last_sequence, header.size) == (9, 13, len(batch))
    assert [header.log_append_time, header.is_control, header.is_transactional] == [False, False, False]


def test_any_kind_of_buffer_is_taken() -> None:
    batch = encode_records(THREE)
    signed = memoryview(batch).cast("b")
    for buffer in (bytearray(batch), memoryview(batch), memoryview(b"before" + batch)[6:], signed):
        assert check(buffer) == parse_header(batch)  # type: ignore[arg-type]


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    def last_sequence(base_sequence: int) -> int:
        return parse_header(encode_records(THREE, producer_id=1, producer_epoch=0, base_sequence=base_sequence)).last_sequence

    assert [last_sequence(base) for base in (0, 2**31 - 3, 2**31 - 2, 2**31 - 1)] == [2, 2**31 - 1, 0, 1]
    assert parse_header(encode_records(THREE)).last_sequence == -1


def test_values_of_the_producer_fields_without_a_producer_id_are_ignored() -> None:
    check(altered(encode_records(THREE), base_sequence=0))  # as aiokafka does
    check(altered(encode_records(THREE), producer_epoch=0))


def test_a_batch_with_a_record_of_every_shape_is_taken() -> None:
    check(
        encode_records(
            [
                (None, None, (), -1),
                (b"", b"", (("", b""), ("", None)), 0),
                (b"k" * 70, b"v" * 9000, (("a", b"1"), ("a", b"1"), ("ключ", b"2")), 2**63 - 2),
            ]
        )
    )


# What is refused


def test_every_flipped_bit_is_found() -> None:
    batch = encode_records(THREE[:1])
    taken = parse_header(batch)
    for bit in range(8 * 8, len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        if 12 <= bit // 8 < 16:  # the leader epoch: the broker's to set, outside of the CRC
            assert check(bytes(flipped)).crc == taken.crc
            continue
        with pytest.raises(InvalidRecord):
            check(bytes(flipped))


def test_every_torn_batch_is_found() -> None:
    batch = encode_records(THREE)
    for size in range(len(batch)):
        with pytest.raises(InvalidRecord):
            check(batch[:size])


def test_bytes_behind_a_batch_are_refused() -> None:
    batch = encode_records(THREE)
    with pytest.raises(InvalidRecord, match=r"1 bytes follow the record batch"):
        check(batch + b"\0")
    with pytest.raises(InvalidRecord, match=r"exactly one batch"):
        check(batch + batch)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": 1}, "magic 1"),
        ({"magic": 0}, "magic 0"),
        ({"attributes": 5}, "codec 5"),
        ({"attributes": 0x40}, "not known"),
        ({"attributes": -0x8000}, "not known"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x10}, "transactional"),
        ({"attributes": 0x08}, "log append time"),
        ({"record_count": 0, "last_offset_delta": -1}, "0 records"),
        ({"record_count": -1, "last_offset_delta": -2}, "-1 records"),
        ({"record_count": 4, "last_offset_delta": 3}, "runs past the end|can't hold|cut off"),
        ({"record_count": 2, "last_offset_delta": 1}, "bytes follow the last record"),
        ({"record_count": 1_000_000, "last_offset_delta": 999_999}, "can't hold"),
        ({"record_count": 1_000_001, "last_offset_delta": 1_000_000}, "has 1000001 records; at most 1000000 are taken"),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, "at most 1000000 are taken"),
        ({"last_offset_delta": 3}, "last offset delta is 3, not 2"),
        ({"last_offset_delta": -1}, "last offset delta is -1, not 2"),
        ({"base_timestamp": -2}, "base timestamp -2"),
        ({"base_timestamp": -(2**63)}, "base timestamp"),
        ({"max_timestamp": TIMESTAMP_MS - 1}, "the max is not before it"),
        ({"max_timestamp": TIMESTAMP_MS + 1}, "record 2 .* later than the batch's max"),
        ({"base_timestamp": TIMESTAMP_MS + 1}, "record 2 .* later than the batch's max"),
        ({"producer_id": -2}, "producer id -2"),
        ({"producer_id": 1}, "epoch -1 and base sequence -1"),
        ({"producer_id": 1, "producer_epoch": 0}, "base sequence -1"),
        ({"producer_id": 1, "base_sequence": 0}, "epoch -1"),
    ],
)
def test_a_header_that_contradicts_itself_or_its_records_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        check(altered(encode_records(THREE), **fields))


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1, -(2**31)])
def test_a_length_that_lies_is_refused(length: int) -> None:
    batch = encode_records(THREE)
    with pytest.raises(InvalidRecord, match=f"says length {length}"):
        check(batch[:8] + struct.pack(">i", length) + batch[12:])


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = b""
    while zigzag >= 0x80:
        out += bytes([zigzag & 0x7F | 0x80])
        zigzag >>= 7
    return out + bytes([zigzag])


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


SOUND = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(0)


def field(**changed: bytes) -> bytes:
    """One record, with fields as they are given."""
    parts = {
        "attributes": b"\0",
        "timestamp": varint(0),
        "offset": varint(0),
        "key": varint(1) + b"k",
        "value": varint(1) + b"v",
        "headers": varint(0),
    }
    return record(b"".join((parts | changed).values()))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (field(attributes=b"\1"), "attributes"),
        (field(timestamp=varint(1)), "timestamp"),
        (field(timestamp=varint(-TIMESTAMP_MS - 2)), "timestamp"),
        (field(timestamp=varint(2**63 - 1)), "timestamp"),
        (field(timestamp=varint(-(2**63))), "timestamp"),
        (field(timestamp=b"\xff" * 9 + b"\x02"), "varint"),
        (field(timestamp=b"\x80" * 10 + b"\x00"), "varint"),
        (field(offset=varint(1)), "offset delta"),
        (field(offset=varint(-1)), "offset delta"),
        (field(offset=b"\xff\xff\xff\xff\x1f"), "varint"),
        (field(offset=b"\x80\x80\x80\x80\x80\x00"), "varint"),
        (field(key=varint(-2)), "length"),
        (field(key=varint(2**31 - 1)), "length"),
        (field(key=varint(5) + b"k"), "length"),
        (field(value=varint(-(2**31))), "length"),
        (field(value=varint(100)), "length"),
        (field(headers=varint(-1)), "count of headers"),
        (field(headers=varint(2**31 - 1)), "count of headers"),
        (field(headers=varint(1)), "count of headers"),
        (field(headers=varint(1) + varint(-1) + varint(0)), "key of a header"),
        (field(headers=varint(1) + varint(1) + b"\xff" + varint(-1)), "key of a header"),
        (field(headers=varint(1) + varint(3) + b"\xed\xa0\x80" + varint(-1)), "key of a header"),
        (field(headers=varint(1) + varint(1) + b"k" + varint(9)), "length"),
        (field(headers=varint(0) + b"more"), "do not fill"),
        (field(headers=varint(1) + varint(1) + b"k" + varint(-1) + b"!"), "do not fill"),
        (record(b"\0\0\0\1\1") + b"\0", "length"),
        (varint(-1) + SOUND, "past the end"),
        (varint(2**31 - 1) + SOUND, "past the end"),
        (varint(len(SOUND) + 1) + SOUND, "past the end"),
        (b"\xff\xff\xff\xff\xff\x01" + SOUND, "varint"),
        (b"\x80" * 40, "varint"),
        (field() + b"\0", "1 bytes follow"),
        (b"\0" * 7, "length"),
    ],
)
def test_a_record_that_is_malformed_is_refused_even_under_a_right_crc(section: bytes, message: str) -> None:
    one = encode_records([(b"k", b"v", (), TIMESTAMP_MS)])
    check(with_section(one, field()))
    with pytest.raises(InvalidRecord, match=message):
        check(with_section(one, section))
    with pytest.raises(InvalidRecord, match=message):
        iterate_records(with_section(one, section), decompressed_bytes_max=BOUND)


def test_a_longer_form_of_a_varint_is_taken_as_kafka_takes_it() -> None:
    one = encode_records([(b"k", b"v", (), TIMESTAMP_MS)])
    long_form = with_section(one, field(offset=b"\x80\x80\x80\x80\x00", timestamp=b"\x80" * 9 + b"\x00"))
    check(long_form)
    assert aiokafka_records(long_form) == iterate_records(long_form, decompressed_bytes_max=BOUND)


@given(st.lists(new_records, min_size=2, max_size=5))
def test_records_in_another_order_than_their_offsets_are_refused(
    records: list[tuple[bytes | None, bytes | None, tuple[()], int]],
) -> None:
    batch = encode_records(records)
    sections = [encode_records([r])[BATCH_OVERHEAD_BYTES:] for r in records]
    with pytest.raises(InvalidRecord):
        check(with_section(batch, b"".join(sections)))  # every offset delta is 0


def test_a_batch_with_too_many_records_is_refused_with_a_hint_to_send_several() -> None:
    batch, count = encode_records([(None, None, (), 0)]), RECORDS_PER_BATCH_MAX + 1
    with pytest.raises(InvalidRecord) as refused:
        check(altered(batch, record_count=count, last_offset_delta=count - 1))
    assert refused.value.hint == "Send them in several batches."


def test_a_batch_over_message_bytes_max_is_refused_and_one_of_just_that_size_taken() -> None:
    batch = encode_records(THREE)
    check(batch, message_bytes_max=len(batch))
    with pytest.raises(TooLarge) as caught:
        check(batch, message_bytes_max=len(batch) - 1)
    assert caught.value.details == {"size": len(batch), "bytes_max": len(batch) - 1}


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_compressed_records_over_their_bound_are_refused_and_those_of_just_that_size_taken(codec: Codec) -> None:
    batch = encode_records([(b"", b"x" * 5000, (), TIMESTAMP_MS)], codec=codec)
    assert parse_header(batch).codec is codec
    size = len(encode_records([(b"", b"x" * 5000, (), TIMESTAMP_MS)])) - BATCH_OVERHEAD_BYTES
    check(batch, decompressed_bytes_max=size)
    with pytest.raises(TooLarge, match=f"more than {size - 1} bytes"):
        check(batch, decompressed_bytes_max=size - 1)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_compressed_records_that_are_malformed_are_refused(codec: Codec) -> None:
    batch = encode_records(THREE * 20, codec=codec)
    section = batch[BATCH_OVERHEAD_BYTES:]
    for broken in (b"", section[:-1], section + b"\0", section + section, b"\0" * 40, section[1:]):
        with pytest.raises(InvalidRecord):
            check(with_section(batch, broken))


# What is stored


@given(record_lists, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_the_stamp_changes_the_offset_and_the_epoch_and_nothing_that_the_crc_covers(
    records: list[tuple[bytes | None, bytes | None, tuple[()], int]], base_offset: int, leader_epoch: int
) -> None:
    batch = encode_records(records)
    stored = stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch) + memoryview(batch)[16:]
    expected = msgspec.structs.replace(parse_header(batch), base_offset=base_offset, leader_epoch=leader_epoch)
    assert parse_whole(stored) == expected
    assert stored[16:] == batch[16:]


def test_log_append_time_stands_for_the_time_of_every_record() -> None:
    batch = encode_records(THREE, base_offset=4)
    appended = with_log_append_time(batch, 99)
    header = check_stored(appended, key="wal/0/0", start=0)
    assert header.log_append_time
    assert header.max_timestamp == 99
    assert [time for _, time, _, _, _ in iterate_records(appended, decompressed_bytes_max=0)] == [99, 99, 99]
    assert [time for _, time, _, _, _ in aiokafka_records(appended)] == [99, 99, 99]


def test_a_stored_batch_that_has_changed_is_corrupt_and_names_its_object_and_range() -> None:
    batch = encode_records(THREE)
    assert check_stored(batch, key="wal/1/2", start=100) == parse_header(batch)
    for wrong in (batch[:-1], batch + b"\0", b"", batch[:-1] + b"?"):
        with pytest.raises(Corrupt) as caught:
            check_stored(wrong, key="wal/1/2", start=100)
        assert caught.value.details == {"key": "wal/1/2", "start": 100, "end": 100 + len(wrong)}


@given(st.lists(record_lists, max_size=4))
def test_a_buffer_of_batches_is_split_into_them_without_a_copy(
    lists: list[list[tuple[bytes | None, bytes | None, tuple[()], int]]],
) -> None:
    batches = [encode_records(records, codec=Codec.SNAPPY) for records in lists]
    joined = b"".join(batches)
    split = split_batches(joined)
    assert [bytes(view) for view in split] == batches
    assert all(view.obj is joined for view in split)


def test_a_torn_batch_among_others_is_refused() -> None:
    batch = encode_records(THREE)
    split_inside: list[Callable[[], object]] = [
        lambda: split_batches(batch + batch[:-1]),
        lambda: split_batches(batch + batch[:30]),
    ]
    for split in split_inside:
        with pytest.raises(InvalidRecord):
            split()


def test_an_empty_batch_is_one_to_our_decoders_and_to_kafkas_and_holds_nothing() -> None:
    batch = empty_batch(7, 12)
    assert len(batch) == BATCH_OVERHEAD_BYTES
    header = parse_whole(batch)
    assert (header.base_offset, header.last_offset, header.record_count, header.leader_epoch) == (7, 11, 0, NO_LEADER_EPOCH)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert iterate_records(batch, decompressed_bytes_max=BOUND) == aiokafka_records(batch) == []
    assert decode_batches([batch], decompressed_bytes_max=BOUND).num_rows == 0


def test_an_empty_batch_covers_no_more_offsets_than_its_last_offset_delta_can_express() -> None:
    assert parse_whole(empty_batch(5, 2**40)).last_offset == 5 + 2**31 - 1
