"""Bodies are decode_body strictly, and a refusal says where, what, and what to send instead."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, field, json

from gateway.http.struct_body import Body, decode_body
from metadata.errors import InvalidArgument

NESTED = b"[" * 100_000 + b"]" * 100_000


class Inner(Body):
    limits: dict[str, str | int] = field(default_factory=dict)


class Outer(Body):
    example = '{"name": "x"}'

    name: str
    count: Annotated[int, Meta(ge=0, le=9)] = 0
    on: bool = False
    inner: list[Inner] = field(default_factory=list)
    limits: dict[str, str | int] = field(default_factory=dict)
    anything: Any = None


def refused(body: bytes) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as error:
        decode_body(body, Outer)
    assert error.value.hint.endswith('Send for example {"name": "x"}.')
    return error.value


def test_a_body_is_decoded_with_its_defaults() -> None:
    assert decode_body(b'{"name": "x", "inner": [{"limits": {"a": 1}}]}', Outer) == Outer("x", inner=[Inner({"a": 1})])


@pytest.mark.parametrize(
    ("body", "sentence", "field"),
    [
        (b"", "the body is empty (byte 0)", None),
        (b'{"name":}', "the body is not JSON: invalid character (byte 8)", None),
        (b"{}", "the body lacks the field 'name'", None),
        (b"[]", "the body must be an object; it is a list", None),
        (b'{"name": 1.5}', "name must be a string; it is a number with a point or an exponent", "name"),
        (b'{"name": "x", "count": "1"}', "count must be a whole number; it is a string", "count"),
        (b'{"name": "x", "count": -1}', "count must be at least 0", "count"),
        (b'{"name": "x", "count": 10}', "count must be at most 9", "count"),
        (b'{"name": "x", "on": 1}', "on must be true or false; it is a whole number", "on"),
        (b'{"name": "x", "inner": {}}', "inner must be a list; it is an object", "inner"),
        (b'{"name": "x", "inner": [{}, {"x": 1}]}', "inner[1] has a field 'x' that is not known", "inner[1]"),
        (
            b'{"name": "x", "limits": {"ok": 1, "a.b": null}}',
            "limits['a.b'] must be a whole number or a string; it is null",
            "limits['a.b']",
        ),
        (b'{"name": "x", "limits": {"a": {}}}', "limits.a must be a whole number or a string; it is an object", "limits.a"),
        (
            b'{"name": "x", "limits": {"a": null, "a": 1}}',
            "limits[...] must be a whole number or a string; it is null",
            "limits[...]",
        ),
        (
            b'{"name": "x", "inner": [{"limits": {"a": null}}]}',
            "inner[0].limits[...] must be a whole number or a string; it is null",
            "inner[0].limits[...]",
        ),
        (b'{"name": "x", "limits": {"a": null, ', "limits[...] must be a whole number or a string; it is null", "limits[...]"),
        (
            b'{"name": "x", "limits": {"a": null}, "anything": ' + NESTED + b"}",
            "limits[...] must be a whole number or a string; it is null",
            "limits[...]",
        ),
        (b'{"name": "x", "anything": ' + NESTED + b"}", "the body is nested too deeply", None),
    ],
    ids=lambda value: value[:60] if isinstance(value, bytes) else "",
)
def test_a_refusal_names_the_field_and_what_it_must_be(body: bytes, sentence: str, field: str | None) -> None:
    error = refused(body)
    assert (error.message, error.details.get("field")) == (sentence, field)


@pytest.mark.parametrize(
    ("body", "meant"), [(b'{"nmae": "x"}', "name"), (b'{"name": "x", "inner": [{"limts": {}}]}', "limits")], ids=["top", "inner"]
)
def test_a_mistyped_field_is_met_with_the_one_that_was_meant(body: bytes, meant: str) -> None:
    assert refused(body).hint.startswith(f"Did you mean '{meant}'?")


@given(st.text(max_size=300))
def test_a_quotation_of_a_body_is_short(name: str) -> None:
    assert len(refused(json.encode({"name": "x", "limits": {name: None}})).message) < 700
