from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.json_bodies import RECORDS_MAX, ParsedRecords, parse_json, parse_lines
from metadata.errors import InvalidArgument, TooLarge

NOW = 1_750_000_000_000


def parsed(records: list[dict[str, Any]]) -> ParsedRecords:
    return parse_json(json.dumps({"records": records}).encode(), now_ms=NOW, headers_max=10)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
record_bodies = st.fixed_dictionaries(
    {},
    optional={
        "key": json_values,
        "value": json_values,
        "headers": st.dictionaries(st.text(max_size=5), json_values, max_size=3),
        "partition": st.none() | st.integers(0, 9),
        "timestamp": st.integers(0, 2**40),
    },
)


def stored(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, separators=(",", ":")).encode()


@given(st.lists(record_bodies, min_size=1, max_size=6))
def test_every_way_through_stores_the_same_and_what_was_sent(bodies: list[dict[str, Any]]) -> None:
    """Text records, plain records and all others are read by different decoders."""
    expected = [
        (
            stored(body.get("key")),
            stored(body.get("value")),
            tuple((name, stored(value)) for name, value in body.get("headers", {}).items()),
            body.get("timestamp", NOW),
        )
        for body in bodies
    ]
    asked = [body.get("partition") for body in bodies]
    for found in (
        parsed(bodies),
        parse_lines(b"\n".join(json.dumps(body).encode() for body in bodies), now_ms=NOW, headers_max=10),
        parsed([*bodies, {"partition": 1}]),  # forces the general decoder
    ):
        assert list(found.records[: len(bodies)]) == expected
        assert (found.own_partitions or [None] * len(bodies))[: len(bodies)] == asked


def test_no_list_of_partitions_is_made_where_nobody_asks() -> None:
    assert parsed([{"value": 1}, {"headers": {"a": 1}}]).own_partitions is None
    assert parsed([{"value": 1, "partition": 2}, {}]).own_partitions == [2, None]


def test_bytes_come_as_base64() -> None:
    data = base64.b64encode(b"\x00\xff").decode()
    assert parsed([{"key": {"type": "binary", "data": data}, "value": {"type": "binary", "data": data}}]).records[0][:2] == (
        b"\x00\xff",
        b"\x00\xff",
    )
    with pytest.raises(InvalidArgument, match=r"records\[1\].*base64"):
        parsed([{}, {"value": {"type": "binary", "data": "?"}}])


def test_headers_as_a_list_keep_their_order_and_their_duplicates() -> None:
    headers = [{"key": "b", "value": "1"}, {"key": "a"}, {"key": "b", "value": {"x": 2}}]
    assert parsed([{"headers": headers}]).records[0][2] == (("b", b"1"), ("a", None), ("b", b'{"x":2}'))


def test_numbers_keep_their_text() -> None:
    body = b'{"records":[{"value": 1.10},{"value": 123456789012345678901234567890}]}'
    found = parse_json(body, now_ms=NOW, headers_max=1)
    assert [record[1] for record in found.records] == [b"1.10", b"123456789012345678901234567890"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", r"byte 0"),
        (b"{", r"byte 1"),
        (b'{"records":[{"value":nul}]}', r"invalid character \(byte 25\)"),
        (b'{"records":[{"value":1,}]}', r"trailing comma.*byte"),
        (b'{"records":[]} x', r"trailing characters \(byte 16\)"),
        (b'{"records":[{"value":"\xff"}]}', r"not UTF-8 \(byte 22\)"),
        (b'{"records":[{"value":"\\ud800"}]}', r"truncated|can't be stored as UTF-8"),
        (b'{"records":[{"valeu":1}]}', r"unknown field `valeu` - at `\$\.records\[0\]`"),
        (b'{"records":[{}],"topic":"x"}', r"unknown field `topic`"),
        (b'{"records":{}}', r"Expected `array`, got `object` - at `\$\.records`"),
        (b'{"records":[1]}', r"Expected `object`, got `int` - at `\$\.records\[0\]`"),
        (b'{"records":[{"partition":"1"}]}', r"\$\.records\[0\]\.partition"),
        (b'{"records":[{"partition":1.5}]}', r"\$\.records\[0\]\.partition"),
        (b'{"records":[{"headers":[{"value":1}]}]}', r"missing required field `key`"),
        (b'{"records":[{"headers":{"a":nul}}]}', r"byte"),
        (b"[]", r"Expected `object`, got `array`"),
        (b"{}", r"missing required field `records`"),
        (b'{"records":[]}', "no records"),
        (b'{"records":[{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(body: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_json(body, now_ms=NOW, headers_max=10)


def test_a_wrong_line_is_named_by_its_number() -> None:
    for body, said in (
        (b'{"value":1}\n\n{"valeu":2}\n', "line 3.*valeu"),
        (b'{"value":1}\n{"value":\n', r"line 2.*byte 9"),
        (b'{"value":1} {"value":2}\n{}', r"line 1.*trailing"),
        (b"\n\n", "no records"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            parse_lines(body, now_ms=NOW, headers_max=10)


def test_empty_lines_and_carriage_returns_are_skipped() -> None:
    found = parse_lines(b'\r\n{"value":"a"}\r\n\n  \n{"value":"b"}', now_ms=NOW, headers_max=10)
    assert [record[1] for record in found.records] == [b"a", b"b"]


def test_too_many_headers_or_records_are_refused() -> None:
    with pytest.raises(TooLarge, match=r"records\[1\]: it has 11 headers; 10 are taken"):
        parsed([{}, {"headers": {str(number): 1 for number in range(11)}}])
    with pytest.raises(TooLarge, match=f"{RECORDS_MAX} are taken"):
        parse_json(b'{"records":[' + b"{}," * RECORDS_MAX + b"{}]}", now_ms=NOW, headers_max=10)
    with pytest.raises(TooLarge, match=f"{RECORDS_MAX} are taken"):
        parse_lines(b"{}\n" * (RECORDS_MAX + 1), now_ms=NOW, headers_max=10)
    with pytest.raises(TooLarge, match=f"{RECORDS_MAX} are taken"):
        parse_lines(b"\n" * (3 * RECORDS_MAX), now_ms=NOW, headers_max=10)


@given(st.binary(max_size=40))
def test_any_bytes_are_records_or_a_clear_refusal(body: bytes) -> None:
    for parse in (parse_json, parse_lines):
        with suppress(InvalidArgument):
            assert parse(body, now_ms=NOW, headers_max=10).records
