"""Messages of Kafka's protocol for property tests: drawn with all fields, then cut down to what a version has."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway.kafka.protocol.schema import INTEGERS, Field, Message, Struct, Versions
from tests.kit.gateway.kafka_codec import KafkaCodec

_TEXT = st.text(st.characters(codec="utf-8"), max_size=6) | st.just("x" * 130)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{
        name: st.sampled_from([0, -1, 1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1))])
        | st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
        for name, size in INTEGERS.items()
    },
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": _TEXT,
    "bytes": st.binary(max_size=6) | st.just(b"y" * 200),
    "records": st.binary(max_size=80),
}
_ZEROS: dict[str, Any] = {
    **dict.fromkeys(INTEGERS, 0),
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": b"",
}


def values(message: Message, struct: Struct | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """All fields, by their attributes; structs as dictionaries."""
    fields = (message.root if struct is None else struct).fields
    return st.fixed_dictionaries({each.attribute: _values_of(message, each) for each in fields})


def _values_of(message: Message, each: Field) -> st.SearchStrategy[Any]:
    one = values(message, message.structs[each.type]) if each.is_struct else _SCALARS[each.type]
    found: st.SearchStrategy[Any] = st.lists(one, max_size=3) if each.is_array else one
    may_be_absent = each.nullable is not None or (each.is_struct and not each.is_array and each.tag is not None)
    return st.none() | found if may_be_absent else found


def in_version(message: Message, struct: Struct, value: dict[str, Any], version: int) -> dict[str, Any]:
    """What is left of a message once it went through `version`: fields that it does not have are at their defaults."""
    return {each.attribute: _field_in_version(message, each, value[each.attribute], version) for each in struct.fields}


def _field_in_version(message: Message, each: Field, value: Any, version: int) -> Any:
    if not _has(each.versions, version):
        return default_of(message, each)
    is_tagged_struct = each.is_struct and not each.is_array and each.tag is not None
    if value is None and not is_tagged_struct and not (each.nullable and _has(each.nullable, version)):
        value = [] if each.is_array else _ZEROS[each.type]
    if value is None or not each.is_struct:
        return value
    struct = message.structs[each.type]
    if each.is_array:
        return [in_version(message, struct, item, version) for item in value]
    return in_version(message, struct, value, version)


def default_of(message: Message, each: Field) -> Any:
    """As the protocol defines it, read from the table alone."""
    if each.default == "null":
        return None
    if each.is_array:
        return []
    if each.is_struct:
        if each.tag is not None or each.nullable is not None:
            return None
        return {inner.attribute: default_of(message, inner) for inner in message.structs[each.type].fields}
    if each.type == "records" and message.name.endswith("Request"):
        return None
    if each.default is None:
        return _ZEROS[each.type]
    if each.type in INTEGERS:
        return int(each.default, 0)
    return {"true": True, "false": False}.get(each.default, each.default.strip('"'))


def build(codec: KafkaCodec, message: Message, struct: Struct, value: dict[str, Any]) -> Any:
    """The message object of that form of the codec. Records of a response come as two buffers where they can."""
    built = {each.attribute: _build_field(codec, message, each, value[each.attribute]) for each in struct.fields}
    return codec.class_of(struct)(**built)


def _build_field(codec: KafkaCodec, message: Message, each: Field, value: Any) -> Any:
    if value is None:
        return None
    if each.is_struct:
        struct = message.structs[each.type]
        return [build(codec, message, struct, item) for item in value] if each.is_array else build(codec, message, struct, value)
    if each.type == "records":
        return [value[:20], memoryview(value)[20:]] if message.name.endswith("Response") else memoryview(value)
    return value


def _has(versions: Versions, version: int) -> bool:
    return versions.first <= version <= versions.last
