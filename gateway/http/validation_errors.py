"""What a decoder or validator found wrong with a body, in words for people: where, what it must be, what it is. Pure.

    msgspec    "Expected `int | null`, got `str` - at `$.records[0].partition`"
    pydantic   {"type": "int_type", "loc": ("body", "partition_count"), "input": "3", …}
               ─▶ records[0].partition must be a whole number or null; it is a string

Who knows the route adds the hint, with an example. Invariant: what is quoted of a request is short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

SHOWN_CHARACTERS_MAX: Final = 60

_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number with a point or an exponent",
    "bool": "true or false",
    "null": "null",
}
_PYDANTIC_KINDS: Final = {
    "string_type": "str",
    "int_type": "int",
    "int_from_float": "int",
    "int_parsing": "int",
    "bool_type": "bool",
    "bool_parsing": "bool",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
_EXPECTED: Final = re.compile(r"Expected `(.+)`, got `(.+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_BOUND: Final = re.compile(r"Expected `(\w+)` (of length )?(>=|<=) (-?[\d.]+)")
_BOUND_WORDS: Final = {">=": "at least", "<=": "at most"}
_ITEMS: Final = {"str": "characters", "array": "items", "object": "members"}
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class FieldFault(NamedTuple):
    """One fault: `place` must be read as the subject of `said`."""

    place: str
    """The path of the field, such as records[0].partition; empty for the whole."""
    said: str
    unknown_field: str | None = None
    """The name that stands there, where it is none of the known ones."""

    def sentence(self, whole: str) -> str:
        """`whole` is what the path begins in: the body, line 3."""
        return f"{self.place or whole} {self.said}"


def of_msgspec(error: msgspec.ValidationError, prefix: str = "") -> FieldFault:
    """`prefix` is the path of what was decoded, where that was cut out of something larger."""
    message, _, path = str(error).rpartition(" - at `")
    if not message:
        message, path = str(error), "$`"
    place = prefix + path[:-1].removeprefix("$")
    place = place.removeprefix(".")
    if found := _EXPECTED.fullmatch(message):
        return FieldFault(place, f"must be {_kinds(found[1].split(' | '))}; it is {_KINDS.get(found[2], found[2])}")
    if found := _UNKNOWN.fullmatch(message):
        return FieldFault(place, f"has a field {_shown(found[1])} that is not known", unknown_field=found[1])
    if found := _MISSING.fullmatch(message):
        return FieldFault(place, f"lacks the field {found[1]!r}")
    if found := _BOUND.fullmatch(message):
        bound = f"{_BOUND_WORDS[found[3]]} {found[4]}"
        return FieldFault(place, f"must have {bound} {_ITEMS.get(found[1], 'items')}" if found[2] else f"must be {bound}")
    return FieldFault(place, f"can't be taken: {message[:1].lower()}{message[1:]}")


def of_malformed_json(error: msgspec.DecodeError, text: bytes) -> str:
    """What makes the text no JSON, with the byte where it stops being it."""
    if not text or text.isspace():
        return f"is empty (byte {len(text)})"
    if _SURROGATE.search(text) and "(byte" not in str(error):
        return f"is not JSON: a string holds half of a surrogate pair, which can't be stored as UTF-8 (before byte {len(text)})"
    if "(byte" not in str(error):
        return f"is not JSON: it ends too early (byte {len(text)})"
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def of_pydantic(faults: Sequence[Mapping[str, Any]]) -> FieldFault:
    """The first fault of a request that FastAPI refused. Its place is without `body`; parameters are called what they are."""
    first = faults[0]
    source, *path = first["loc"]
    # Of a union there is a fault for each member, and the path of each ends with its name.
    members = [fault for fault in faults if len(path) > 1 and fault["loc"][:-1] == first["loc"][:-1] and fault["loc"][-1] in _KINDS]
    kinds = [_PYDANTIC_KINDS[fault["type"]] for fault in members if fault["type"] in _PYDANTIC_KINDS]
    if len(kinds) > 1:
        return FieldFault(_path(path[:-1]), f"must be {_kinds(kinds)}; it is {_kind_of(first['input'])}")
    kind = first["type"]
    if kind == "extra_forbidden":
        return FieldFault(_path(path[:-1]), f"has a field {_shown(str(path[-1]))} that is not known", unknown_field=str(path[-1]))
    place = _path(path) if source == "body" else f"the {source} parameter {path[-1]}"
    if kind == "missing":
        return FieldFault(_path(path[:-1]), f"lacks the field {path[-1]!r}") if path else FieldFault("", "is missing")
    given = _kind_of(first["input"]) if source == "body" else _shown(str(first["input"]))
    if kind in _PYDANTIC_KINDS:
        return FieldFault(place, f"must be {_KINDS[_PYDANTIC_KINDS[kind]]}; it is {given}")
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return FieldFault(place, f"must be {word} {first['ctx'][bound]}; it is {_shown(str(first['input']))}")
    return FieldFault(place, f"can't be taken: {first['msg']}")


def _kinds(names: Sequence[str]) -> str:
    words = [_KINDS.get(name, name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _kind_of(value: object) -> str:
    if value is None or isinstance(value, list):
        return _KINDS["null" if value is None else "array"]
    return next(_KINDS[kind.__name__] for kind in (bool, int, float, str, object) if isinstance(value, kind))


def _path(parts: Sequence[str | int]) -> str:
    """As a programmer writes it; a name that is no plain word stands in brackets."""
    return "".join(_step(part) for part in parts).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() and len(part) <= SHOWN_CHARACTERS_MAX else f"[{_shown(part)}]"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…")
