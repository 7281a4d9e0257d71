"""Copies the fields of protobuf messages into structs and named tuples that have the same names. Pure."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

_Value = TypeVar("_Value")


def value_of(message: Message, kind: type[_Value], **differing: Any) -> _Value:
    """Returns a msgspec struct or NamedTuple of the message's fields, but for those that `differing` gives. An absent optional
    field is None."""
    for name, is_optional in _fields(message.DESCRIPTOR, kind):
        if name not in differing:
            differing[name] = None if is_optional and not message.HasField(name) else getattr(message, name)
    return kind(**differing)


@cache
def _fields(message: Descriptor, kind: Any) -> list[tuple[str, bool]]:
    """Returns the names of the value's fields, and whether they are optional in the message."""
    names: tuple[str, ...] = kind._fields if issubclass(kind, tuple) else kind.__struct_fields__
    optional = {field.name for field in message.fields if field.has_presence}
    return [(name, name in optional) for name in names]
