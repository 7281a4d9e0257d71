"""Words the faults that a decoder or validator found in a body: the field, what it must be, what it is. Pure.

    "Expected `int | null`, got `str` - at `$.records[0].partition`"
    ─▶ records[0].partition must be a whole number or null; it is a string

Callers add a hint with an example for their route. Invariant: quotations from a request are short.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

# Longer quotations from a request are cut.
QUOTED_CHARACTERS_MAX: Final = 60
# What msgspec writes in a path for any entry of a map.
ENTRY: Final = "[...]"

_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number with a point or an exponent",
    "bool": "true or false",
    "null": "null",
}
_EXPECTED: Final = re.compile(r"Expected `(.+)`, got `(.+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_BOUND: Final = re.compile(r"Expected `(\w+)` (of length )?(>=|<=) (-?[\d.]+)")
_BOUND_WORDS: Final = {">=": "at least", "<=": "at most"}
_ITEMS: Final = {"str": "characters", "array": "items", "object": "members"}
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class FieldError(NamedTuple):
    """Holds one fault: the path of a field, and a predicate about it such as "must be a string; it is null"."""

    # Such as records[0].partition; empty for the whole body.
    path: str
    problem: str
    # The name of a field that is not known.
    unknown_field: str | None = None

    def sentence(self, whole: str) -> str:
        """Returns the fault as a sentence. `whole` names what was decoded: the body, line 3."""
        return f"{self.path or whole} {self.problem}"


def field_error(error: msgspec.ValidationError, prefix: str = "") -> FieldError:
    """Translates a message of msgspec. `prefix` is the path of the decoded part within the whole body."""
    message, _, path = str(error).rpartition(" - at `")
    if not message:
        message, path = str(error), "$`"
    field = (prefix + path[:-1].removeprefix("$")).removeprefix(".")
    if found := _EXPECTED.fullmatch(message):
        return FieldError(field, f"must be {_kinds(found[1].split(' | '))}; it is {_KINDS.get(found[2], found[2])}")
    if found := _UNKNOWN.fullmatch(message):
        return FieldError(field, f"has a field {quoted(found[1])} that is not known", unknown_field=found[1])
    if found := _MISSING.fullmatch(message):
        return FieldError(field, f"lacks the field {found[1]!r}")
    if found := _BOUND.fullmatch(message):
        bound = f"{_BOUND_WORDS[found[3]]} {found[4]}"
        return FieldError(field, f"must have {bound} {_ITEMS.get(found[1], 'items')}" if found[2] else f"must be {bound}")
    return FieldError(field, f"is not valid: {message[:1].lower()}{message[1:]}")


def describe_malformed_json(error: msgspec.DecodeError, text: bytes) -> str:
    """Returns why the text is not JSON, with the position of the first faulty byte."""
    if not text or text.isspace():
        return f"is empty (byte {len(text)})"
    if _SURROGATE.search(text) and "(byte" not in str(error):
        return f"is not JSON: a string holds half of a surrogate pair, which can't be stored as UTF-8 (before byte {len(text)})"
    if "(byte" not in str(error):
        return f"is not JSON: it ends too early (byte {len(text)})"
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _kinds(names: Sequence[str]) -> str:
    words = [_KINDS.get(name, name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def step(name: str) -> str:
    """Returns the step to a member in a path: `.name`, or `['name']` if the name is no identifier."""
    return f".{name}" if name.isidentifier() and len(name) <= QUOTED_CHARACTERS_MAX else f"[{quoted(name)}]"


def quoted(text: str) -> str:
    """Returns the text in quotes, cut to QUOTED_CHARACTERS_MAX."""
    return repr(text if len(text) <= QUOTED_CHARACTERS_MAX else text[: QUOTED_CHARACTERS_MAX - 1] + "…")
