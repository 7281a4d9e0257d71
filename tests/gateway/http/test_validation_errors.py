"""Faults in words for people: where, what it must be, what it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.validation_errors import FieldError, describe_malformed_json, field_error, step


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int | None = None
    tags: list[str] = []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[]", FieldError("", "must be an object; it is a list")),
        (b"{}", FieldError("", "lacks the field 'name'")),
        (b'{"name":1}', FieldError("name", "must be a string; it is a whole number")),
        (b'{"name":"x","count":true}', FieldError("count", "must be a whole number or null; it is true or false")),
        (b'{"name":"x","tags":["a",null]}', FieldError("tags[1]", "must be a string; it is null")),
        (b'{"nmae":1}', FieldError("", "has a field 'nmae' that is not known", "nmae")),
    ],
)
def test_an_error_of_msgspec_becomes_a_field_and_its_fault(text: bytes, fault: FieldError) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(text, type=Item)
    assert field_error(error.value) == fault


def test_the_place_of_what_was_cut_out_is_put_before_it() -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(b'[{"name":1}]', type=list[Item])
    assert field_error(error.value, "headers").path == "headers[0].name"


def test_a_validation_error_without_a_path_is_of_the_whole_body() -> None:
    assert FieldError("", "is missing").sentence("the body") == "the body is missing"
    assert FieldError("a.b", "is odd").sentence("the body") == "a.b is odd"


@given(st.text(max_size=300))
def test_a_quoted_name_is_short(name: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(msgspec.json.encode({name: 1}), type=Item)
    assert len(field_error(error.value).sentence("the body")) < 700, "60 characters of the name, each escaped at the most"


@pytest.mark.parametrize(
    ("name", "path"),
    [("limits", ".limits"), ("a.b", "['a.b']"), ("", "['']"), ("x" * 99, f"['{'x' * 59}…']")],
)
def test_a_step_of_a_path_is_written_as_a_programmer_does(name: str, path: str) -> None:
    assert step(name) == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty (byte 0)"),
        (b" \n", "is empty (byte 2)"),
        (b'{"a":', "is not JSON: it ends too early (byte 5)"),
        (b'{"a":1,}', "is not JSON: trailing comma in object (byte 7)"),
        (b"{'a':1}", "is not JSON: object keys must be strings (byte 1)"),
        (
            b'{"a":"\\ud800"}',
            "is not JSON: a string holds half of a surrogate pair, which can't be stored as UTF-8 (before byte 14)",
        ),
    ],
)
def test_a_malformed_text_is_described_with_the_byte_of_its_fault(text: bytes, said: str) -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        msgspec.json.decode(text, type=dict[str, str | int])
    assert describe_malformed_json(error.value, text) == said
