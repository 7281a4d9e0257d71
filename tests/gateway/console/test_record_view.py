from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.record_view import PREVIEW_CHARACTERS, RawRecord, RecordFilter, raw_record, shown_payload, shown_record


def record(
    value: bytes | None = None, *, key: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
) -> RawRecord:
    return RawRecord(0, 7, 1_750_000_000_000, key, value, headers or [])


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"hello", "text", "hello"),
        (b'{"id":1}', "json", '{"id":1}'),
        (b"7", "json", "7"),
        (b"{not json", "text", "{not json"),
        (b"\xff\x00", "binary", "ff 00"),
        (b"a\x00b", "binary", "61 00 62"),
        ("a\u202eb".encode(), "text", "a\\u202eb"),
        (b"a\x1b[31mb", "text", "a\\u001b[31mb"),
    ],
)
def test_a_payload_is_shown_by_its_kind(data: bytes | None, kind: str, text: str) -> None:
    shown = shown_payload(data, limit=100)
    assert (shown.kind, shown.text, shown.is_cut) == (kind, text, False)


@given(st.binary(max_size=2_000))
def test_a_shown_payload_is_bounded_and_says_when_more_follows(data: bytes) -> None:
    shown = shown_payload(data, limit=PREVIEW_CHARACTERS)
    assert len(shown.text) <= 3 * PREVIEW_CHARACTERS
    assert shown.size_bytes == len(data)
    if not shown.is_cut and shown.kind in ("text", "json"):
        assert len(shown.text) >= len(data.decode())


def test_a_character_that_the_limit_splits_does_not_make_text_binary() -> None:
    assert shown_payload("é".encode() * 5_000, limit=99).kind == "text"


def test_the_page_of_one_record_lays_json_out_over_lines() -> None:
    assert shown_record(record(b'{"id":1}'), whole=True).value.text == '{\n  "id": 1\n}'


def test_a_record_of_the_api_keeps_its_bytes() -> None:
    answer = {
        "partition": 1,
        "offset": 2,
        "timestamp": 3,
        "key": "AP8=",
        "value": None,
        "headers": [
            {"key": "text", "value": "x"},
            {"key": "binary", "value": {"type": "binary", "data": "/w=="}},
            {"key": "number", "value": 7},
            {"key": "none", "value": None},
        ],
    }
    assert raw_record(answer) == RawRecord(
        1, 2, 3, b"\x00\xff", None, [("text", b"x"), ("binary", b"\xff"), ("number", b"7"), ("none", None)]
    )


@pytest.mark.parametrize(
    ("wanted", "is_match"),
    [
        (RecordFilter(), True),
        (RecordFilter(key="c-7"), True),
        (RecordFilter(key="c-8"), False),
        (RecordFilter(value="kettle"), True),
        (RecordFilter(key="c-7", value="teapot"), False),
        (RecordFilter(header="trace"), True),
        (RecordFilter(header="trace=ab"), True),
        (RecordFilter(header="trace=zz"), False),
        (RecordFilter(header="span"), False),
        (RecordFilter(json="customer.id=7"), True),
        (RecordFilter(json="$.customer.id=7"), True),
        (RecordFilter(json="customer.id=8"), False),
        (RecordFilter(json="items[1].name=kettle"), True),
        (RecordFilter(json="items[5].name=kettle"), False),
        (RecordFilter(json="customer"), True),
        (RecordFilter(json="customer.name"), False),
        (RecordFilter(json="paid=true"), True),
    ],
)
def test_a_filter_matches_by_key_value_header_and_json_field(wanted: RecordFilter, is_match: bool) -> None:
    value = b'{"customer":{"id":7},"items":[{"name":"cup"},{"name":"kettle"}],"paid":true}'
    assert wanted.matches(record(value, key=b"c-7", headers=[("trace", b"abc")])) is is_match


@given(st.binary(max_size=60), st.text(max_size=20))
def test_no_value_and_no_path_breaks_the_filter(value: bytes, path: str) -> None:
    RecordFilter(json=path).matches(record(value))
