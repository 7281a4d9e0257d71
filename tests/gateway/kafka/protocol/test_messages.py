"""Every message in every version, through the broker's direction and a client's, compiled and uncompiled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kafka.protocol.schema import Message
from tests.kit.gateway.kafka_codec import CODECS, DEFINITIONS, INSTALLED, KafkaCodec, plain
from tests.kit.gateway.kafka_messages import build, default_of, in_version, values

MESSAGES = [
    pytest.param(key, message, id=message.name)
    for key, definition in DEFINITIONS.items()
    for message in (definition.request, definition.response)
]


def _versions(message: Message) -> range:
    return range(message.versions.first, message.versions.last + 1)


def _through(codec: KafkaCodec, key: int, message: Message, value: dict[str, Any], version: int) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a message, and what the other side makes of them."""
    built = build(codec, message, message.root, value)
    if message.name.endswith("Request"):
        body = codec.encode_request(key, built, version)
        read = codec.decode_request(key, b"header" + body, 6, version)
        return body, plain(message, message.root, read)
    frame = b"".join(codec.encode_response(key, built, version, 77))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, read = codec.decode_response(key, frame[4:], version)
    assert correlation_id == 77
    return frame, plain(message, message.root, read)


# Each example goes through all versions in both forms.
@pytest.mark.slow
@pytest.mark.parametrize(("key", "message"), MESSAGES)
@settings(max_examples=max(1, settings().max_examples // 5))
@given(data=st.data())
def test_each_version_carries_what_it_has_and_nothing_else(key: int, message: Message, data: st.DataObject) -> None:
    value = data.draw(values(message))
    for version in _versions(message):
        # Null where this version has no null would be the caller's fault, so it is cut down before it is written.
        expected = in_version(message, message.root, value, version)
        written = set()
        for codec in CODECS:
            body, read = _through(codec, key, message, expected, version)
            assert read == expected
            written.add(body)
        assert len(written) == 1, "both forms write the same bytes"


@pytest.mark.parametrize(("key", "message"), MESSAGES)
def test_constructors_have_the_defaults_of_the_protocol(key: int, message: Message) -> None:
    for codec in CODECS:
        for struct in (message.root, *message.structs.values()):
            expected = {each.attribute: default_of(message, each) for each in struct.fields}
            assert plain(message, struct, codec.class_of(struct)()) == expected


def test_a_version_outside_of_the_range_is_refused() -> None:
    for codec in CODECS:
        with pytest.raises(codec.names["MalformedFrame"]):
            codec.decode_request(18, b"", 0, 5)
        with pytest.raises(ValueError, match="not 5"):
            codec.encode_response(18, codec.names["ApiVersionsResponse"](), 5, 1)


def test_records_go_through_uncopied() -> None:
    names = INSTALLED.names
    batches: list[bytes | memoryview] = [b"first", memoryview(b"second")]
    partition = names["PartitionData"](records=batches, records_size_bytes=11)
    response = names["FetchResponse"](responses=[names["FetchableTopicResponse"](topic="t", partitions=[partition])])
    parts = INSTALLED.encode_response(1, response, 12, 1)
    assert any(part is batches[0] for part in parts)
    assert any(part is batches[1] for part in parts)

    frame = bytearray(3) + INSTALLED.encode_request(
        0,
        names["ProduceRequest"](
            topic_data=[
                names["TopicProduceData"](name="t", partition_data=[names["PartitionProduceData"](records=memoryview(b"batch"))])
            ]
        ),
        9,
    )
    records = INSTALLED.decode_request(0, memoryview(frame), 3, 9).topic_data[0].partition_data[0].records
    assert records == b"batch"
    frame[frame.index(b"batch")] = ord("B")
    assert records == b"Batch"
