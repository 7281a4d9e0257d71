"""Bytes of files and pipes become records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from tidelog.cli.formats import record_input
from tidelog.cli.formats.record_format import as_json_line
from tidelog.cli.formats.record_input import InputFormat, InputOptions, RecordInput
from tidelog.records import Message, Record, to_bytes, to_headers


def records(data: bytes | Sequence[bytes], options: InputOptions) -> list[Message]:
    taken = RecordInput(options)
    pieces = [data] if isinstance(data, bytes) else data
    return [message for piece in pieces for message in taken.feed(piece)] + list(taken.end())


def pairs(messages: Sequence[Message]) -> list[tuple[object, object]]:
    return [(message.key, message.value) for message in messages]


def test_each_line_is_a_value() -> None:
    options = InputOptions(InputFormat.LINES)
    assert pairs(records(b"a\r\nb\n\nc", options)) == [(None, b"a"), (None, b"b"), (None, b""), (None, b"c")]
    assert records(b"", options) == []
    assert len(records(b"a\n", options)) == 1


def test_a_separator_parts_key_and_value() -> None:
    options = InputOptions(InputFormat.LINES, key_separator=b":")
    assert pairs(records(b"k:v\n:x\nk2:a:b\n", options)) == [(b"k", b"v"), (b"", b"x"), (b"k2", b"a:b")]
    with pytest.raises(InvalidArgument, match="line 2 of the input has no separator ':'"):
        records(b"k:v\nnothing\n", options)


def test_ndjson_is_stored_compact_with_a_field_as_its_key() -> None:
    options = InputOptions(InputFormat.NDJSON, key_field="id")
    found = records(b'{"id": 7, "x": 1.10}\n\n{"id":"c-7"}\n', options)
    assert pairs(found) == [(b"7", b'{"id":7,"x":1.10}'), (b"c-7", b'{"id":"c-7"}')]
    for line, problem in ((b"{", "is not JSON"), (b'{"x":1}', "no field 'id'"), (b"[1]", "is no JSON object")):
        with pytest.raises(InvalidArgument, match=f"line 2 of the input .*{problem}"):
            records(b'{"id":1}\n' + line, options)


def test_csv_rows_become_objects() -> None:
    options = InputOptions(InputFormat.CSV, key_field="name")
    found = records('﻿name,note\n"A, B","two\nlines"\nü,""\n'.encode(), options)
    assert pairs(found) == [(b"A, B", b'{"name":"A, B","note":"two\\nlines"}'), ("ü".encode(), '{"name":"ü","note":""}'.encode())]
    for rows, problem in ((b"name,b\n1\n", "line 2 .*1 fields"), (b"a\n\xff\n", "not UTF-8"), (b"x\n1\n", "no field 'name'")):
        with pytest.raises(InvalidArgument, match=problem):
            records(rows, options)
    with pytest.raises(InvalidArgument, match="line 4 of the input has 3 fields"):
        records(b'name,b\n"1\n2",x\n1,2,3\n', options)


def test_a_first_line_that_names_a_field_twice_or_not_the_key_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="line 1 of the input names the field 'a' twice"):
        records(b"a,b,a\n1,2,3\n", InputOptions(InputFormat.CSV))
    with pytest.raises(InvalidArgument, match="line 1 of the input names no field 'c' for the key; it names a, b"):
        records(b"a,b\n", InputOptions(InputFormat.CSV, key_field="c"))


def test_a_long_field_of_csv_is_taken() -> None:
    (found,) = records(b"a\n" + b"x" * 500_000 + b"\n", InputOptions(InputFormat.CSV))
    assert found.value is not None
    assert len(found.value) > 500_000


def test_an_unclosed_quote_is_reported_with_its_line_in_linear_time() -> None:
    data = b'a,b\n1,2\n1,"x\n' + b"12345,67890\n" * 100_000
    pieces = [data[start : start + 4096] for start in range(0, len(data), 4096)]
    with pytest.raises(InvalidArgument, match="line 3 of the input opens a quote that is not closed"):
        records(pieces, InputOptions(InputFormat.CSV))


@pytest.mark.parametrize(
    ("form", "data", "hint"),
    [(InputFormat.LINES, b"x" * 1000, "line break"), (InputFormat.CSV, b'a\n"' + b"x\n" * 500, "a quote that is not closed")],
)
def test_a_record_without_end_is_refused_before_it_fills_the_memory(
    form: InputFormat, data: bytes, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_input, "RECORD_BYTES_MAX", 500)
    with pytest.raises(InvalidArgument, match=r"line \d of the input begins a record of more than") as refused:
        list(RecordInput(InputOptions(form)).feed(data))
    assert hint in refused.value.hint


def test_a_byte_order_mark_is_no_part_of_the_json() -> None:
    assert pairs(records(b'\xef\xbb\xbf{"a":1}\n', InputOptions(InputFormat.NDJSON))) == [(None, b'{"a":1}')]


def test_an_error_shows_the_line_that_it_is_about_and_nothing_that_moves_a_cursor() -> None:
    with pytest.raises(InvalidArgument) as refused:
        records(b"1\n{\x1b[2J" + b"x" * 90 + b"\n", InputOptions(InputFormat.NDJSON))
    assert refused.value.message.endswith(f": {{·[2J{'x' * 55}…")
    assert refused.value.details["line"] == 2


def test_an_envelope_has_all_that_belongs_to_a_record() -> None:
    line = (
        b'{"key":"k","value":{"type":"binary","data":"AP8="},"headers":[{"key":"h","value":"1"}],'
        b'"partition":3,"timestamp":5,"offset":9}\n'
    )
    (found,) = records(line, InputOptions(InputFormat.ENVELOPE, headers=(("all", b"x"),)))
    assert found == Message(b"\x00\xff", b"k", [("h", b"1"), ("all", b"x")], None, 5)
    (kept,) = records(line, InputOptions(InputFormat.ENVELOPE, keep_partition=True))
    assert kept.partition == 3
    (mapped,) = records(b'{"value":null,"headers":{"h":"1"}}', InputOptions(InputFormat.ENVELOPE, partition=2))
    assert (mapped.value, mapped.headers, mapped.partition) == (None, [("h", b"1")], 2)
    with pytest.raises(InvalidArgument, match=r"line 1 of the input is no envelope \(.*moon"):
        records(b'{"value":1,"moon":2}', InputOptions(InputFormat.ENVELOPE))


def test_raw_is_one_record_whatever_is_in_it() -> None:
    assert pairs(records([b"a\n", b"\x00b"], InputOptions(InputFormat.RAW))) == [(None, b"a\n\x00b")]


def test_options_that_do_not_fit_the_form_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--key names a field"):
        InputOptions(InputFormat.LINES, key_field="id")
    with pytest.raises(InvalidArgument, match="--key-separator is for lines"):
        InputOptions(InputFormat.CSV, key_separator=b",")


@given(st.sampled_from([InputFormat.LINES, InputFormat.RAW]), st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_input_in_pieces_gives_the_same_records(form: InputFormat, data: bytes, cuts: list[int]) -> None:
    _same_in_pieces(InputOptions(form), data, cuts)


csv_cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)


@given(st.lists(st.tuples(csv_cells, csv_cells), max_size=6), st.lists(st.integers(0, 200)))
def test_csv_in_pieces_gives_the_same_records(rows: list[tuple[str, str]], cuts: list[int]) -> None:
    quoted = [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in [("a", "b"), *rows]]
    _same_in_pieces(InputOptions(InputFormat.CSV), "\n".join(quoted).encode(), cuts)


def _same_in_pieces(options: InputOptions, data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    assert records(pieces, options) == records(data, options)


@given(
    st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
    st.none() | st.binary(max_size=20) | st.integers(-(2**60), 2**60).map(to_bytes),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)
def test_a_line_that_consume_writes_is_taken_back_by_produce(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    written = as_json_line(Record("t", 1, 2, 3, key, value, tuple(headers)))
    (found,) = records(written, InputOptions(InputFormat.ENVELOPE, keep_partition=True))
    assert (found.partition, found.timestamp_ms) == (1, 3)
    again = as_json_line(Record("t", 1, 2, 3, to_bytes(found.key), to_bytes(found.value), to_headers(found.headers)))
    assert again == written
