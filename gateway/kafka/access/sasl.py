"""Parses the messages of SASL PLAIN and OAUTHBEARER, and keeps the SASL state of a connection. Pure.

PLAIN          [authzid] NUL authcid NUL passwd                              RFC 4616
OAUTHBEARER    n,[a=authzid],^Aauth=Bearer token^A[name=value^A …]^A         RFC 7628, KIP-255
SCRAM          scram.py                                                      RFC 5802
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from metadata.errors import Unauthenticated

if TYPE_CHECKING:
    from gateway.access.authorization import Principal

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
# The client answers this challenge with one byte, ^A. Then the exchange has failed (RFC 7628 §3.2.3).
OAUTH_REFUSAL: Final = b'{"status":"invalid_token"}'
_OAUTH: Final = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\x00\x01]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01", re.DOTALL
)
_BEARER: Final = re.compile(rb"(?i:bearer) +([\x21-\x7e]+) *")


class PlainCredentials(NamedTuple):
    """The user and password of a PLAIN message."""

    username: str
    password: str


class OAuthCredentials(NamedTuple):
    """The token of an OAUTHBEARER message, and the principal that the client names."""

    token: str
    # The principal that the client names; empty: that of the token.
    authorization_id: str


@dataclass(slots=True)
class SaslSession:
    """The SASL state of one connection."""

    # The mechanism of the present exchange; empty without one.
    mechanism: str = ""
    # Whether tokens come without headers: after SaslHandshake of version 0.
    is_bare: bool = False
    # The exchange of a mechanism that takes more than one message.
    exchange: object | None = None
    # The principal that was first authenticated by SASL on this connection. A later exchange must prove the same principal
    # (KIP-368).
    proven: Principal | None = None
    # When requests are refused until the client has authenticated again, by the loop's clock; None: never.
    ends_s: float | None = None


def parse_plain(message: bytes) -> PlainCredentials:
    """Returns the credentials of a PLAIN message. Raises Unauthenticated."""
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise Unauthenticated("the PLAIN message does not have three parts")
    try:
        authorization_id, username, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise Unauthenticated("the PLAIN message is not UTF-8") from None
    if not username or not password:
        raise Unauthenticated("the PLAIN message has no username or no password")
    if authorization_id not in {"", username}:
        raise Unauthenticated("the PLAIN message asks for another identity than its username")
    return PlainCredentials(username, password)


def parse_oauth(message: bytes) -> OAuthCredentials:
    """Returns the token of an OAUTHBEARER message. Raises Unauthenticated."""
    found = _OAUTH.fullmatch(message)
    if found is None:
        raise Unauthenticated("the OAUTHBEARER message is malformed")
    values = [pair[5:] for pair in found["pairs"].split(b"\x01") if pair.startswith(b"auth=")]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        raise Unauthenticated("the OAUTHBEARER message holds no bearer token")
    try:
        authorization_id = (found["authzid"] or b"").decode()
    except UnicodeDecodeError:
        raise Unauthenticated("the OAUTHBEARER message is not UTF-8") from None
    return OAuthCredentials(bearer[1].decode("ascii"), authorization_id.replace("=2C", ",").replace("=3D", "="))
