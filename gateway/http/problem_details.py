"""Encodes errors as RFC 9457 problem details, application/problem+json. Pure.

    {"type": "urn:tidelog:error:THROTTLED", "title": "Throttled", "status": 429, "detail": "…", "instance": "/v1/topics/…",
     "code": "THROTTLED", "retryable": true, "nothing_was_written": true, "hint": "Retry with back-off.", "request_id": "…"}

`code` is stable, and the same at every listener. The error's `details` (offsets, names, sizes) are further members, and never
replace one of those above. The error of one partition within the results of a produce request has the same members except those
that describe the response (type, title, status, instance, request_id).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.error_codes import MethodNotAllowed
from metadata.errors import OutOfRange, Throttled, TidelogError, Unauthenticated

CONTENT_TYPE: Final = b"application/problem+json"
# Retry-After of errors that may be retried at once, for clients that retry only with this header.
RETRY_AFTER_S: Final = 1

Member = str | int | float | bool

_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")


def error_members(error: TidelogError) -> dict[str, Member]:
    """Returns the members of an error that stand in every answer with an error."""
    return {
        **error.details,
        "code": error.code,
        "detail": error.message,
        "retryable": error.retryable,
        "nothing_was_written": error.nothing_was_written,
        "hint": error.hint,
    }


def problem(error: TidelogError, *, status: int, path: str, request_id: str) -> bytes:
    """Encodes the body of an answer whose status is an error."""
    return msgspec.json.encode(
        {
            **error_members(error),
            "type": f"urn:tidelog:error:{error.code}",
            "title": _WORD_START.sub(" ", type(error).__name__).capitalize(),
            "status": status,
            "instance": path,
            "request_id": request_id,
        }
    )


def problem_headers(error: TidelogError, *, status: int) -> list[tuple[bytes, bytes]]:
    """Returns the headers of an error: its content type, the time to retry, the offsets of the log."""
    headers = [(b"content-type", CONTENT_TYPE)]
    if status in {429, 503}:
        retry_after_s = error.retry_after_s if isinstance(error, Throttled) else RETRY_AFTER_S
        headers.append((b"retry-after", b"%d" % max(1, round(retry_after_s))))
    if isinstance(error, Unauthenticated):  # RFC 9110 §11.6.1
        headers.append((b"www-authenticate", b'Bearer realm="tidelog", Basic realm="tidelog"'))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", str(error.details["allow"]).encode()))
    if isinstance(error, OutOfRange) and {"log_start_offset", "high_watermark"} <= error.details.keys():
        start, end = int(error.details["log_start_offset"]), int(error.details["high_watermark"])
        # RFC 9110 §14.4: the unsatisfied-range form has the complete length; the headers below have both ends.
        headers.append((b"content-range", b"offsets */%d" % end))
        headers.append((b"tidelog-log-start-offset", b"%d" % start))
        headers.append((b"tidelog-high-watermark", b"%d" % end))
    return headers
