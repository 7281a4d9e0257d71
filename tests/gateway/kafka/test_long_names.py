"""Each API answers a request whose names are as long as the protocol allows, whatever its errors say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.primitives import STRING_BYTES_MAX
from gateway.kafka.protocol.schema import Field, Message, Struct
from tests.kit.gateway.kafka_admin import KafkaAdmin, address, with_admin
from tests.kit.gateway.kafka_client import kafka_client
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED
from tests.kit.gateway.kafka_messages import build, default_of, in_version

pytestmark = pytest.mark.slow
# These end the connection, or wait for what does not come.
_NOT_ASKED = frozenset({"SaslHandshake", "SaslAuthenticate", "Produce", "JoinGroup"})


def _with_long_names(message: Message, struct: Struct) -> dict[str, Any]:
    def one(each: Field) -> Any:
        if each.is_struct:
            return _with_long_names(message, message.structs[each.type])
        return "n" * STRING_BYTES_MAX if each.type == "string" else default_of(message, each)

    def value(each: Field) -> Any:
        if not each.is_array:
            return one(each)
        return [one(each)] if each.is_struct or each.type == "string" else [0]

    return {each.attribute: value(each) for each in struct.fields}


def test_each_api_answers_the_longest_names(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        assert admin.broker._kafka is not None
        silent = []
        for key, (first, last) in admin.broker._kafka.requests.versions.items():
            definition = DEFINITIONS[key]
            if definition.name in _NOT_ASKED:
                continue
            for version in (max(first, definition.versions.first), last):
                fields = _with_long_names(definition.request, definition.request.root)
                fields = in_version(definition.request, definition.request.root, fields, version)
                async with kafka_client(address(admin.broker)) as client:
                    try:
                        await client.ask(
                            definition.name, version, build(INSTALLED, definition.request, definition.request.root, fields)
                        )
                    except EOFError:
                        silent.append((definition.name, version))
        assert silent == []

    with_admin(tmp_path, scenario)
