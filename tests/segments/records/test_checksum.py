"""The checksum of records: the same of batches and of columns, whatever the order, and another one where any record differs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.errors import InvalidArgument, InvalidRecord
from segments.records import checksum_kernel
from segments.records.batch import BATCH_OVERHEAD_BYTES, assemble, parse_header, with_log_append_time
from segments.records.checksum import SUMS, as_text, checksum_of_columns
from segments.records.checksum_kernel import ColumnReader
from segments.records.columns import decode_batches, encode_records
from segments.records.compression import Codec
from tests.kit.segments.history_files import checksum_of_batches
from tests.kit.segments.history_strategies import BOUND, History, Row, columns_of, histories, rows_of_columns
from tests.kit.segments.kernel_forms import CHECKSUM_SOURCE, UNCOMPILED_CHECKSUMS, kernel_form
from tests.kit.segments.record_strategies import TIMESTAMP_MS, record_lists

__all__ = ["kernel_form"]

EVERY_SHAPE: list[Row] = [
    (0, TIMESTAMP_MS, 0, None, None, ()),
    (1, -1, 0, b"", b"", (("", b""), ("", None))),
    (2, 2**63 - 2, 0, b"k" * 70, b"v" * 900, (("a", b"1"), ("b", b"2"), ("a", b"1"), ("ключ", b"3"))),
    (2**62, 5, 1, b"1234567", b"12345678", ()),
]


def sum_of(*batches: bytes) -> tuple[int, int]:
    return checksum_of_batches(batches, decompressed_bytes_max=BOUND)


def test_the_checksum_is_the_one_that_manifests_have() -> None:
    """Stored for good: another function would call every file damaged."""
    assert as_text(checksum_of_columns(columns_of(EVERY_SHAPE))) == "f8b3cf6738b64c53"


@pytest.mark.slow
@settings(max_examples=40)
@given(histories())
def test_batches_and_their_columns_have_the_same(history: History) -> None:
    columns = decode_batches(history.batches, decompressed_bytes_max=BOUND)
    assert sum_of(*history.batches) == (columns.num_rows, checksum_of_columns(columns))
    assert checksum_of_columns(columns) == checksum_of_columns(columns_of(rows_of_columns(columns)))


@pytest.mark.slow
@settings(max_examples=40)
@given(histories(), st.data())
def test_that_of_a_whole_is_the_sum_of_its_parts_in_any_order(history: History, data: st.DataObject) -> None:
    columns = decode_batches(history.batches, decompressed_bytes_max=BOUND)
    cuts = sorted(data.draw(st.lists(st.integers(0, columns.num_rows), max_size=3)))
    parts = [columns.slice(start, end - start) for start, end in pairwise([0, *cuts, columns.num_rows])]
    shuffled = data.draw(st.permutations(parts))
    assert sum(map(checksum_of_columns, shuffled)) % SUMS == checksum_of_columns(columns)


@pytest.mark.slow
@settings(max_examples=40)
@given(histories(), st.data())
def test_the_checksum_changes_with_any_field_of_any_record(history: History, data: st.DataObject) -> None:
    rows = history.rows
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = list(rows)
    changed[at] = data.draw(st.sampled_from(_others(rows[at])))
    assert checksum_of_columns(columns_of(changed)) != checksum_of_columns(columns_of(rows))


def _others(row: Row) -> list[Row]:
    """Records that differ from it in one thing."""
    offset, time, kind, key, value, headers = row
    differ: list[Row] = [
        (offset + 1, time, kind, key, value, headers),
        (offset, time - 1, kind, key, value, headers),
        (offset, time, 1 - kind, key, value, headers),
        (offset, time, kind, b"" if key is None else None, value, headers),
        (offset, time, kind, key, b"" if value is None else None, headers),
        (offset, time, kind, (key or b"") + b"\0", value, headers),
        (offset, time, kind, key, b"\0" + (value or b""), headers),
        (offset, time, kind, key, value, (*headers, ("", None))),
        (offset, time, kind, key, value, (*headers, ("", b""))),
    ]
    if key != value:
        differ.append((offset, time, kind, value, key, headers))
    if headers:
        (name, text), *others = headers
        differ += [
            (offset, time, kind, key, value, tuple(others)),
            (offset, time, kind, key, value, ((name, b"" if text is None else None), *others)),
            (offset, time, kind, key, value, ((name + "x", text), *others)),
        ]
    if headers[::-1] != headers:
        differ.append((offset, time, kind, key, value, headers[::-1]))
    return differ


def test_the_checksum_of_no_records_is_zero() -> None:
    assert sum_of() == (0, 0)
    assert checksum_of_columns(decode_batches([], decompressed_bytes_max=BOUND)) == 0


def test_control_batches_do_not_count() -> None:
    batch = encode_records([(b"k", b"v", (), TIMESTAMP_MS)])
    header = parse_header(batch)
    control = with_attributes(batch, header.attributes | 0x20)
    assert sum_of(batch, control) == sum_of(batch)


def test_log_append_time_counts_as_the_time_of_all_records() -> None:
    batch = encode_records([(b"k", b"v", (), TIMESTAMP_MS), (b"k", b"v", (), 5)])
    appended = with_log_append_time(batch, TIMESTAMP_MS + 9)
    rows: list[Row] = [(offset, TIMESTAMP_MS + 9, 1, b"k", b"v", ()) for offset in range(2)]
    assert sum_of(appended) == (2, checksum_of_columns(columns_of(rows)))


def with_attributes(batch: bytes, attributes: int) -> bytes:
    return assemble(msgspec.structs.replace(parse_header(batch), attributes=attributes), memoryview(batch)[BATCH_OVERHEAD_BYTES:])


# Sections and columns that are not what they should be


@given(record_lists, st.integers(0, 2**32), st.integers(1, 255), st.booleans())
def test_a_damaged_section_is_refused_or_has_another_sum_and_is_never_read_past_its_end(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], at: int, flipped: int, cut: bool
) -> None:
    batch = encode_records(records)
    section = bytearray(batch[BATCH_OVERHEAD_BYTES:])
    byte_offset = at % len(section)
    section[byte_offset] ^= flipped
    damaged = assemble(parse_header(batch), bytes(section[:byte_offset]) if cut else bytes(section))
    try:
        found = sum_of(damaged)
    except InvalidRecord:
        return
    assert found != sum_of(batch)


@given(st.binary(max_size=60), st.integers(-(2**31), 2**31 - 1))
def test_any_bytes_for_a_section_are_refused_the_same_way_in_both_forms(section: bytes, count: int) -> None:
    assert _outcome(checksum_kernel.SectionReader, section, count) == _outcome(UNCOMPILED_CHECKSUMS.SectionReader, section, count)


@pytest.mark.slow
@settings(max_examples=40)
@given(histories())
def test_both_forms_find_the_same(history: History) -> None:
    for batch in history.batches:
        header = parse_header(batch)
        section = batch[BATCH_OVERHEAD_BYTES:]
        if header.codec is Codec.NONE:
            found = [
                _outcome(kernel.SectionReader, section, header.record_count) for kernel in (checksum_kernel, UNCOMPILED_CHECKSUMS)
            ]
            assert found[0] == found[1]


def _outcome(reader: type, section: bytes, count: int) -> object:
    try:
        return reader(section).checksum(count, 5, TIMESTAMP_MS, TIMESTAMP_MS, False)
    except InvalidRecord as refusal:
        return refusal.message


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 5, 9], [-1, 0, 1], [0, 1]])
def test_offsets_that_lead_out_of_their_buffer_are_refused(offsets: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        ColumnReader(2, 0, np.array(offsets, np.int32).data, memoryview(b""), memoryview(b"12345678"), 8)


@pytest.mark.skipif(not checksum_kernel.COMPILED, reason="the kernel is not compiled here")
def test_the_compiled_kernel_is_not_older_than_its_source() -> None:
    built = Path(checksum_kernel.__file__)
    assert built.stat().st_mtime >= CHECKSUM_SOURCE.stat().st_mtime, f"{built.name} is stale: python setup.py build_ext --inplace"
    assert not UNCOMPILED_CHECKSUMS.COMPILED
