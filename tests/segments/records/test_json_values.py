"""Keys and values between JSON and bytes: what is stored for each JSON, and what JSON is given for bytes."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from segments.records.batch_kernel import compact_json
from segments.records.json_values import JsonFormat, from_bytes, to_bytes
from tests.kit.segments.kernel_forms import kernel_form

__all__ = ["kernel_form"]

_cut = msgspec.json.Decoder(list[msgspec.Raw])


def stored(text: str | bytes) -> bytes | None:
    """What is stored for this JSON text, cut out of a request as the HTTP listener does it."""
    data = text.encode() if isinstance(text, str) else text
    (value,) = _cut.decode(b"[ " + data + b" ]")
    return to_bytes(value)


def given_as(value: bytes | None, form: JsonFormat = JsonFormat.AUTO) -> Any:
    """The JSON that is given for the bytes, decoded."""
    return json.loads(bytes(from_bytes(value, form)))


# What is stored


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"plain"', b"plain"),
        ('""', b""),
        ('"grün \\u00fc \\ud83d\\ude00 \\n\\"\\\\\\/"', 'grün ü 😀 \n"\\/'.encode()),
        ('"7"', b"7"),
        ('"null"', b"null"),
        ("null", None),
        ("7", b"7"),
        ("1.10", b"1.10"),
        ("-0.0", b"-0.0"),
        ("1e999", b"1e999"),
        ("123456789012345678901234567890", b"123456789012345678901234567890"),
        ("true", b"true"),
        ("[ ]", b"[]"),
        ('{ "a" : [ 1.10 ,\n\t"b c \\" d" ] ,\r\n "ü":null }', '{"a":[1.10,"b c \\" d"],"ü":null}'.encode()),
        ('{"a":1,"a":2}', b'{"a":1,"a":2}'),
        ('{"type":"binary","data":"AP8="}', b"\x00\xff"),
        ('{ "data" : "AP8=" , "type" : "binary" }', b"\x00\xff"),
        ('{"type":"binary","data":""}', b""),
        ('{"type":"binary","data":"AP8=","more":1}', b'{"type":"binary","data":"AP8=","more":1}'),
        ('{"type":"binary"}', b'{"type":"binary"}'),
        ('{"type":"binary","data":5}', b'{"type":"binary","data":5}'),
        ('{"type":"text","data":"binary"}', b'{"type":"text","data":"binary"}'),
        ('[{"type":"binary","data":"AP8="}]', b'[{"type":"binary","data":"AP8="}]'),
    ],
)
def test_a_json_value_is_stored_as_its_bytes(text: str, value: bytes | None) -> None:
    assert stored(text) == value


def test_a_field_that_was_left_out_is_null() -> None:
    assert to_bytes(msgspec.Raw()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'"\xff"', "not UTF-8 at its byte 1"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'{"a":"\xc0\x80"}', "not UTF-8"),
        (b'{"\xff":1}', "not UTF-8"),
        (b'{"type":"binary","data":"A"}', "no base64"),
        (b'{"type":"binary","data":"AP8"}', "no base64"),
        (b'{"type":"binary","data":"A P 8 ="}', "no base64"),
        (b'{"type":"binary","data":"\xc3\xbc"}', "no base64"),
        (b'{"type":"binary","data":"_-8="}', "no base64"),
    ],
)
def test_a_json_value_that_can_not_be_stored_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        stored(text)
    assert "base64" in caught.value.hint


# What is read


@pytest.mark.parametrize(
    ("value", "auto"),
    [
        (None, None),
        (b"plain", "plain"),
        (b"", ""),
        (b"7", 7),
        (b"1.10", 1.1),
        (b'{"a":[1]}', {"a": [1]}),
        (b'{ "a" :\n [1] } ', {"a": [1]}),
        (b'"quoted"', "quoted"),
        (b"true", True),
        (b"truely", "truely"),
        (b"null", "null"),
        (b"NaN", "NaN"),
        (b"1 2", "1 2"),
        (b"{unquoted: 1}", "{unquoted: 1}"),
        (b" \n ", " \n "),
        ("grün\n".encode(), "grün\n"),
        (b"\x00\x00\x00\x07", "\x00\x00\x00\x07"),
        (b"\xff\x00", {"type": "binary", "data": "/wA="}),
        (b'"\xff"', {"type": "binary", "data": b64encode(b'"\xff"').decode()}),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_auto_gives_json_else_text_else_binary(value: bytes | None, auto: object) -> None:
    assert given_as(value) == auto


def test_numbers_are_given_as_they_are_written() -> None:
    for text in (b"1.10", b"123456789012345678901234567890", b"-0.0", b"1e999"):
        assert bytes(from_bytes(text)) == text


def test_a_null_is_null_in_every_format() -> None:
    assert [bytes(from_bytes(None, form)) for form in JsonFormat] == [b"null"] * 4


def test_a_format_gives_what_it_says_or_refuses() -> None:
    assert given_as(b"null", JsonFormat.JSON) is None
    assert given_as(b"[7]", JsonFormat.JSON) == [7]
    assert given_as(b"[7]", JsonFormat.TEXT) == "[7]"
    assert given_as(b"[7]", JsonFormat.BASE64) == "Wzdd"
    assert given_as(b"\xff", JsonFormat.BASE64) == "/w=="
    for value, form, message in (
        (b"text", JsonFormat.JSON, "4 bytes is not JSON"),
        (b"", JsonFormat.JSON, "0 bytes is not JSON"),
        (b'"\xff"', JsonFormat.JSON, "not JSON"),
        (b"[" * 100_000, JsonFormat.JSON, "not JSON"),
        (b"\xff", JsonFormat.TEXT, "1 bytes is not UTF-8"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            from_bytes(value, form)


# Both ways

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_values = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode), _json.map(json.dumps).map(str.encode))


@given(_json)
def test_any_json_but_a_string_is_stored_as_its_own_text_and_read_as_itself(value: object) -> None:
    assume(not isinstance(value, str))
    assert given_as(stored(json.dumps(value, indent=1))) == value


@given(st.text())
@example("\x00\u2028\ud7ff")
def test_any_string_is_stored_as_its_utf8_and_read_as_itself_in_text(value: str) -> None:
    assert stored(json.dumps(value)) == stored(json.dumps(value, ensure_ascii=False)) == value.encode()
    assert given_as(value.encode(), JsonFormat.TEXT) == value


@given(st.binary(max_size=40))
def test_any_bytes_come_back_from_the_binary_form(value: bytes) -> None:
    assert stored(json.dumps({"type": "binary", "data": b64encode(value).decode()})) == value


@given(_values)
@example(b"null")
@example(b" 7 ")
@example(b" 7 8 ")
@example(b"\xef\xbb\xbf1")
def test_a_value_that_auto_gives_can_be_produced_again_and_is_stored_as_the_same_bytes(value: bytes) -> None:
    try:
        is_json = not isinstance(msgspec.json.decode(value), str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_json = False
    else:
        assume(is_json)  # a quoted string: only foreign producers store one
    assert stored(bytes(from_bytes(value))) == (compact_json(value) if is_json else value)


@given(_values, st.sampled_from(JsonFormat))
def test_a_value_that_is_given_is_one_line_of_json_in_utf8(value: bytes, form: JsonFormat) -> None:
    try:
        shown = bytes(from_bytes(value, form))
    except InvalidArgument:
        assert form in (JsonFormat.JSON, JsonFormat.TEXT)
        return
    assert not {"\n", "\r"} & set(shown.decode())
    json.loads(shown)
