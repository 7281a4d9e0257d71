"""Redacts credentials in URLs for messages, logs and listings. Pure.

    s3://KEY:SECRET@bucket/prefix?endpoint=http%3A%2F%2FU%3AP%40host%3A9000&region=eu-west-1&token=T
    s3://***@bucket/prefix?endpoint=http://***@host:9000&region=eu-west-1&token=***

Credentials have no place in these URLs, and a broker refuses to start with them. This serves what is shown before that, or of
refused URLs. Only listed query parameters are shown, because names of secret parameters can't be listed completely.

Invariant: a URL without any of these is shown unchanged; a redacted URL is redacted to itself.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "***"
# Query parameters whose values are shown, redacted in turn: they may hold a URL.
SHOWN_PARAMETERS: Final = frozenset({"endpoint", "region", "path_style"})
# How often a value is percent-decoded in search of a URL; one that is encoded more often is hidden.
DECODED_MAX: Final = 8
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+|(?:s3|https?):", re.IGNORECASE)
# A URL of a directory, whose path holds no credentials.
_DIRECTORY: Final = re.compile(r"file:(?!//[^/])", re.IGNORECASE)
# Schemes of well-formed URLs.
_WHOLE: Final = frozenset({"s3://", "http://", "https://"})
_NEXT_OF_LIST: Final = re.compile(r",(?=[A-Za-z]+://)")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z_-]{0,39}", re.ASCII)
_NO_PORT: Final = re.compile(r":(?![0-9]*\Z).*", re.DOTALL)


def shown_url(text: str) -> str:
    """Returns the URL, path or list of URLs with *** in the place of every credential."""
    return ",".join(map(_shown, _NEXT_OF_LIST.split(text)))


def _shown(url: str) -> str:
    found = _SCHEME.match(url)
    scheme = found[0] if found is not None else ""
    rest, mark, fragment = url[len(scheme) :].partition("#")
    if _DIRECTORY.match(url) or not (scheme or _forgot_its_scheme(url)):
        return url
    address, question, query = rest.partition("?")
    if "@" in query and "=" not in query.partition("@")[0]:  # a password with a question mark
        return scheme + HIDDEN
    whole = scheme.lower() in _WHOLE
    shown = _address(address, at_in_path=whole) + question + ("&".join(map(_parameter, query.split("&"))) if query else "")
    return scheme + shown + mark + (HIDDEN if fragment else "")


def _forgot_its_scheme(url: str) -> bool:
    """Returns whether a text without a scheme looks like KEY:SECRET@…, and not like a directory."""
    name, colon, after = url.partition(":")
    return bool(colon) and "/" not in name and "@" in after


def _address(address: str, *, at_in_path: bool) -> str:
    """Redacts `place`: authority and path. `at_in_path`: whether an @ in the path may be part of a name."""
    authority, slash, path = address.partition("/")
    if "@" in path and (":" in authority or not at_in_path):  # a password with a slash
        return f"{HIDDEN}@{address.rpartition('@')[2]}"
    for at in ("@", "%40"):
        if at in authority:
            authority = f"{HIDDEN}@{authority.rpartition(at)[2]}"
    if not authority.rpartition("@")[2].startswith("["):
        authority = _NO_PORT.sub(f":{HIDDEN}", authority)
    return authority + slash + path


def _parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    if name not in SHOWN_PARAMETERS:
        shown_name = name if not name or (equals and _NAME.fullmatch(name)) else HIDDEN
        return shown_name + equals + (HIDDEN if value else "")
    decoded = value
    for _ in range(DECODED_MAX):
        further = unquote(decoded)
        if further == decoded:
            redacted = shown_url(decoded)
            return text if redacted == decoded else name + equals + redacted
        decoded = further
    return name + equals + HIDDEN
