"""Seals the session of a reader into a cookie, which any broker of the cluster can open. Pure.

    cookie = base64url(nonce ‖ AES-256-GCM(key, nonce, {"credentials":"Bearer tlk_…","csrf_token":"…","expires_at_ms":…}))
    key    = HKDF-SHA256(the cluster's secret, "tidelog console session")

The broker keeps no sessions. The credentials are checked again with each call, so a session ends when its key is revoked.
Invariant: a cookie that this cluster has not sealed, or that has expired, opens as None.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from metadata.secret import Secret

# Browsers keep cookies of 4,096 bytes, name and attributes included.
COOKIE_CHARACTERS_MAX: Final = 3_900
SESSION_MS: Final = 8 * 3_600_000
_NONCE_BYTES: Final = 12
_TOKEN_BYTES: Final = 18
_PURPOSE: Final = b"tidelog console session"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the cookie of a reader says."""

    # The `authorization` header of the reader's calls; empty without authentication, and for a client certificate.
    credentials: str
    # Each form of the session carries it.
    csrf_token: str
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"Session(expires_at_ms={self.expires_at_ms})"


class Expiring(Protocol):
    """Is what a cookie holds: a msgspec.Struct with an end."""

    @property
    def expires_at_ms(self) -> int: ...


T = TypeVar("T", bound=Expiring)


class CookieSealer:
    """Seals structs into cookies of one purpose, and opens them."""

    def __init__(self, secret: Secret, random_bytes: Callable[[int], bytes], *, purpose: bytes) -> None:
        """`secret` is the same at all brokers of the cluster. A cookie of another purpose opens as None."""
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret.reveal().encode())
        self._cipher = AESGCM(key)
        self._random_bytes = random_bytes
        self._purpose = purpose

    def seal(self, content: Expiring) -> str:
        """Returns the value of a cookie. Raises ValueError if it would be too long for one."""
        nonce = self._random_bytes(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, msgspec.json.encode(content), self._purpose)
        value = base64.urlsafe_b64encode(nonce + sealed).decode("ascii")
        if len(value) > COOKIE_CHARACTERS_MAX:
            raise ValueError(f"the {type(content).__name__.lower()} does not fit into a cookie")
        return value

    def open(self, value: str, kind: type[T], *, now_ms: int) -> T | None:
        """Returns what was sealed; None for a value that this cluster has not sealed for this purpose, or that has expired.

        A cookie of another version of Tidelog may hold another struct: it opens as None as well.
        """
        if not value or len(value) > COOKIE_CHARACTERS_MAX:
            return None
        try:
            raw = base64.b64decode(value, altchars=b"-_", validate=True)
            # The last character of base64 may carry bits that the decoder leaves out: one session has one cookie.
            if base64.urlsafe_b64encode(raw) != value.encode():
                return None
            content = msgspec.json.decode(self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], self._purpose), type=kind)
        except (binascii.Error, ValueError, InvalidTag):  # ValueError: also msgspec.DecodeError
            return None
        return content if now_ms < content.expires_at_ms else None


class SessionSealer:
    """Seals sessions into cookies, and opens them."""

    def __init__(self, secret: Secret, random_bytes: Callable[[int], bytes]) -> None:
        """`secret` is the same at all brokers of the cluster."""
        self._sealer = CookieSealer(secret, random_bytes, purpose=_PURPOSE)
        self._random_bytes = random_bytes

    def new_session(self, credentials: str, *, now_ms: int) -> Session:
        """Returns a session that lasts SESSION_MS from now."""
        token = base64.urlsafe_b64encode(self._random_bytes(_TOKEN_BYTES)).decode("ascii")
        return Session(credentials=credentials, csrf_token=token, expires_at_ms=now_ms + SESSION_MS)

    def seal(self, session: Session) -> str:
        """Returns the value of a cookie. Raises ValueError if the credentials are too long for one."""
        return self._sealer.seal(session)

    def open(self, value: str, *, now_ms: int) -> Session | None:
        """Returns the session of a cookie; None for one that is not of this cluster, or has expired."""
        return self._sealer.open(value, Session, now_ms=now_ms)
