"""What is wrong with a request as HTTP, before it means anything to the log. Pure.

They stand under Rejected in the error tree; error_codes.py has their status.
"""

from __future__ import annotations

from typing import Final

from metadata.errors import NotFound, Rejected

PATH_CHARACTERS_MAX: Final = 300
"""Of a path that is told back."""


class UnknownRoute(NotFound):
    code = "UNKNOWN_ROUTE"
    default_hint = "GET /openapi.json lists every route."


class MethodNotAllowed(Rejected):
    """405. The door adds an Allow header."""

    code = "METHOD_NOT_ALLOWED"


class NotAcceptable(Rejected):
    """406: no format of the answer is one that the client takes."""

    code = "NOT_ACCEPTABLE"


class UnsupportedMediaType(Rejected):
    """415: the body is of a type that the route does not read."""

    code = "UNSUPPORTED_MEDIA_TYPE"


class BodyTooSlow(Rejected):
    """408: the body came slower than body_bytes_per_second_min, and held memory that others wait for."""

    code = "BODY_TOO_SLOW"
    retryable = True
    default_hint = "Send smaller requests over a slow line."
