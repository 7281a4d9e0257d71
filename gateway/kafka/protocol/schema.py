"""Parses the tables of the protocol: the fields of each request and response in each version. Pure except for reading the files.

    api NAME KEY versions FIRST-LAST flexible FIRST+      the versions that can be decoded; `flexible none` if no version is
      request                                             then `response`
        struct NAME                                       a name for a struct of two fields; its fields follow, indented
        NAME  TYPE  [VERSIONS] [null [VERSIONS]] [tag N [VERSIONS]] [= DEFAULT]

VERSIONS is `3`, `3-5` or `3+`, and may be left out if it equals the API's versions for a field, or the field's own for `null` and
`tag`. A type that starts with a capital is a struct, whose fields follow, indented by two more. Without a default,
numbers are 0, strings and arrays empty, and structs that may be null absent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

TABLES: Final = Path(__file__).with_name("tables")
INTEGERS: Final = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
SCALARS: Final = {**INTEGERS, "bool": 1, "float64": 8, "uuid": 16, "string": 0, "bytes": 0, "records": 0}


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, from `first` to `last`, both included."""

    first: int
    last: int

    def within(self, other: Versions) -> bool:
        return other.first <= self.first and self.last <= other.last


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct, with the versions in which it exists, may be null, and is tagged."""

    name: str
    # A key of SCALARS, or the name of a struct.
    type: str
    is_array: bool
    versions: Versions
    # Versions in which the field may be null, and in which it is tagged.
    nullable: Versions | None
    tag: int | None
    tagged: Versions | None
    # The text of the table; None without a default, "null" for null.
    default: str | None

    @property
    def attribute(self) -> str:
        return snake_case(self.name)

    @property
    def is_struct(self) -> bool:
        return self.type not in SCALARS


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of a message. `class_name` is Kafka's name, prefixed by the message's name if another message has the same."""

    name: str
    fields: tuple[Field, ...]
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a response. `structs` are by Kafka's names, each before the structs that hold it."""

    name: str
    versions: Versions
    flexible: Versions | None
    root: Struct
    structs: dict[str, Struct] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one API: its key, versions, request and response."""

    name: str
    key: int
    versions: Versions
    flexible: Versions | None
    request: Message
    response: Message


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def definitions() -> list[Definition]:
    """Returns all APIs of all tables, in the order of their keys. Raises ValueError, with file and line, for a wrong table."""
    found = [
        definition for path in sorted(TABLES.glob("*.txt")) for definition in _parse(path.name, path.read_text(encoding="utf-8"))
    ]
    names = Counter(
        name for each in found for message in (each.request, each.response) for name in (message.name, *message.structs)
    )
    if twice := [name for name, count in Counter(each.key for each in found).items() if count > 1]:
        raise ValueError(f"two tables have API keys {twice}")
    return sorted((_with_class_names(each, names) for each in found), key=lambda each: each.key)


def _with_class_names(definition: Definition, names: Counter[str]) -> Definition:
    def named(message: Message) -> Message:
        structs = {
            name: replace(struct, class_name=name if names[name] == 1 else message.name + name)
            for name, struct in message.structs.items()
        }
        return replace(message, structs=structs, root=replace(message.root, class_name=message.name))

    return replace(definition, request=named(definition.request), response=named(definition.response))


@dataclass(slots=True)
class _Line:
    number: int
    indent: int
    words: list[str]


_API = re.compile(r"api (\w+) (\d+) versions (\S+) flexible (\S+)")


def _parse(name: str, text: str) -> Iterator[Definition]:
    lines = [
        _Line(number, len(line) - len(line.lstrip()), line.split("#")[0].split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.split("#")[0].strip()
    ]
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].indent > 0:
            end += 1
        try:
            yield _api(lines[at], lines[at + 1 : end])
        except (ValueError, IndexError, KeyError) as error:
            raise ValueError(f"{name}, the API at line {lines[at].number}: {error}") from error
        at = end


def _api(head: _Line, lines: Sequence[_Line]) -> Definition:
    match = _API.fullmatch(" ".join(head.words))
    if match is None:
        raise ValueError("expected: api NAME KEY versions FIRST-LAST flexible FIRST+")
    name, key, versions_text, flexible_text = match.groups()
    first, _, last = versions_text.partition("-")
    versions = Versions(int(first), int(last or first))
    flexible = None if flexible_text == "none" else _versions(flexible_text, versions)
    starts = [index for index, line in enumerate(lines) if line.indent == 2]
    if [lines[index].words for index in starts] != [["request"], ["response"]]:
        raise ValueError("expected `request`, then `response`")
    request = _message(f"{name}Request", versions, flexible, lines[1 : starts[1]])
    response = _message(f"{name}Response", versions, flexible, lines[starts[1] + 1 :])
    return Definition(name, int(key), versions, flexible, request, response)


def _message(name: str, versions: Versions, flexible: Versions | None, lines: Sequence[_Line]) -> Message:
    message = Message(name, versions, flexible, Struct(name, ()))
    declared: dict[str, Struct] = {}
    at = 0
    while at < len(lines) and lines[at].words[0] == "struct":
        end = _block_end(lines, at)
        struct = Struct(lines[at].words[1], tuple(_fields(lines[at + 1 : end], versions, message.structs)))
        declared[struct.name] = struct
        message.structs[struct.name] = struct
        at = end
    root = Struct(name, tuple(_fields(lines[at:], versions, message.structs)))
    ordered: dict[str, Struct] = {}
    _order(root, message.structs, ordered)
    del ordered[name]
    return Message(name, versions, flexible, root, ordered)


def _order(struct: Struct, structs: dict[str, Struct], ordered: dict[str, Struct]) -> None:
    for each in struct.fields:
        if each.is_struct and each.type not in ordered:
            _order(structs[each.type], structs, ordered)
    ordered[struct.name] = struct


def _block_end(lines: Sequence[_Line], start: int) -> int:
    end = start + 1
    while end < len(lines) and lines[end].indent > lines[start].indent:
        end += 1
    return end


def _fields(lines: Sequence[_Line], versions: Versions, structs: dict[str, Struct]) -> Iterator[Field]:
    at = 0
    while at < len(lines):
        end = _block_end(lines, at)
        try:
            found = _field(lines[at].words, versions)
        except ValueError as error:
            raise ValueError(f"line {lines[at].number}: {error}") from error
        if end > at + 1:
            if not found.is_struct or found.type in structs:
                raise ValueError(f"line {lines[at].number}: only the first field of a struct lists what the struct holds")
            structs[found.type] = Struct(found.type, tuple(_fields(lines[at + 1 : end], found.versions, structs)))
        yield found
        at = end


def _field(words: Sequence[str], surrounding: Versions) -> Field:
    name, type_text, *rest = words
    versions = surrounding
    nullable = tagged = tag = default = None
    if rest and rest[0][0].isdigit():
        versions = _versions(rest.pop(0), surrounding)
    while rest:
        match rest.pop(0):
            case "null":
                nullable = _versions(rest.pop(0), versions) if rest and rest[0][0].isdigit() else versions
            case "tag":
                tag = int(rest.pop(0))
                tagged = _versions(rest.pop(0), versions) if rest and rest[0][0].isdigit() else versions
            case "=":
                default = " ".join(rest)
                rest = []
            case word:
                raise ValueError(f"{word!r} is neither null, tag nor =")
    kind = type_text.removeprefix("[]")
    if kind not in SCALARS and not kind[0].isupper():
        raise ValueError(f"{kind!r} is no type")
    if not versions.within(surrounding):
        raise ValueError(f"{name} is in versions that its struct is not in")
    return Field(name, kind, type_text.startswith("[]"), versions, nullable, tag, tagged, default)


def _versions(text: str, surrounding: Versions) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), surrounding.last)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))
