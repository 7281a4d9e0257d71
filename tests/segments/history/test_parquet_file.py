"""Files of history: every record comes back as it was, from one row group's bytes and the footer; anything else is Corrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from awscrt.checksums import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Offset
from segments.history.manifest import HistoryFile
from segments.history.parquet_file import (
    ROW_BYTES,
    HistoryWriter,
    ParquetSettings,
    WrittenFile,
    parse_parquet_footer,
    read_columns,
    read_row_group,
    verify_history,
)
from segments.history.parquet_schema import PARQUET_SCHEMA
from segments.records.checksum import as_text
from segments.records.columns import SCHEMA, decode_batches
from tests.kit.segments.history_files import checksum_of_batches, write_history
from tests.kit.segments.history_strategies import BOUND, History, Row, columns_of, histories, rows_of_columns
from tests.kit.segments.record_strategies import TIMESTAMP_MS

KEY = "topics/orders/0/partition=3/x.parquet"
ODD: list[Row] = [
    (0, TIMESTAMP_MS, 0, None, None, ()),
    (1, -1, 0, b"", b"", (("", b""), ("", None))),
    (5, 2**63 - 2, 0, b"k" * 70, b"v" * 900, (("a", b"1"), ("b", b"2"), ("a", b"1"), ("ключ", b"3"))),
    (6, 0, 1, b"key", None, ()),
    (2**62, TIMESTAMP_MS - 5, 1, b"key", b"\xff\x00", (("a", b""),)),
]


def write(*columns: pa.RecordBatch, row_group_bytes: int = 16 << 20) -> WrittenFile:
    options = ParquetSettings(row_group_bytes=row_group_bytes)
    return write_history(columns, name="x.parquet", topic="orders", partition=3, settings=options)


def plain(
    count: int, *, base_offset: int = 0, value_bytes: int = 60, key: Callable[[int], bytes] = lambda row: b"key"
) -> pa.RecordBatch:
    """Rows of which every one takes `value_bytes` + 3, and ROW_BYTES, where keys are three bytes long."""
    return columns_of(
        [(base_offset + row, TIMESTAMP_MS + row, 0, key(row), b"%0*d" % (value_bytes, row), ()) for row in range(count)]
    )


def rows_of(written: WrittenFile) -> list[Row]:
    return [row for group in read_columns(written.body, written.file) for row in rows_of_columns(group)]


# Lossless


def test_every_odd_record_comes_back_as_it_was() -> None:
    written = write(columns_of(ODD))
    verify_history(written.body, written.file)
    assert rows_of(written) == ODD


@pytest.mark.slow
@settings(max_examples=60)
@given(histories(), st.sampled_from([1, 200, 1000, 1 << 20]), st.data())
def test_any_history_comes_back_whatever_the_row_groups_and_however_it_was_handed_in(
    history: History, row_group_bytes: int, data: st.DataObject
) -> None:
    columns = decode_batches(history.batches, decompressed_bytes_max=BOUND)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, columns.num_rows), max_size=3))), columns.num_rows]
    parts = [columns.slice(start, end - start) for start, end in pairwise(cuts)]
    written = write(*parts, row_group_bytes=row_group_bytes)
    verify_history(written.body, written.file, key=KEY)
    for group in read_columns(written.body, written.file):
        group.validate(full=True)
        assert group.schema.equals(SCHEMA, check_metadata=True)
    assert rows_of(written) == history.rows
    records, checksum = checksum_of_batches(history.batches, decompressed_bytes_max=BOUND)
    assert (written.file.record_count, written.file.checksum) == (records, as_text(checksum))


def test_the_columns_that_are_asked_for_are_read_and_no_others() -> None:
    written = write(columns_of(ODD))
    (group,) = read_columns(written.body, written.file, columns=["offset", "timestamp_type", "headers"])
    assert group.schema.names == ["offset", "timestamp_type", "headers"]
    assert group.equals(columns_of(ODD).select(group.schema.names))


# What Spark finds


def test_a_file_has_the_columns_of_sparks_kafka_source_in_their_order() -> None:
    written = write(columns_of(ODD))
    file = pq.ParquetFile(pa.BufferReader(written.body))
    assert file.schema_arrow.equals(PARQUET_SCHEMA)
    stored = [(leaf.path, leaf.physical_type, str(leaf.logical_type.type)) for leaf in map(file.schema.column, range(9))]
    assert stored == [
        ("key", "BYTE_ARRAY", "NONE"),
        ("value", "BYTE_ARRAY", "NONE"),
        ("topic", "BYTE_ARRAY", "STRING"),
        ("partition", "INT32", "NONE"),
        ("offset", "INT64", "NONE"),
        ("timestamp", "INT64", "TIMESTAMP"),
        ("timestampType", "INT32", "NONE"),
        ("headers.list.element.key", "BYTE_ARRAY", "STRING"),
        ("headers.list.element.value", "BYTE_ARRAY", "NONE"),
    ]
    table = file.read()
    assert table.column("topic").to_pylist() == ["orders"] * len(ODD)
    assert table.column("partition").to_pylist() == [3] * len(ODD)
    assert table.column("value").to_pylist() == [value for *_, value, _ in ODD]


def test_row_groups_are_sorted_by_offset_with_statistics_and_page_index_and_every_page_has_a_checksum() -> None:
    written = write(plain(1000), row_group_bytes=20_000)
    metadata = pq.read_metadata(pa.BufferReader(written.body))
    group = metadata.row_group(1)
    offset = group.column(4)
    assert group.sorting_columns == (pq.SortingColumn(4),)
    assert (offset.statistics.min, offset.statistics.max) == (
        written.file.row_groups[1].base_offset,
        written.file.row_groups[1].last_offset,
    )
    assert offset.has_column_index
    assert offset.has_offset_index
    assert not group.column(1).is_stats_set, "the least and greatest value are of no use, and may be large"
    checked = pq.ParquetFile(pa.BufferReader(written.body), page_checksum_verification=True).read()
    assert checked.num_rows == 1000
    body = bytearray(written.body)
    body[written.file.row_groups[0].start + 200] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(body)), page_checksum_verification=True).read()


def key_column(written: WrittenFile) -> pq.ColumnChunkMetaData:
    return pq.read_metadata(pa.BufferReader(written.body)).row_group(0).column(0)


def test_many_different_keys_get_a_bloom_filter_and_few_a_dictionary() -> None:
    many = key_column(write(plain(3000, key=lambda row: b"%06d" % row)))
    assert not many.has_dictionary_page
    assert many.bloom_filter_length is not None
    few = key_column(write(plain(3000, key=lambda row: b"%03d" % (row % 100))))
    assert few.has_dictionary_page
    assert few.bloom_filter_length is None


def test_the_bounds_of_long_keys_are_left_out_of_the_footer() -> None:
    assert key_column(write(plain(100))).is_stats_set
    assert not key_column(write(plain(100, key=lambda row: b"%0900d" % row))).is_stats_set


# Row groups


def test_a_row_group_ends_before_the_record_that_would_make_it_too_large() -> None:
    row_bytes = 63 + ROW_BYTES
    written = write(plain(7), plain(13, base_offset=7), row_group_bytes=5 * row_bytes)
    assert [group.record_count for group in written.file.row_groups] == [5, 5, 5, 5]
    assert [group.record_count for group in write(plain(20), row_group_bytes=6 * row_bytes - 1).file.row_groups] == [5, 5, 5, 5]


def test_a_huge_record_has_a_row_group_for_itself() -> None:
    small, huge, after = plain(3), plain(1, base_offset=3, value_bytes=50_000), plain(3, base_offset=4)
    written = write(small, huge, after, row_group_bytes=10_000)
    assert [(group.base_offset, group.last_offset) for group in written.file.row_groups] == [(0, 2), (3, 3), (4, 6)]
    verify_history(written.body, written.file)


def test_the_manifest_entry_of_a_written_file_describes_its_content() -> None:
    written = write_history([columns_of(ODD)], name="x.parquet", topic="orders", partition=3, base_offset=0, last_offset=2**62 + 10)
    file = written.file
    assert (file.name, file.base_offset, file.last_offset, file.record_count) == ("x.parquet", 0, 2**62 + 10, len(ODD))
    assert (file.min_timestamp, file.max_timestamp) == (-1, 2**63 - 2)
    assert file.record_bytes == sum(
        len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(text or b"") for name, text in headers)
        for *_, key, value, headers in ODD
    )
    assert file.size_bytes == written.body.size
    assert [(group.base_offset, group.last_offset, group.max_timestamp) for group in file.row_groups] == [(0, 2**62, 2**63 - 2)]


def test_a_row_group_is_read_from_its_own_bytes_and_the_footer_alone() -> None:
    written = write(plain(500), row_group_bytes=10_000)
    body, file = bytes(written.body), written.file
    footer = parse_parquet_footer(body[file.footer_start :], file, KEY)
    assert footer.memory_bytes > 0
    assert len(file.row_groups) > 3
    for group in reversed(file.row_groups):
        records = read_row_group(body[group.start : group.end], group, footer)
        assert (records.column("offset")[0].as_py(), records.column("offset")[-1].as_py()) == (group.base_offset, group.last_offset)


def test_writing_and_verifying_hold_one_row_group_beside_the_file() -> None:
    random = np.random.default_rng(1)
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def stream() -> Iterator[pa.RecordBatch]:
        for part in range(16):
            values = pa.array([random.bytes(1000) for _ in range(1000)], pa.binary())
            empty = plain(1000, base_offset=part * 1000)
            yield empty.set_column(4, SCHEMA.field("value"), values)
            held.append(pa.total_allocated_bytes() - before)

    options = ParquetSettings(row_group_bytes=1 << 20)
    written = write_history(stream(), name="x", topic="orders", partition=3, settings=options)
    assert written.body.size > 16_000_000
    assert max(held) < 2 * written.body.size + 8_000_000, "a sink that grows may be copied once"
    before = pa.total_allocated_bytes()
    for _ in read_columns(written.body, written.file):
        assert pa.total_allocated_bytes() - before < 8_000_000
    verify_history(written.body, written.file)


# What no caller may hand in


def test_offsets_that_do_not_ascend_are_refused() -> None:
    writer = HistoryWriter("orders", 3, ParquetSettings())
    writer.append(plain(5, base_offset=10))
    for wrong in (plain(5, base_offset=14), columns_of([ODD[2], ODD[1]])):
        with pytest.raises(InvalidArgument, match="ascend"):
            writer.append(wrong)


def test_a_file_of_no_records_is_refused() -> None:
    writer = HistoryWriter("orders", 3, ParquetSettings())
    writer.append(columns_of(ODD).slice(0, 0))
    assert writer.record_count == 0
    with pytest.raises(InvalidArgument, match="no record"):
        writer.finish("x.parquet")


# What is on the bucket in its place


@pytest.fixture(scope="module")
def written() -> WrittenFile:
    rows: list[Row] = [
        (row * 2, TIMESTAMP_MS + row, 0, b"%05d" % row, b"%0*d" % (row % 50, row), (("a", b"%d" % row),)) for row in range(1500)
    ]
    return write(columns_of(rows), row_group_bytes=40_000)


def corrupt_of(body: bytes, file: HistoryFile) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        verify_history(body, file, key=KEY)
    assert caught.value.details["key"] == KEY
    assert KEY in caught.value.message
    assert 0 <= int(caught.value.details["start"]) < int(caught.value.details["end"]) <= file.size_bytes
    return caught.value


@given(at=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_a_flipped_byte_is_detected_with_its_key_and_range(written: WrittenFile, at: float, flipped: int) -> None:
    body = bytearray(written.body)
    byte_offset = int(at * len(body))
    body[byte_offset] ^= flipped
    error = corrupt_of(bytes(body), written.file)
    assert int(error.details["start"]) <= byte_offset < int(error.details["end"])


@given(at=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_a_reader_meets_corrupt_or_the_same_records_and_only_in_the_row_group_that_is_damaged(
    written: WrittenFile, at: float, flipped: int
) -> None:
    body = bytearray(written.body)
    byte_offset = int(at * len(body))
    body[byte_offset] ^= flipped
    try:
        footer = parse_parquet_footer(memoryview(body)[written.file.footer_start :], written.file, KEY)
    except Corrupt:
        assert byte_offset >= written.file.footer_start
        return
    sound = parse_parquet_footer(memoryview(written.body)[written.file.footer_start :], written.file, KEY)
    for group in written.file.row_groups:
        there = memoryview(body)[group.start : group.end]
        if group.start <= byte_offset < group.end:
            with pytest.raises(Corrupt) as caught:
                read_row_group(there, group, footer)
            assert (caught.value.details["start"], caught.value.details["end"]) == (group.start, group.end)
            assert caught.value.details["next_offset"] == group.last_offset + 1
        else:
            as_written = read_row_group(memoryview(written.body)[group.start : group.end], group, sound)
            assert read_row_group(there, group, footer).equals(as_written)


@pytest.mark.parametrize("size", [0, 3, 4, 1000, -1])
def test_a_file_that_was_cut_short_is_corrupt(written: WrittenFile, size: int) -> None:
    assert "bytes" in corrupt_of(bytes(written.body)[:size], written.file).message
    footer = bytes(written.body)[written.file.footer_start :]
    with pytest.raises(Corrupt, match="bytes are there"):
        parse_parquet_footer(footer[:size], written.file, KEY)
    sound = parse_parquet_footer(footer, written.file, KEY)
    group = written.file.row_groups[0]
    with pytest.raises(Corrupt, match="bytes are there"):
        read_row_group(bytes(written.body)[group.start : group.end][:size], group, sound)


def test_something_else_of_the_same_size_is_corrupt(written: WrittenFile) -> None:
    corrupt_of(b"x" * written.file.size_bytes, written.file)


def forged(table: pa.Table, **changed: object) -> WrittenFile:
    """Another program's file, with a manifest that says what it is made to say of it, and its right CRCs."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False)
    body = sink.getvalue()
    view = memoryview(body)
    footer_start = body.size - 8 - int.from_bytes(view[-8:-4], "little")
    model = write(columns_of(ODD)).file
    (group,) = model.row_groups
    reported = {"start": 4, "end": footer_start, "record_count": table.num_rows} | changed
    group = msgspec.structs.replace(group, **reported)
    group = msgspec.structs.replace(group, crc32c=crc32c(view[group.start : group.end]))
    file = msgspec.structs.replace(
        model,
        size_bytes=body.size,
        footer_start=footer_start,
        footer_crc32c=crc32c(view[footer_start:]),
        record_count=group.record_count,
        row_groups=(group,),
    )
    return WrittenFile(body, file)


