"""Both directions of Kafka's protocol, and both forms of the codec: compiled, and as the Python that it is without a C compiler.

The product decodes requests and encodes responses. What a client does is generated here, when this module is imported, by the
same generator from the same tables.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.kafka.protocol import admin_messages, client_messages, hot_messages, primitives
from gateway.kafka.protocol.emitter import Emitter
from gateway.kafka.protocol.schema import Definition, Field, Message, Struct, definitions, snake_case

DEFINITIONS = {definition.key: definition for definition in definitions()}
_PRIMITIVES = "gateway.kafka.protocol.primitives"


@dataclass(frozen=True)
class KafkaCodec:
    """One form of the codec, with a client's direction beside the broker's."""

    name: str
    primitives: ModuleType
    # Classes and functions of the product and of the client, by name.
    names: dict[str, Any]

    def class_of(self, struct: Struct) -> type[Any]:
        found: type[Any] = self.names[struct.class_name]
        return found

    def decode_request(self, key: int, frame: bytes | memoryview, offset: int, version: int, **bounds: int) -> Any:
        return self.names[f"decode_{snake_case(DEFINITIONS[key].request.name)}"](frame, offset, version, **bounds)

    def encode_response(self, key: int, message: Any, version: int, correlation_id: int) -> list[bytes | bytearray | memoryview]:
        encode: Callable[..., list[bytes | bytearray | memoryview]] = self.names[
            f"encode_{snake_case(DEFINITIONS[key].response.name)}"
        ]
        return encode(message, version, correlation_id)

    def encode_request(self, key: int, message: Any, version: int) -> bytes:
        """The body, without a header."""
        writer = self.primitives.Writer()
        writer.int32(0)  # finish() writes the length there
        self.names[f"_write_{DEFINITIONS[key].request.name}"](writer, message, version)
        return b"".join(writer.finish())[4:]

    def encode_request_frame(
        self, key: int, message: Any, version: int, correlation_id: int, client_id: str | None = "tests"
    ) -> bytes:
        """The frame with its length and header, as a client sends it."""
        definition = DEFINITIONS[key]
        writer = self.primitives.Writer()
        writer.int32(0)
        writer.int16(key)
        writer.int16(version)
        writer.int32(correlation_id)
        writer.nullable_string(client_id, False)
        if definition.flexible is not None and version >= definition.flexible.first:
            writer.uvarint(0)
        self.names[f"_write_{definition.request.name}"](writer, message, version)
        return b"".join(writer.finish())

    def decode_response(self, key: int, frame: bytes | memoryview, version: int) -> tuple[int, Any]:
        """Correlation id and message of a frame without its length prefix."""
        definition = DEFINITIONS[key]
        reader = self.primitives.Reader(frame, 0)
        correlation_id: int = reader.int32()
        if definition.flexible is not None and version >= definition.flexible.first and definition.name != "ApiVersions":
            reader.skip_tags()
        message = self.names[f"_read_{definition.response.name}"](reader, version)
        reader.finish()
        return correlation_id, message


def _load_uncompiled(name: str, uncompiled_primitives: ModuleType | None) -> ModuleType:
    source = Path(primitives.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _instead_of_primitives(uncompiled_primitives):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _instead_of_primitives(module: ModuleType | None) -> Iterator[None]:
    if module is None:
        yield
        return
    before = sys.modules[_PRIMITIVES]
    sys.modules[_PRIMITIVES] = module
    try:
        yield
    finally:
        sys.modules[_PRIMITIVES] = before


def _codec(name: str, primitives_module: ModuleType, modules: Sequence[ModuleType]) -> KafkaCodec:
    names: dict[str, Any] = {"Reader": primitives_module.Reader, "Writer": primitives_module.Writer, "ZERO_UUID": bytes(16)}
    for module in modules:
        names.update(vars(module))
    lines = ["from __future__ import annotations"]
    for definition in DEFINITIONS.values():
        lines += [*Emitter(definition.request).writers(), *Emitter(definition.response).readers()]
    exec(compile("\n".join(lines), f"<a client's direction, {name}>", "exec"), names)
    return KafkaCodec(name, primitives_module, names)


_UNCOMPILED_PRIMITIVES = _load_uncompiled("primitives", None)
UNCOMPILED = _codec(
    "uncompiled",
    _UNCOMPILED_PRIMITIVES,
    [_load_uncompiled(name, _UNCOMPILED_PRIMITIVES) for name in ("hot_messages", "client_messages", "admin_messages")],
)
# The form that the broker runs: compiled, where a C compiler was found.
INSTALLED = _codec("compiled" if primitives.COMPILED else "installed", primitives, [hot_messages, client_messages, admin_messages])
CODECS = (INSTALLED, UNCOMPILED) if primitives.COMPILED else (INSTALLED,)


def messages() -> list[tuple[Definition, Message, int]]:
    """Each request and response in each of its versions."""
    return [
        (definition, message, version)
        for definition in DEFINITIONS.values()
        for message in (definition.request, definition.response)
        for version in range(definition.versions.first, definition.versions.last + 1)
    ]


def plain(message: Message, struct: Struct, value: Any) -> dict[str, Any]:
    """A message as dictionaries and lists, by the attributes of its classes; records as their bytes."""
    return {each.attribute: _plain_field(message, each, getattr(value, each.attribute)) for each in struct.fields}


def _plain_field(message: Message, each: Field, value: Any) -> Any:
    if value is None:
        return None
    if each.is_array:
        return [_plain_one(message, each, item) for item in value]
    return _plain_one(message, each, value)


def _plain_one(message: Message, each: Field, value: Any) -> Any:
    if each.is_struct:
        return plain(message, message.structs[each.type], value)
    if each.type == "records":
        return b"".join(value) if isinstance(value, list | tuple) else bytes(value)
    return value
