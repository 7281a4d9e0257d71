"""Batches and columns hold the same records, and batches are byte for byte those of Kafka's clients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument, InvalidRecord, TooLarge
from segments.records import columns as records_columns
from segments.records.batch import BATCH_OVERHEAD_BYTES, assemble, check_produced, parse_header, with_log_append_time
from segments.records.batch_kernel import NewRecordTuple, RecordTuple
from segments.records.columns import (
    HEADERS_TYPE,
    SCHEMA,
    ColumnsEncoder,
    decode_batches,
    encode_batch,
    encode_records,
    iterate_records,
)
from segments.records.compression import Codec
from tests.kit.segments.kernel_forms import kernel_form
from tests.kit.segments.record_strategies import TIMESTAMP_MS, aiokafka_batch, aiokafka_records, as_read, new_records, record_lists

__all__ = ["kernel_form"]

BOUND = 1 << 20
EVERY_SHAPE: list[NewRecordTuple] = [
    (None, None, (), TIMESTAMP_MS),
    (b"", b"", (("", b""), ("", None)), TIMESTAMP_MS - 1),
    (b"k" * 70, b"v" * 9000, (("a", b"1"), ("b", b"2"), ("a", b"1"), ("ключ", b"3")), TIMESTAMP_MS + 2**40),
    (b"key", None, (), 0),
]


def read(*batches: bytes) -> list[RecordTuple]:
    return [record for batch in batches for record in iterate_records(batch, decompressed_bytes_max=BOUND)]


def decode(*batches: bytes) -> pa.RecordBatch:
    columns = decode_batches(batches, decompressed_bytes_max=BOUND)
    columns.validate(full=True)
    assert columns.schema.equals(SCHEMA, check_metadata=True)
    return columns


def rows_of(columns: pa.RecordBatch) -> list[RecordTuple]:
    """The columns as `iterate_records` gives records."""
    times = columns.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        (row["offset"], time, row["key"], row["value"], tuple((header["key"], header["value"]) for header in row["headers"]))
        for row, time in zip(columns.drop_columns("timestamp").to_pylist(), times, strict=True)
    ]


def encode_columns_of(records: Sequence[NewRecordTuple], *, padding: int = 0, **options: Any) -> bytes:
    """`encode_batch` of the records, whose columns are a slice of longer ones where `padding` is given."""
    padded = [EVERY_SHAPE[2]] * padding + list(records) + [EVERY_SHAPE[1]] * padding
    keys, values, headers, times = zip(*padded, strict=True)
    lists = [None if not pairs and padding else [{"key": key, "value": value} for key, value in pairs] for pairs in headers]
    return encode_batch(
        pa.array(keys, pa.binary()).slice(padding, len(records)),
        pa.array(values, pa.binary()).slice(padding, len(records)),
        headers=pa.array(lists, HEADERS_TYPE).slice(padding, len(records)),
        timestamps_ms=np.array(times, np.int64)[padding : padding + len(records)],
        **options,
    )


# The same records, whichever way


@given(record_lists, st.integers(0, 3), st.data())
def test_parts_of_columns_encode_to_the_bytes_of_batches_of_their_own(
    records: list[NewRecordTuple], padding: int, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 3]), min_size=len(records), max_size=len(records)))
    deltas = np.arange(len(records)) + np.cumsum(gaps)
    base = encode_columns_of(records, offset_deltas=deltas, base_offset=7)
    before = encode_records([EVERY_SHAPE[2]] * padding) if padding else None
    columns = decode(*([before] if before else []), base).slice(padding)
    encoder = ColumnsEncoder(columns)
    start = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(start + 1, len(records)))
    base_offset, end_offset = 7 + int(deltas[start]), 8 + int(deltas[end - 1])
    found = encoder.encode(start, end, end_offset=end_offset, leader_epoch=3, log_append_time=False)
    assert found == encode_columns_of(
        records[start:end], offset_deltas=deltas[start:end] - deltas[start], base_offset=base_offset, leader_epoch=3
    )
    covering = encoder.encode(start, end, end_offset=end_offset + 5, leader_epoch=3, log_append_time=False)
    assert read(covering) == read(found)
    assert parse_header(covering).last_offset == end_offset + 4


@given(record_lists, st.sampled_from(Codec), st.integers(0, 2**62))
def test_tuples_come_back_as_they_went_in(records: list[NewRecordTuple], codec: Codec, base_offset: int) -> None:
    batch = encode_records(records, codec=codec, base_offset=base_offset)
    assert read(batch) == as_read(records, base_offset)
    check_produced(batch, message_bytes_max=BOUND, decompressed_bytes_max=BOUND)


@given(st.lists(record_lists, max_size=3), st.sampled_from(Codec))
def test_columns_hold_the_records_of_all_batches_in_order(lists: list[list[NewRecordTuple]], codec: Codec) -> None:
    batches = [encode_records(records, codec=codec, base_offset=1000 * number) for number, records in enumerate(lists)]
    assert rows_of(decode(*batches)) == read(*batches)


@given(record_lists, st.integers(0, 2))
def test_columns_encode_to_the_bytes_of_tuples_sliced_or_not(records: list[NewRecordTuple], padding: int) -> None:
    assert encode_columns_of(records, padding=padding) == encode_records(records)


@given(record_lists)
def test_a_decoded_batch_encodes_to_the_same_bytes(records: list[NewRecordTuple]) -> None:
    batch = encode_records(records, producer_id=9, producer_epoch=1, base_sequence=3, leader_epoch=4)
    columns = decode(batch)
    assert batch == encode_batch(
        columns.column("key"),
        columns.column("value"),
        headers=columns.column("headers"),
        timestamps_ms=columns.column("timestamp").cast(pa.int64()).to_numpy(),
        producer_id=9,
        producer_epoch=1,
        base_sequence=3,
        leader_epoch=4,
    )


def test_nulls_empty_bytes_and_repeated_headers_stay_what_they_are() -> None:
    batch = encode_records(EVERY_SHAPE)
    assert read(batch) == rows_of(decode(batch)) == as_read(EVERY_SHAPE)
    columns = decode(batch)
    assert columns.column("key").to_pylist()[:2] == [None, b""]
    assert columns.column("value").to_pylist()[:2] == [None, b""]
    assert columns.column("headers").null_count == 0
    assert columns.column("timestamp_type").to_pylist() == [0, 0, 0, 0]


def test_nothing_decodes_to_no_rows() -> None:
    assert decode().num_rows == 0


def test_a_record_without_a_timestamp_has_minus_one() -> None:
    batch = encode_records([(None, b"a", (), -1), (None, b"b", (), 5), (None, b"c", (), -1)])
    assert [time for _, time, _, _, _ in read(batch)] == [-1, 5, -1]
    assert parse_header(batch).max_timestamp == 5


def test_log_append_time_replaces_the_records_own_times_and_has_its_own_type() -> None:
    first, second = encode_records(EVERY_SHAPE[:2]), with_log_append_time(encode_records(EVERY_SHAPE), 77)
    columns = decode(first, second)
    assert columns.column("timestamp").cast(pa.int64()).to_pylist() == [TIMESTAMP_MS, TIMESTAMP_MS - 1, 77, 77, 77, 77]
    assert columns.column("timestamp_type").to_pylist() == [0, 0, 1, 1, 1, 1]


def test_log_append_time_is_kept_when_columns_are_encoded_again() -> None:
    keys, times = pa.array([b"a", b"b"]), np.array([7, 7])
    batch = encode_batch(keys, keys, timestamps_ms=times, log_append_time=True)
    assert parse_header(batch).log_append_time
    assert decode(batch).column("timestamp_type").to_pylist() == [1, 1]
    assert [record.timestamp_type for record in record_reader(batch)] == [1, 1]
    with pytest.raises(InvalidArgument, match="one timestamp"):
        encode_batch(keys, keys, timestamps_ms=np.array([7, 8]), log_append_time=True)


def record_reader(batch: bytes) -> Any:
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch(batch)


def test_control_batches_are_skipped() -> None:
    batch = encode_records([(b"\0\0\0\1", b"\0\0\0\0\0\0", (), TIMESTAMP_MS)])
    header = parse_header(batch)
    control = assemble(msgspec.structs.replace(header, attributes=0x30), batch[BATCH_OVERHEAD_BYTES:])
    assert read(control) == []
    assert rows_of(decode(batch, control, batch)) == read(batch) * 2


def test_offsets_may_have_gaps_where_key_compaction_has_thinned_them_out() -> None:
    keys = pa.array([b"a", b"b", b"c"])
    times = np.array([5, 6, 7])
    batch = encode_batch(keys, keys, timestamps_ms=times, offset_deltas=np.array([0, 5, 2**31 - 1]), base_offset=100)
    assert [offset for offset, *_ in read(batch)] == [100, 105, 100 + 2**31 - 1]
    assert decode(batch).column("offset").to_pylist() == [100, 105, 100 + 2**31 - 1]
    assert parse_header(batch).last_offset == 100 + 2**31 - 1
    assert aiokafka_records(batch) == read(batch)
    with pytest.raises(InvalidRecord, match="last offset delta"):
        check_produced(batch, message_bytes_max=BOUND, decompressed_bytes_max=BOUND)
    for wrong in ([0, 0, 1], [-1, 0, 1], [0, 2, 1], [0, 1, 2**31]):
        with pytest.raises(InvalidArgument, match="after the base offset"):
            encode_batch(keys, keys, timestamps_ms=times, offset_deltas=np.array(wrong))


def test_an_empty_batch_that_key_compaction_has_left_over_has_no_rows() -> None:
    header = msgspec.structs.replace(parse_header(encode_records(EVERY_SHAPE)), record_count=0)
    assert read(assemble(header, b"")) == []
    assert decode(assemble(header, b"")).num_rows == 0


# Kafka's bytes


@given(record_lists)
def test_the_bytes_are_those_of_aiokafka(records: list[NewRecordTuple]) -> None:
    assert encode_records(records) == aiokafka_batch(records)


@given(record_lists, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))
def test_the_bytes_are_those_of_aiokafkas_idempotent_producer(
    records: list[NewRecordTuple], producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, producer_id, producer_epoch, base_sequence, 1 << 30)
    for row, (key, value, headers, time) in enumerate(records):
        builder.append(row, time, key, value, list(headers))
    assert bytes(builder.build()) == encode_records(
        records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


@given(record_lists, st.sampled_from(Codec))
def test_aiokafka_reads_what_is_written_here_under_every_codec(records: list[NewRecordTuple], codec: Codec) -> None:
    assert aiokafka_records(encode_records(records, codec=codec)) == as_read(records)
    assert aiokafka_records(encode_columns_of(records, codec=codec)) == as_read(records)


@given(record_lists, st.sampled_from(Codec))
def test_batches_of_aiokafka_are_read_here_under_every_codec(records: list[NewRecordTuple], codec: Codec) -> None:
    batch = aiokafka_batch(records, compression_type=codec)
    assert read(batch) == rows_of(decode(batch)) == as_read(records)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_codec_that_saves_nothing_is_left_away(codec: Codec) -> None:
    assert encode_records([(None, b"a", (), TIMESTAMP_MS)], codec=codec) == encode_records([(None, b"a", (), TIMESTAMP_MS)])
    larger = [(None, b"a" * 500, (), TIMESTAMP_MS)]
    assert parse_header(encode_records(larger, codec=codec)).codec is codec


# What is refused


@given(st.lists(new_records, min_size=1, max_size=4), st.integers(16, 10_000), st.integers(0, 7))
def test_a_changed_bit_is_found_when_batches_are_read(records: list[NewRecordTuple], byte: int, bit: int) -> None:
    batch = bytearray(encode_records(records))
    batch[16 + byte % (len(batch) - 16)] ^= 1 << bit
    for act in (read, decode):
        with pytest.raises(InvalidRecord):
            act(bytes(batch))


def test_offsets_past_the_largest_are_refused() -> None:
    header = parse_header(encode_records(EVERY_SHAPE))
    section = encode_records(EVERY_SHAPE)[BATCH_OVERHEAD_BYTES:]
    assert read(assemble(msgspec.structs.replace(header, base_offset=2**63 - 4), section))[-1][0] == 2**63 - 1
    for base_offset in (2**63 - 3, -1, -(2**63)):
        for act in (read, decode):
            with pytest.raises(InvalidRecord, match="base offset"):
                act(assemble(msgspec.structs.replace(header, base_offset=base_offset), section))


def test_columns_over_two_gib_are_refused_before_memory_is_taken_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_columns, "_INT32_MAX", 50_000)
    batch = encode_records([(None, b"x" * 9_000, (), TIMESTAMP_MS)])
    assert decode(*[batch] * 5).num_rows == 5
    with pytest.raises(TooLarge, match="54000 of values"):
        decode(*[batch] * 6)


def test_a_bomb_among_batches_is_refused() -> None:
    batch = encode_records([(None, bytes(BOUND), (), TIMESTAMP_MS)], codec=Codec.ZSTD)
    for act in (read, decode):
        with pytest.raises(TooLarge):
            act(batch)


KEYS = pa.array([b"a", b"b"])
TIMES = np.array([1, 2])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "at least one"),
        ([(b"k", b"v", ())], "not a tuple of"),
        ([[b"k", b"v", (), 1]], "not a tuple of"),
        ([None], "not a tuple of"),
        ([("k", b"v", (), 1)], "is str"),
        ([(b"k", bytearray(b"v"), (), 1)], "is bytearray"),
        ([(b"k", b"v", (), 1.5)], "timestamp 1.5"),
        ([(b"k", b"v", (), None)], "timestamp None"),
        ([(b"k", b"v", (), True)], "timestamp True"),
        ([(b"k", b"v", (), -2)], "timestamp -2"),
        ([(b"k", b"v", (), 2**63 - 1)], "timestamp"),
        ([(b"k", b"v", (), 2**64)], "timestamp"),
        ([(b"k", b"v", ((b"h", b"v"),), 1)], "header 0 of record 0"),
        ([(b"k", b"v", (("h",),), 1)], "header 0 of record 0"),
        ([(b"k", b"v", (("h", b""), None), 1)], "header 1 of record 0"),
        ([(b"k", b"v", (("h", "v"),), 1)], "is str"),
        ([(b"k", b"v", (("\ud800", b"v"),), 1)], "UTF-8"),
        ([(b"k", b"v", 5, 1)], "header"),
    ],
)
def test_tuples_that_are_no_records_are_refused(records: list[Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        encode_records(records)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keys": KEYS[:0], "values": KEYS[:0], "timestamps_ms": TIMES[:0]}, "at least one"),
        ({"values": KEYS[:1]}, "1 values do not match 2 keys"),
        ({"timestamps_ms": TIMES[:1]}, "1 timestamps"),
        ({"offset_deltas": TIMES[:1]}, "1 offset deltas"),
        ({"headers": pa.array([[]], HEADERS_TYPE)}, "1 headers"),
        ({"keys": pa.array([1, 2])}, "int64"),
        ({"values": pa.array([[b"a"], []])}, "list"),
        ({"timestamps_ms": np.array([1, -2])}, "timestamp -2"),
        ({"timestamps_ms": np.array([1, 2**63 - 1])}, "timestamp 9223372036854775807"),
        ({"timestamps_ms": np.array([1.5, 2.5])}, "float64"),
        ({"headers": pa.array([b"a", b"b"])}, "headers is of type binary"),
        ({"headers": pa.array([["a"], []])}, "headers is of type"),
        ({"headers": pa.array([[{"k": "a", "v": b""}], []])}, "headers is of type"),
        ({"headers": pa.array([[None], []], HEADERS_TYPE)}, "a header is null"),
        ({"headers": pa.array([[{"key": 1, "value": b""}], []])}, "int64"),
        (
            {
                "headers": pa.array(
                    [[], [{"key": None, "value": b""}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                )
            },
            "null as its key",
        ),
        (
            {
                "headers": pa.array(
                    [[], [{"key": b"\xff", "value": b""}]], pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
                )
            },
            "UTF-8",
        ),
        ({"base_offset": -1}, "base offset -1"),
        ({"base_offset": 2**63}, "base offset"),
        ({"leader_epoch": -2}, "leader epoch -2"),
        ({"producer_id": 2**63}, "producer id"),
        ({"producer_epoch": 2**15}, "producer epoch 32768"),
        ({"base_sequence": 2**31}, "base sequence 2147483648"),
    ],
)
def test_columns_that_are_no_records_are_refused(fields: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"keys": KEYS, "values": KEYS, "timestamps_ms": TIMES}
    encode_batch(**sound)
    with pytest.raises(InvalidArgument, match=message):
        encode_batch(**(sound | fields))


def broken_afterwards(type_: pa.DataType, sound: list[int], broken: list[int], **parts: Any) -> pa.Array:
    """A list or binary array whose offsets were right when Arrow looked at them, as no stream over a network promises."""
    offsets = np.array(sound, np.int32)
    data = [] if "children" in parts else [pa.py_buffer(b"ab")]
    array = pa.Array.from_buffers(type_, 2, [None, pa.py_buffer(offsets), *data], **parts)
    offsets[:] = broken
    return array


@pytest.mark.parametrize("broken", [[0, 1, 3], [0, 2, 1], [-1, 0, 1], [0, 2**31 - 1, -(2**31)], [-(2**31), 0, 0], [2, 1, 0]])
def test_columns_whose_offsets_lie_are_refused(broken: list[int]) -> None:
    column = broken_afterwards(pa.binary(), [0, 1, 2], broken)
    for keys, values in ((column, KEYS), (KEYS, column)):
        with pytest.raises(InvalidArgument, match="do not ascend"):
            encode_batch(keys, values, timestamps_ms=TIMES)


@pytest.mark.parametrize("broken", [[0, 1, 2], [0, 2**30, 0], [-1, 0, 0]])
def test_lists_of_headers_whose_offsets_lie_are_refused(broken: list[int]) -> None:
    headers = pa.array([{"key": "a", "value": b""}], HEADERS_TYPE.value_type)
    column = broken_afterwards(HEADERS_TYPE, [0, 1, 1], broken, children=[headers])
    with pytest.raises(InvalidArgument, match="do not ascend"):
        encode_batch(KEYS, KEYS, timestamps_ms=TIMES, headers=column)


@pytest.mark.parametrize(
    ("count", "first", "offsets", "validity"),
    [(2, 0, 2, 0), (2, 1, 3, 0), (1, 8, 10, 1), (-1, 3, 5, 0), (1, -1, 5, 0), (1, 0, 0, 0)],
)
def test_columns_whose_buffers_are_too_short_are_refused(
    kernel_form: Any, count: int, first: int, offsets: int, validity: int
) -> None:
    zeros = memoryview(bytes(4 * offsets)).cast("i")
    with pytest.raises(InvalidArgument, match="too short"):
        kernel_form.ArrowReader(count, first, zeros, memoryview(bytes(validity)), memoryview(b""), 0)


def test_other_kinds_of_string_columns_are_taken() -> None:
    expected = encode_records([(b"a", None, (), 1), (None, b"b", (), 2)])
    for type_ in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.binary(1)):
        keys, values = pa.array([b"a", None], pa.binary()).cast(type_), pa.array([None, b"b"], pa.binary()).cast(type_)
        assert encode_batch(keys, values, timestamps_ms=TIMES) == expected
    assert encode_batch(pa.nulls(2), pa.nulls(2), timestamps_ms=TIMES) == encode_records([(None, None, (), 1), (None, None, (), 2)])


def test_headers_behind_a_null_list_are_not_written() -> None:
    lists = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS_TYPE)
    masked = pa.Array.from_buffers(HEADERS_TYPE, 2, [pa.py_buffer(b"\2"), lists.buffers()[1]], children=[lists.values])
    assert masked.to_pylist()[0] is None
    batch = encode_batch(KEYS, KEYS, timestamps_ms=TIMES, headers=masked)
    assert [headers for *_, headers in read(batch)] == [(), (("b", b"2"),)]


def test_encoding_keeps_no_references_to_what_it_was_given() -> None:
    value = b"value" * 100
    headers = (("key", value),)
    before = sys.getrefcount(value)
    for _ in range(50):
        batch = encode_records([(value, value, headers, 1)] * 5)
        read(batch)
        with pytest.raises(InvalidArgument):
            encode_records([(value, value, headers, 1), (value, value, headers, -2)])
    assert sys.getrefcount(value) == before
