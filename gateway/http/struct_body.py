"""Decodes the JSON bodies of requests into msgspec structs. Pure.

Invariant: an unknown field is refused. A refusal names the field, and its hint holds an example of the whole body.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec
from msgspec import Struct

from gateway.http.validation_errors import ENTRY, FieldError, describe_malformed_json, field_error, step
from metadata.errors import InvalidArgument, did_you_mean

_Body = TypeVar("_Body", bound="Body")


class Body(Struct, forbid_unknown_fields=True):
    """Is the base of all request bodies and their parts."""

    # JSON of a whole body, for hints and for the OpenAPI document; a part of a body has none.
    example: ClassVar[str] = ""


def decode_body(body: bytes, of: type[_Body]) -> _Body:
    """Returns the decoded body. Raises InvalidArgument, which names the field or the byte."""
    hint = f"Send for example {of.example}."
    try:
        return msgspec.json.decode(body, type=of)
    except msgspec.ValidationError as error:
        fault = _with_key(field_error(error), body, of)
        if fault.unknown_field is not None:
            hint = f"{did_you_mean(fault.unknown_field, _fields_of(of))} {hint}".strip()
        details: dict[str, str] = {"field": fault.path} if fault.path else {}
        raise InvalidArgument(fault.sentence("the body"), hint=hint, **details) from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the body {describe_malformed_json(error, body)}", hint=hint) from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply", hint=hint) from None


def _with_key(fault: FieldError, body: bytes, of: type[Body]) -> FieldError:
    """Adds the key of the entry, which msgspec does not name, if the fault is in a map that is a field of the body."""
    types = {field.encode_name: field.type for field in msgspec.structs.fields(of)}
    name = fault.path.removesuffix(ENTRY)
    if not fault.path.endswith(ENTRY) or name not in types:
        return fault
    try:
        entries: dict[str, object] = msgspec.json.decode(body)[name]
    except (msgspec.DecodeError, RecursionError):  # a second fault, after the one that was found
        return fault
    for key, value in entries.items():
        try:
            msgspec.convert({key: value}, types[name])
        except msgspec.ValidationError:
            return fault._replace(path=f"{name}{step(key)}")
    return fault


def _fields_of(of: type[Body]) -> list[str]:
    _, schemas = msgspec.json.schema_components([of])
    return [name for schema in schemas.values() for name in schema.get("properties", ())]
