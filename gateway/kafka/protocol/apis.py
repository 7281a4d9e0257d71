"""Maps API keys to decoders and encoders, and decodes the header before each request. Pure.

    request header v1   api_key int16 | api_version int16 | correlation_id int32 | client_id legacy nullable string
                   v2   the same, then tagged fields, if the API's version is flexible

gateway/kafka/handlers.py decides which of these the broker advertises. Source: https://kafka.apache.org/protocol#protocol_messages
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.kafka.protocol import admin_messages, client_messages, hot_messages
from gateway.kafka.protocol.api_ranges import API_RANGES
from gateway.kafka.protocol.primitives import Reader

if TYPE_CHECKING:
    from segments.object_store.interface import Buffer


class Api(NamedTuple):
    """An API whose versions `min_version` to `max_version` can be decoded, with its decoder and encoder.

    `flexible_from` is above `max_version` if no version is flexible."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    # frame, offset of the body, version, and optionally the most elements
    decode: Callable[..., Any]
    # message, version, correlation id
    encode: Callable[[Any, int, int], list[Buffer]]


class RequestHeader(NamedTuple):
    """The header of a request. `body_offset` is the position of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def _api(key: int, name: str, min_version: int, max_version: int, flexible_from: int | None, snake_name: str) -> Api:
    modules = (hot_messages, client_messages, admin_messages)
    module = next(module for module in modules if hasattr(module, f"decode_{snake_name}_request"))
    decode = getattr(module, f"decode_{snake_name}_request")
    encode = getattr(module, f"encode_{snake_name}_response")
    return Api(key, name, min_version, max_version, max_version + 1 if flexible_from is None else flexible_from, decode, encode)


APIS: Final[dict[int, Api]] = {row[0]: _api(*row) for row in API_RANGES}


def decode_header(frame: Buffer) -> RequestHeader:
    """Decodes the header of a request, behind its length prefix.

    A version above the known ones is read as a flexible version, since ApiVersions must be answered even then (KIP-511). For an
    unknown API only the key is reliable. Raises MalformedFrame if the bytes end early or are no header.
    """
    reader = Reader(frame, 0)
    api_key, api_version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    client_id = reader.nullable_string(False)
    api = APIS.get(api_key)
    if api is not None and api.flexible_from <= api_version and api.flexible_from <= api.max_version:
        reader.skip_tags()
    return RequestHeader(api_key, api_version, correlation_id, client_id, reader.position())
