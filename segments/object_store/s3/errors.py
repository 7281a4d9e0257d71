"""Maps errors of S3, its client and the network. One question decides: was anything written?

    answer                                      create                        read, list
    ──────────────────────────────────────────  ────────────────────────────  ───────────
    412 PreconditionFailed                      AlreadyExists
    409, 500, 502, 504, other 5xx               OutcomeUnknown                Unavailable
    429, and 503 with an S3 error in its body   Throttled                     Throttled
    503 without one (from a proxy on the way)   OutcomeUnknown                Unavailable
    400 BadDigest and its kin                   Unavailable                   Unavailable
    404 NoSuchKey                                                             NotFound
    404 NoSuchBucket, 403, bad tokens           Denied                        Denied
    301, 307 with an S3 error in its body       Denied                        Denied
    3xx without one (from a proxy on the way)   OutcomeUnknown                Unavailable
    501, other 4xx                              Rejected                      Rejected
    no connection: refused, DNS, TLS, timeout   Unavailable                   Unavailable
    connection lost or silent after that        OutcomeUnknown                Unavailable
    no credentials                              Denied                        Denied

Does no I/O. Invariant: a create is called Unavailable only where the store said so, or where not one byte of it was sent. Messages
quote the code and the sentence of the store, never a header, a signature or a key id.
"""

from __future__ import annotations

import aiohttp
from botocore import exceptions as boto

from metadata.errors import (
    AlreadyExists,
    Denied,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
)

_CREDENTIALS = (
    "Correct the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of this machine or pod."
)
_PERMISSIONS = "Allow s3:PutObject, s3:GetObject and s3:DeleteObject on the prefix, and s3:ListBucket on the bucket."
_REGION = "Name the region of the bucket."
_CERTIFICATE = "Name the certificate authority of the endpoint in AWS_CA_BUNDLE, or correct the endpoint."
_SAME_BYTES = "Create it again with the same bytes; if it exists then, read it back."

_DENIED_HINTS = {
    "NoSuchBucket": "Make the bucket, or correct the bucket URL. Tidelog never makes a bucket.",
    "RequestTimeTooSkewed": "Set the clock of this machine.",
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"), _CREDENTIALS
    ),
}
_ARRIVED_DAMAGED = {"BadDigest", "InvalidDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.ConfigNotFound,
    boto.SSOError,
    boto.LoginError,
)
_OUR_OPERATIONS = {"PutObject", "GetObject", "ListObjectsV2", "DeleteObject"}
# Some servers name 60 or 120 s in every 503. Callers that wait at most 15 s, as for a seal, would then not repeat at all.
_RETRY_AFTER_MAX_S = 5.0


def translate(error: Exception, *, doing: str, url: str, key: str, writes: bool) -> TidelogError:
    """Returns the error of our tree for one of botocore, aiohttp or the operating system.

    `doing` is the verb for people (create, read, list, delete); `writes` says whether the request, once sent, may have changed
    the bucket.
    """
    what = f"can't {doing} {key} in {url}" if key else f"can't {doing} {url}"
    if isinstance(error, boto.ClientError):
        if http_status(error) == 412 and writes:
            return AlreadyExists(f"{key} exists already in {url}", key=key)
        return _answered(error, what, key, writes)
    if isinstance(error, _NO_CREDENTIALS):
        return Denied(f"{what}: {error}", hint=_CREDENTIALS, key=key)
    reason = _cause(error)
    if isinstance(error, boto.SSLError) and isinstance(_wrapped(error), aiohttp.ClientConnectorCertificateError):
        return Denied(f"{what}: {reason}", hint=_CERTIFICATE, key=key)
    if _nothing_was_sent(error):
        return Unavailable(f"{what}: no connection ({reason}); nothing was sent", key=key)
    return _perhaps(f"{what}: no answer ({reason})", key, writes)


def http_status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _answered(error: boto.ClientError, what: str, key: str, writes: bool) -> TidelogError:
    said, status = error.response.get("Error", {}), http_status(error)
    code = str(said.get("Code", ""))  # such as NoSuchKey; the status in digits where the answer had no body
    message = f"{what}: {said.get('Message') or 'no reason given'} ({status} {code})"
    if error.operation_name not in _OUR_OPERATIONS:  # the exchange of a token for credentials, before anything was sent
        return Unavailable(message, key=key) if status >= 500 else Denied(message, hint=_CREDENTIALS, key=key)
    if code in _DENIED_HINTS or status in {401, 403}:
        return Denied(message, hint=_DENIED_HINTS.get(code, _PERMISSIONS), key=key)
    if code in _ARRIVED_DAMAGED:
        return Unavailable(f"{message}; the bytes were damaged on their way, nothing was written", key=key)
    match status:
        case 404:
            return NotFound(message, key=key)
        case 413:
            return TooLarge(message, key=key)
        case 501:
            return Rejected(
                message, hint="This store does not honour create-only PUTs (If-None-Match: *). Use one that does.", key=key
            )
        case 429:
            return Throttled(message, retry_after_s=_retry_after_s(error), key=key)
        case 503 if code != "503":
            return Throttled(message, retry_after_s=_retry_after_s(error), key=key)
        case _ if 300 <= status < 400 or status >= 500 or status in {408, 409} or code == "RequestTimeout":
            return _perhaps(message, key, writes)
        case _:
            return Rejected(message, key=key)


def _perhaps(message: str, key: str, writes: bool) -> TidelogError:
    if writes:
        return OutcomeUnknown(f"{message}; it may have happened or not", hint=_SAME_BYTES, key=key)
    return Unavailable(message, key=key)


def _nothing_was_sent(error: Exception) -> bool:
    if isinstance(error, boto.ConnectTimeoutError | boto.ProxyConnectionError | boto.SSLError):
        return True
    return isinstance(error, boto.EndpointConnectionError) and isinstance(_wrapped(error), aiohttp.ClientConnectorError)


def _wrapped(error: Exception) -> object:
    """Returns the error of aiohttp inside one of botocore. botocore calls a reset in the middle of a body an
    EndpointConnectionError."""
    return error.kwargs.get("error") if isinstance(error, boto.BotoCoreError) else None


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    wrapped = _wrapped(error)
    if isinstance(wrapped, Exception) and str(wrapped):
        return str(wrapped)
    return str(error) or type(error).__name__


def _retry_after_s(error: boto.ClientError) -> float:
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return min(max(float(headers.get("retry-after", "1")), 0.0), _RETRY_AFTER_MAX_S)
    except ValueError:  # an HTTP date
        return 1.0
