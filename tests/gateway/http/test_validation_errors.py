"""Faults in words for people: where, what it must be, what it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.http.validation_errors import FieldFault, of_malformed_json, of_msgspec, of_pydantic


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int | None = None
    tags: list[str] = []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[]", FieldFault("", "must be an object; it is a list")),
        (b"{}", FieldFault("", "lacks the field 'name'")),
        (b'{"name":1}', FieldFault("name", "must be a string; it is a whole number")),
        (b'{"name":"x","count":true}', FieldFault("count", "must be a whole number or null; it is true or false")),
        (b'{"name":"x","tags":["a",null]}', FieldFault("tags[1]", "must be a string; it is null")),
        (b'{"nmae":1}', FieldFault("", "has a field 'nmae' that is not known", "nmae")),
    ],
)
def test_what_msgspec_found(text: bytes, fault: FieldFault) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(text, type=Item)
    assert of_msgspec(error.value) == fault


def test_the_place_of_what_was_cut_out_is_put_before_it() -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(b'[{"name":1}]', type=list[Item])
    assert of_msgspec(error.value, "headers").place == "headers[0].name"


def test_a_fault_without_a_place_is_of_the_whole() -> None:
    assert FieldFault("", "is missing").sentence("the body") == "the body is missing"
    assert FieldFault("a.b", "is odd").sentence("the body") == "a.b is odd"


@given(st.text(max_size=300))
def test_what_is_quoted_is_short(name: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(msgspec.json.encode({name: 1}), type=Item)
    assert len(of_msgspec(error.value).sentence("the body")) < 700, "60 characters of the name, each escaped at the most"
    with pytest.raises(ValidationError) as invalid:
        Outer.model_validate({"name": "x", "inner": [{"limits": {name: None}}]})
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in invalid.value.errors()]
    assert len(of_pydantic(faults).sentence("the body")) < 700


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
def test_what_makes_a_text_no_json(text: bytes, said: str) -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        msgspec.json.decode(text, type=dict[str, str | int])
    assert of_malformed_json(error.value, text) == said


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    limits: dict[str, str | int] = {}


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    count: int = Field(default=0, ge=0)
    on: bool = False
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "it lacks the field 'name'"),
        ([], "it must be an object; it is a list"),
        ({"name": 1.5}, "name must be a string; it is a number with a point or an exponent"),
        ({"name": "x", "count": "1"}, "count must be a whole number; it is a string"),
        ({"name": "x", "count": -1}, "count must be at least 0; it is '-1'"),
        ({"name": "x", "on": 1}, "on must be true or false; it is a whole number"),
        ({"name": "x", "inner": {}}, "inner can't be taken: Input should be a valid list"),
        ({"name": "x", "inner": [{}, {"x": 1}]}, "inner[1] has a field 'x' that is not known"),
        (
            {"name": "x", "inner": [{"limits": {"a.b": None}}]},
            "inner[0].limits['a.b'] must be a string or a whole number; it is null",
        ),
        ({"name": "x", "inner": [{"limits": {"a": {}}}]}, "inner[0].limits.a must be a string or a whole number; it is an object"),
    ],
)
def test_what_pydantic_found(body: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(body)
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.value.errors()]
    assert of_pydantic(faults).sentence("it") == sentence


def test_a_parameter_is_called_what_it_is() -> None:
    fault = {"type": "int_parsing", "loc": ("query", "page_size"), "input": "x" * 300, "msg": "…"}
    assert of_pydantic([fault]).sentence("the body") == (
        f"the query parameter page_size must be a whole number; it is '{'x' * 59}…'"
    )
    assert of_pydantic([{"type": "missing", "loc": ("body",), "input": None, "msg": "…"}]).sentence("the body") == (
        "the body is missing"
    )
