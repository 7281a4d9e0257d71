"""Headers, and a few whole frames, byte for byte as Kafka documents them."""

from __future__ import annotations

from gateway.kafka.protocol.apis import APIS, decode_header
from gateway.kafka.protocol.client_messages import ApiVersion, ApiVersionsResponse, HeartbeatResponse


def test_a_legacy_header_ends_behind_the_client_id() -> None:
    assert decode_header(bytes.fromhex("0012 0000 00000007 0003 616263")) == (18, 0, 7, "abc", 13)


def test_a_flexible_header_has_a_legacy_client_id_and_tags() -> None:
    assert decode_header(bytes.fromhex("0012 0003 00000007 ffff 00 03")) == (18, 3, 7, None, 11)
    assert decode_header(bytes.fromhex("0012 0003 00000007 0001 61 01 05 02 0000 03")).body_offset == 16


def test_a_version_that_is_too_new_is_read_as_flexible() -> None:
    assert decode_header(bytes.fromhex("0012 0063 00000007 ffff 00")).body_offset == 11


def test_the_apis_that_are_never_flexible_have_legacy_headers() -> None:
    assert decode_header(bytes.fromhex("0011 0001 00000007 ffff 00")).body_offset == 10
    assert decode_header(bytes.fromhex("002f 0000 00000007 ffff 00")).body_offset == 10


def test_api_versions_is_answered_behind_a_legacy_header_in_each_version() -> None:
    message = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    assert (
        b"".join(APIS[18].encode(message, 3, 7)).hex(" ") == "00 00 00 13 00 00 00 07 00 00 02 00 12 00 00 00 04 00 00 00 00 00 00"
    )
    assert b"".join(APIS[18].encode(message, 0, 7)).hex(" ") == "00 00 00 10 00 00 00 07 00 00 00 00 00 01 00 12 00 00 00 04"


def test_a_flexible_response_has_a_flexible_header() -> None:
    message = HeartbeatResponse(error_code=27)
    assert b"".join(APIS[12].encode(message, 3, 7)).hex(" ") == "00 00 00 0a 00 00 00 07 00 00 00 00 00 1b"
    assert b"".join(APIS[12].encode(message, 4, 7)).hex(" ") == "00 00 00 0c 00 00 00 07 00 00 00 00 00 00 1b 00"
