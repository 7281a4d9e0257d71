"""Frames that are not what they say: MalformedFrame, and nothing else, without much memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.protocol.apis import decode_header
from gateway.kafka.protocol.errors import MalformedFrame
from gateway.kafka.protocol.schema import Field, Message, Struct
from tests.kit.gateway.kafka_codec import CODECS, DEFINITIONS, KafkaCodec, plain
from tests.kit.gateway.kafka_messages import build, in_version

CODEC = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
REQUESTS = [pytest.param(key, definition.request, id=definition.request.name) for key, definition in DEFINITIONS.items()]
_SAMPLES: dict[str, Any] = {
    "string": "text",
    "bytes": b"octets",
    "records": b"a record batch",
    "uuid": bytes(range(16)),
    "bool": True,
    "float64": 1.5,
}


def _full(message: Message, struct: Struct) -> dict[str, Any]:
    """A message in which nothing is empty."""

    def one(each: Field) -> Any:
        return _full(message, message.structs[each.type]) if each.is_struct else _SAMPLES.get(each.type, 7)

    return {each.attribute: [one(each), one(each)] if each.is_array else one(each) for each in struct.fields}


def _body(codec: KafkaCodec, key: int, message: Message, version: int) -> bytes:
    value = in_version(message, message.root, _full(message, message.root), version)
    return codec.encode_request(key, build(codec, message, message.root, value), version)


def _answers_or_refuses(key: int, message: Message, body: bytes, version: int) -> None:
    """All forms of the codec read the same or refuse alike."""
    found = []
    for codec in CODECS:
        try:
            read = codec.decode_request(key, body, 0, version)
        except codec.names["MalformedFrame"] as refusal:
            found.append(refusal.message)
        else:
            found.append(repr(plain(message, message.root, read)))
    assert len(set(found)) == 1, found


@pytest.mark.parametrize(("key", "message"), REQUESTS)
def test_a_frame_that_ends_early_is_refused_at_each_byte(key: int, message: Message) -> None:
    for version in {message.versions.first, message.versions.last}:
        body = _body(CODECS[0], key, message, version)
        for codec in CODECS:
            codec.decode_request(key, body, 0, version)
            for end in range(len(body)):
                with pytest.raises(MalformedFrame):
                    codec.decode_request(key, body[:end], 0, version)


@pytest.mark.parametrize(("key", "message"), REQUESTS)
def test_bytes_behind_the_last_field_are_ignored_as_by_kafka(key: int, message: Message) -> None:
    body = _body(CODECS[0], key, message, message.versions.last)
    for codec in CODECS:
        longer = codec.decode_request(key, body + b"\0", 0, message.versions.last)
        exact = codec.decode_request(key, body, 0, message.versions.last)
        assert plain(message, message.root, longer) == plain(message, message.root, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "message"), REQUESTS)
def test_flipped_bits_are_read_or_refused(key: int, message: Message) -> None:
    chance = random.Random(key)
    for version in {message.versions.first, message.versions.last}:
        body = _body(CODECS[0], key, message, version)
        for _ in range(60):
            bit = chance.randrange(8 * len(body)) if body else 0
            flipped = bytearray(body or b"\0")
            flipped[bit // 8] ^= 1 << bit % 8
            _answers_or_refuses(key, message, bytes(flipped), version)


@given(st.sampled_from(sorted(DEFINITIONS)), st.binary(max_size=120), st.integers(0, 20))
def test_random_bytes_as_a_request_body_are_decoded_or_refused(key: int, body: bytes, version: int) -> None:
    _answers_or_refuses(key, DEFINITIONS[key].request, body, version)


@given(st.binary(max_size=40))
def test_random_bytes_as_a_header_are_decoded_or_refused(frame: bytes) -> None:
    try:
        header = decode_header(frame)
    except MalformedFrame:
        return
    assert 10 <= header.body_offset <= len(frame)


# Metadata of version 1 is one array of strings, of version 9 the compact form of the same.
@CODEC
@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        (1, b"\x7f\xff\xff\xff", "array of 2147483647 elements"),
        (1, b"\xff\xff\xff\xfe", "array of -2 elements"),
        (1, b"\0\0\0\1\xff\xff", "null before byte"),
        (1, b"\0\0\0\1\xff\xfe", "length -2"),
        (1, b"\0\0\0\1\0\5abc", "length 5"),
        (1, b"\0\0\0\1\0\2\xc3\x28", "not UTF-8"),
        (1, b"\0\0\0\1\0\3\xed\xa0\x80", "not UTF-8"),
        (0, b"\xff\xff\xff\xff", "null before byte"),
        (9, b"\xff\xff\xff\xff\x0f\0\0\0", "larger than an int32"),
        (9, b"\xff\xff\xff\xff\xff\x01\0\0\0", "larger than an int32"),
        (9, b"\1\0\0\0\1\0\x05", "tagged field of 5 bytes"),
    ],
)
def test_lengths_that_lie_are_named(codec: KafkaCodec, version: int, body: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        codec.decode_request(3, body, 0, version)


@CODEC
def test_a_compact_string_is_no_longer_than_kafka_allows(codec: KafkaCodec) -> None:
    compact = bytes([32_769 & 0x7F | 0x80, (32_769 >> 7) & 0x7F | 0x80, 32_769 >> 14])
    with pytest.raises(MalformedFrame, match="the longest has 32767"):
        codec.decode_request(3, b"\2" + compact + b"x" * 32_768 + b"\0\0\0\0\0", 0, 9)


@CODEC
def test_a_tagged_field_must_fill_its_size(codec: KafkaCodec) -> None:
    names = codec.names
    body = codec.encode_request(1, names["FetchRequest"](cluster_id="abc"), 12)
    at = body.index(b"\4abc")
    assert body[at - 1] == 4
    with pytest.raises(MalformedFrame, match="a tagged field ends"):
        codec.decode_request(1, body[: at - 1] + b"\5" + body[at:] + b"\0", 0, 12)


@CODEC
def test_tags_that_are_not_known_are_skipped(codec: KafkaCodec) -> None:
    known = codec.encode_request(12, codec.names["HeartbeatRequest"](group_id="g", generation_id=3), 4)
    assert known.endswith(b"\0")
    read = codec.decode_request(12, known[:-1] + b"\2\x07\3xyz\x90\x01\0", 0, 4)
    assert (read.group_id, read.generation_id) == ("g", 3)


@CODEC
def test_a_request_has_a_bounded_number_of_elements(codec: KafkaCodec) -> None:
    body = (1_000).to_bytes(4, "big") + b"\0\0" * 1_000
    assert len(codec.decode_request(3, body, 0, 1, elements_max=1_000).topics) == 1_000
    with pytest.raises(MalformedFrame, match="may have 999 more"):
        codec.decode_request(3, body, 0, 1, elements_max=999)


@CODEC
def test_elements_are_counted_over_all_arrays(codec: KafkaCodec) -> None:
    body = (2).to_bytes(4, "big") + (b"\0\1t" + (10).to_bytes(4, "big") + bytes(40)) * 2
    offset_fetch = b"\0\1g" + body
    codec.decode_request(9, offset_fetch, 0, 1, elements_max=22)
    with pytest.raises(MalformedFrame, match="may have 9 more"):
        codec.decode_request(9, offset_fetch, 0, 1, elements_max=21)


@CODEC
def test_a_hostile_frame_costs_bounded_memory(codec: KafkaCodec) -> None:
    """The dearest elements are structs of two bytes. Memory grows with their count, so a twentieth of the bound shows its cost."""
    count, usual = 12_500, codec.primitives.ELEMENTS_MAX
    body = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7 & 0x7F]) + b"\1\0" * count
    longer = (usual + 1).to_bytes(4, "big") + bytes(2 * (usual + 1))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            codec.decode_request(3, body, 0, 9, elements_max=count)
        peak = tracemalloc.get_traced_memory()[1]
        assert peak * usual // count < 40_000_000
        tracemalloc.reset_peak()
        with pytest.raises(MalformedFrame, match=f"an array of {count} elements .* may have {count - 1} more"):
            codec.decode_request(3, body, 0, 9, elements_max=count - 1)
        with pytest.raises(MalformedFrame, match=f"may have {usual} more"):
            codec.decode_request(3, longer, 0, 1)
        with pytest.raises(MalformedFrame):
            codec.decode_request(3, b"\x7f\xff\xff\xff" + bytes(1_000), 0, 1)
        assert tracemalloc.get_traced_memory()[1] < peak // 2
    finally:
        tracemalloc.stop()