def test_a_file_of_other_columns_is_corrupt() -> None:
    found = forged(pa.table({"id": pa.array(range(5))}))
    assert "its columns are id: int64" in corrupt_of(bytes(found.body), found.file).message


def as_stored(rows: Sequence[Row]) -> pa.Table:
    written = write(columns_of(rows))
    return pq.ParquetFile(pa.BufferReader(written.body)).read().cast(PARQUET_SCHEMA)


def test_another_number_of_records_than_the_manifest_says_is_corrupt() -> None:
    found = forged(as_stored(ODD), record_count=6)
    assert "5 records in 1 row groups, the manifest 6 in 1" in corrupt_of(bytes(found.body), found.file).message


def test_row_groups_elsewhere_than_the_manifest_says_are_corrupt() -> None:
    found = forged(as_stored(ODD), start=5)
    assert "elsewhere" in corrupt_of(bytes(found.body), found.file).message


@pytest.mark.parametrize("changed", [{"base_offset": Offset(1)}, {"last_offset": Offset(7)}, {"max_timestamp": 5}])
def test_other_offsets_or_times_than_the_manifest_says_are_corrupt(changed: dict[str, int]) -> None:
    written = write(columns_of(ODD))
    (group,) = written.file.row_groups
    file = msgspec.structs.replace(written.file, row_groups=(msgspec.structs.replace(group, **changed),))
    corrupt_of(bytes(written.body), file)


@pytest.mark.parametrize("changed", [{"checksum": "0" * 16}, {"record_bytes": 1}, {"min_timestamp": 0}, {"max_timestamp": 0}])
def test_other_records_than_the_manifest_says_are_corrupt(changed: dict[str, object]) -> None:
    written = write(columns_of(ODD))
    assert "manifest says" in corrupt_of(bytes(written.body), msgspec.structs.replace(written.file, **changed)).message


def test_rows_out_of_order_are_corrupt() -> None:
    swapped = as_stored(ODD).take([0, 2, 1, 3, 4])
    found = forged(swapped)
    metadata = pq.read_metadata(pa.BufferReader(found.body)).row_group(0)
    last = metadata.column(8)
    found = forged(swapped, end=(last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size)
    assert "ascend" in corrupt_of(bytes(found.body), found.file).message
