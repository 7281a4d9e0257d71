"""Signs requests to S3 with AWS Signature Version 4, the payload left out. Pure: the caller brings the time and the credentials.

    method, path, headers ─▶ canonical request ─▶ string to sign ─▶ HMAC with the key of the day ─▶ Authorization

The payload is not signed: the caller sends its CRC-32C in a header, and TLS protects both. Requests have no query.
Source: "Signature Calculations for the Authorization Header" in AWS's reference of the S3 API.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_PAYLOAD: Final = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Holds one set of credentials. Temporary ones have a token."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "S3Credentials(…)"


def signed_headers(
    method: str, path: str, headers: Mapping[str, str], *, region: str, credentials: S3Credentials, now: datetime
) -> dict[str, str]:
    """Returns `headers` with those of the signature.

    `path` is percent-encoded, and sent as it is. `headers` have names in lower case and hold `host`; all of them are signed.
    `now` is in UTC.
    """
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "x-amz-content-sha256": _PAYLOAD, "x-amz-date": stamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = sorted(signed)
    listed = ";".join(names)
    lines = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in names)
    canonical = f"{method}\n{path}\n\n{lines}\n{listed}\n{_PAYLOAD}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(_key(credentials.secret_key, stamp[:8], region), to_sign.encode(), "sha256").hex()
    signed["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={listed}, Signature={signature}"
    )
    return signed


@lru_cache(maxsize=8)
def _key(secret_key: str, day: str, region: str) -> bytes:
    """Returns the signing key, which holds for a day."""
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
