"""Answers ApiVersions: the APIs and versions of this broker. Clients may ask before they authenticate.

A request in a version that this broker does not know is answered in version 0, with UNSUPPORTED_VERSION and the range of
ApiVersions itself, so that the client asks again in a version that both know (KIP-511). If the broker closed the connection, the
client would retry in the same version.

Source: KIP-35, KIP-511
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode
from gateway.kafka.protocol.client_messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, encode_api_versions_response
from segments.object_store.interface import Buffer

API_VERSIONS: Final = 18
# From here on a client names its software.
SOFTWARE_SINCE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?", re.ASCII)

Versions = Mapping[int, tuple[int, int]]


def answer_api_versions(versions: Versions, call: KafkaCall, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Returns the APIs and versions that are served; INVALID_REQUEST if the client names its software wrongly (KIP-511)."""
    if call.version >= SOFTWARE_SINCE:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=_api_keys(versions))


def unsupported_version(versions: Versions, correlation_id: int) -> Sequence[Buffer]:
    """Returns the answer to ApiVersions in a version that this broker does not know."""
    keys = [each for each in _api_keys(versions) if each.api_key == API_VERSIONS]
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
    return encode_api_versions_response(response, 0, correlation_id)


def _api_keys(versions: Versions) -> list[ApiVersion]:
    return [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in versions.items()]
