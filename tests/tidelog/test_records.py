"""How Python values become bytes, and records become values again."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import tidelog
from metadata.errors import InvalidArgument, InvalidRecord
from tidelog.records import to_bytes, to_headers


@dataclass
class Point:
    x: int
    y: float


class Named(msgspec.Struct):
    name: str


class Model(BaseModel):
    at: datetime


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        pytest.param(memoryview(b"ab"), b"ab", id="memoryview"),
        ("é", b"\xc3\xa9"),
        ("", b""),
        (7, b"7"),
        (True, b"true"),
        (1.5, b"1.5"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (Point(1, 2.0), b'{"x":1,"y":2.0}'),
        (Named("n"), b'{"name":"n"}'),
        (Model(at=datetime(2026, 1, 2, tzinfo=UTC)), b'{"at":"2026-01-02T00:00:00Z"}'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    ],
    ids=repr,
)
def test_a_value_has_one_stored_form(value: object, stored: bytes | None) -> None:
    assert to_bytes(value) == stored


def test_a_value_without_a_stored_form_is_refused_by_its_type() -> None:
    itself: list[object] = []
    itself.append(itself)
    for value in (object(), {1j}, "\ud800", {"x": object()}, {(1, 2): 3}, itself):
        with pytest.raises(InvalidArgument) as raised:
            to_bytes(value)
        assert raised.value.hint


@pytest.mark.parametrize(
    "value", [math.nan, {"price": math.inf}, [[1.0, -math.inf]], Point(1, math.nan), {"none": None, "deep": {"er": (math.nan,)}}]
)
def test_a_number_that_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="JSON has no"):
        to_bytes(value)


def test_none_and_the_word_null_are_no_missing_numbers() -> None:
    assert to_bytes({"a": None, "b": "null", "c": 1.5}) == b'{"a":null,"b":"null","c":1.5}'
    assert to_bytes({"a": msgspec.Raw(b"null"), "b": [None]}) == b'{"a":null,"b":[null]}'


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_comes_back_as_it_went(value: object) -> None:
    if value is None or isinstance(value, str):
        return  # null and text have stored forms of their own
    assert tidelog.Record("t", 0, 0, 0, None, to_bytes(value)).json() == value


def test_headers_keep_their_order_and_their_duplicates() -> None:
    assert to_headers([("b", b"1"), ("a", "é"), ("b", None)]) == (("b", b"1"), ("a", b"\xc3\xa9"), ("b", None))
    assert to_headers({"z": b"", "a": b"2"}) == (("z", b""), ("a", b"2"))
    assert to_headers(None) == to_headers({}) == ()


@pytest.mark.parametrize("headers", [["a"], [("a", 1)], [(1, b"")], {"a": 1}, {"\ud800": b""}, 5])
def test_headers_that_are_none_are_refused(headers: object) -> None:
    with pytest.raises(InvalidArgument):
        to_headers(headers)  # type: ignore[arg-type]


def test_a_record_is_frozen_and_decodes_its_timestamp_and_value() -> None:
    record = tidelog.Record("orders", 1, 2, 1_767_225_600_123, None, b"{")
    assert record.timestamp == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    with pytest.raises(AttributeError):
        record.offset = 3  # type: ignore[misc]
    assert not hasattr(record, "__dict__")
    with pytest.raises(InvalidRecord, match="orders/1 at offset 2 is not JSON"):
        record.json()
    with pytest.raises(InvalidRecord, match="not UTF-8"):
        tidelog.Record("orders", 1, 2, 0, None, b"\xff").text()
    assert tidelog.Record("orders", 1, 2, 0, None, None).json() is None
    assert tidelog.Record("orders", 1, 2, 0, None, "é".encode()).text() == "é"


def test_a_timestamp_is_exact_to_the_millisecond_up_to_the_year_9999() -> None:
    for timestamp_ms in (253_402_300_799_999, 1_767_225_600_001, 0, -1):
        moments = (tidelog.Record("t", 0, 0, timestamp_ms, None, None).timestamp, tidelog.Ack("t", 0, 0, timestamp_ms).timestamp)
        for moment in moments:
            assert (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1) == timestamp_ms


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_timestamp_that_is_no_date_is_an_invalid_record(timestamp_ms: int) -> None:
    with pytest.raises(InvalidRecord, match=rf"the timestamp {timestamp_ms} ms of t/3 at offset 7 is no date") as raised:
        _ = tidelog.Record("t", 3, 7, timestamp_ms, None, None).timestamp
    assert "record.timestamp_ms" in raised.value.hint
    with pytest.raises(InvalidRecord, match="is no date"):
        _ = tidelog.Ack("t", 0, 0, timestamp_ms).timestamp
