"""What the codec writes, kafka-python reads and writes again, byte for byte."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kafka.protocol.schema import Message
from tests.kit.gateway.kafka_codec import DEFINITIONS, INSTALLED
from tests.kit.gateway.kafka_messages import build, in_version, values

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by a function that Python has deprecated
    from kafka.protocol import admin, consumer, metadata, producer, sasl

# kafka-python has no consumer groups of KIP-848.
_UNKNOWN = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
_PEER: dict[str, Any] = {
    name: value for module in (admin, consumer, metadata, producer, sasl) for name, value in vars(module).items()
}
MESSAGES = [
    pytest.param(key, message, id=message.name)
    for key, definition in DEFINITIONS.items()
    if definition.name not in _UNKNOWN
    for message in (definition.request, definition.response)
]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "message"), MESSAGES)
@settings(max_examples=max(1, settings().max_examples // 5))
@given(data=st.data())
def test_another_codec_reads_each_message_and_writes_it_alike(key: int, message: Message, data: st.DataObject) -> None:
    value = data.draw(values(message))
    if message.name == "ApiVersionsResponse":
        value["error_code"] = 0  # it reads another answer as version 0
    for version in range(message.versions.first, message.versions.last + 1):
        built = build(INSTALLED, message, message.root, in_version(message, message.root, value, version))
        if message.name.endswith("Request"):
            body = INSTALLED.encode_request(key, built, version)
        else:
            body = b"".join(INSTALLED.encode_response(key, built, version, 5))[8:]
            if message.flexible is not None and version >= message.flexible.first and message.name != "ApiVersionsResponse":
                body = body[1:]
        theirs = _PEER[message.name].decode(body, version=version)
        theirs._header = None  # which decode() leaves unset
        assert theirs.encode(version=version) == body
