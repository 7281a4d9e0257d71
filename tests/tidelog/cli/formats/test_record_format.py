"""Records become text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from tidelog.cli.formats.record_format import (
    apply_format,
    as_document,
    as_json_line,
    as_table_line,
    parse_format,
    shown,
    table_header,
)
from tidelog.records import Record

RECORD = Record("orders", 3, 17, 1_767_225_600_123, b"k\xff", b'{"id": 7}', (("a", b"1"), ("a", None)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %o %T\\n", b"orders 3 17 1767225600123\n"),
        ("%k=%s", b'k\xff={"id": 7}'),
        ("%K %S", b"2 9"),
        ("%h", b"a=1,a="),
        ("100%% \\t\\r\\0\\x41\\\\", b"100% \t\r\x00A\\"),
        ("Grüße", "Grüße".encode()),
        ("", b""),
    ],
)
def test_formats_in_the_manner_of_kcat(text: str, expected: bytes) -> None:
    assert apply_format(parse_format(text), RECORD) == expected


def test_null_is_nothing_and_has_length_minus_one() -> None:
    assert apply_format(parse_format("[%k|%s|%K|%S|%h]"), Record("t", 0, 0, 0, None, None)) == b"[|||-1|-1|]".replace(
        b"|||", b"||", 1
    )


@pytest.mark.parametrize("text", ["%x", "%", "a\\q", "\\"])
def test_a_directive_that_there_is_not_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_format(text)
    assert "%t %p %o" in raised.value.hint


@given(st.text(max_size=40).filter(lambda text: "%" not in text and "\\" not in text))
def test_plain_text_stays(text: str) -> None:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    assert apply_format(parse_format(text), RECORD) == encoded


def test_json_has_the_form_of_the_http_listener() -> None:
    assert as_json_line(Record("t", 1, 2, 3, b"k", b'{"a": 1}', (("h", b"\xff"),))) == (
        b'{"topic":"t","partition":1,"offset":2,"timestamp":3,"key":"k","value":{"a":1},'
        b'"headers":[{"key":"h","value":{"type":"binary","data":"/w=="}}]}\n'
    )
    assert as_document(Record("t", 0, 0, 0, None, None))["headers"] == []


def test_a_table_line_is_one_line_without_control_characters() -> None:
    line = as_table_line(Record("t", 1, 2, 1_767_225_600_123, b"\x1b[31m", b"a\nb\tc" + b"x" * 500))
    assert line.isprintable()
    assert "2026-01-01T00:00:00.123Z" in line
    assert line.endswith("x…")
    assert table_header().index("KEY") == as_table_line(RECORD).index("0x6bff")


@pytest.mark.parametrize(
    ("timestamp_ms", "shown_as"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "@253402300800000"),
        (2**63 - 1, "@9223372036854775807"),
        (-(2**63), "@-9223372036854775808"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-1, "-"),
    ],
)
def test_every_timestamp_that_a_producer_may_send_has_a_line(timestamp_ms: int, shown_as: str) -> None:
    line = as_table_line(Record("t", 0, 0, timestamp_ms, b"k", b"v"))
    assert line[table_header().index("TIMESTAMP") : table_header().index("KEY")].strip() == shown_as
    assert line.endswith(" v")


def test_bytes_that_are_no_text_are_shown_in_hexadecimal_and_null_as_a_dash() -> None:
    assert shown(b"\x00\xff") == "0x00ff"
    assert shown(None) == "-"
    assert shown(b"") == ""
    assert shown("é".encode() * 1000) == "é" * 199 + "…"
