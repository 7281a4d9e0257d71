"""Verifies bearer tokens (JWTs) of an OpenID provider with the provider's public keys.

    token ─▶ its kid ─▶ known key? ─▶ signature, issuer, audience, times ─▶ principal, until the token expires
                          └ no: read the provider's keys, at most every ASK_AGAIN_S        └ or its key is removed

    {issuer}/.well-known/openid-configuration ─▶ jwks_uri ─▶ keys, read every KEYS_AGE_S by a task of their own, which no
    disconnected client cancels

Only signatures of public-key algorithms are accepted; `none`, and HMAC with a public key as its secret, are not (RFC 8725 §3.1).
While the provider can't be read, known keys remain valid, and it is asked every ASK_AGAIN_S.

Invariants: no claim is used before the signature is verified. At most ANSWER_BYTES_MAX of an answer are read. Any number of tokens
with unknown keys causes one request to the provider.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec

from gateway.access.settings import LOOPBACK, AccessSettings
from metadata.access.acl import check_principal
from metadata.errors import TidelogError, Unauthenticated, Unavailable

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# Bounds of a token, and of an answer of the provider.
TOKEN_CHARACTERS_MAX: Final = 12 << 10
ANSWER_BYTES_MAX: Final = 1 << 20
ANSWER_TIMEOUT_S: Final = 5.0
# What a waiting call allows beyond ANSWER_TIMEOUT_S, for the loop.
SCHEDULING_S: Final = 1.0
# How often keys are read, and how often at most when a token names an unknown key.
KEYS_AGE_S: Final = 600.0
ASK_AGAIN_S: Final = 15.0
# By how much the clocks of broker and provider may differ.
LEEWAY_S: Final = 30
KEYS_MAX: Final = 200
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)

log = logging.getLogger(__name__)
Fetch = Callable[[str], Awaitable[bytes]]


class VerifiedToken(NamedTuple):
    """Holds what a valid token proves."""

    principal: str
    expires_at_ms: int
    # Returns whether the provider still publishes the key that signed the token.
    holds: Callable[[], bool]


class _Key(NamedTuple):
    document: dict[str, Any]
    jwk: jwt.PyJWK


class OidcVerifier:
    """Verifies tokens and follows the provider's keys. Its owner runs `run()` as a task."""

    def __init__(self, settings: AccessSettings, fetch: Fetch | None = None) -> None:
        """`fetch` returns the body at a URL; tests pass their own."""
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._claim = settings.oidc_principal_claim
        self._fetch = fetch or fetch_url
        self._keys: dict[str, _Key] = {}
        # Whether the last reading succeeded.
        self._is_current = False
        # Whether the keys were read at all; a provider may list none.
        self._was_read = False
        # Ids of keys that the provider no longer lists.
        self._removed: set[str] = set()
        # When the keys may be read again, by the loop's clock; infinite while they are being read.
        self._next_s = float("-inf")
        self._wanted = asyncio.Event()
        self._answered = asyncio.Event()  # set and replaced after each reading
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls `changed` when keys were removed or replaced. It must not block or raise."""
        self._subscribers.append(changed)

    async def run(self) -> None:
        """Reads the provider's keys at once, then every KEYS_AGE_S or on demand, until cancelled. Retries after ASK_AGAIN_S."""
        while True:
            self._wanted.clear()
            self._next_s = float("inf")
            self._is_current = await self._read_again()
            self._next_s = self._now_s() + ASK_AGAIN_S
            answered, self._answered = self._answered, asyncio.Event()
            answered.set()
            await asyncio.sleep(ASK_AGAIN_S)
            if self._is_current:
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEYS_AGE_S - ASK_AGAIN_S):
                        await self._wanted.wait()

    async def verify(self, token: str) -> VerifiedToken:
        """Returns what the token proves. Raises Unauthenticated; Unavailable while no key of the provider is known."""
        key = await self._key_of(token)
        try:
            claims = jwt.decode(
                token,
                key.jwk,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired", hint="Get a new one from the provider.") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthenticated(f"the token is not accepted: {_reason(error)}", hint=_HINT) from None
        principal = claims.get(self._claim)
        if not isinstance(principal, str):
            raise Unauthenticated(f"the token names no principal: its claim {self._claim} is not text", hint=_HINT)
        try:
            check_principal(principal)
        except TidelogError:
            raise Unauthenticated(f"the token's claim {self._claim} can't name a principal", hint=_HINT) from None
        expires_at_ms = int(min(1000 * (float(claims["exp"]) + LEEWAY_S), 2.0**53))
        return VerifiedToken(principal, expires_at_ms, lambda: any(key is each for each in self._keys.values()))

    async def _key_of(self, token: str) -> _Key:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise Unauthenticated("the token is too long", hint=_HINT)
        if not _TOKEN.fullmatch(
            token
        ):  # some versions of PyJWT ignore characters outside Base64, so one token would be cached under many texts
            raise Unauthenticated("the credentials are neither an API key nor a token", hint=_HINT)
        try:
            head = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("the credentials are neither an API key nor a token", hint=_HINT) from None
        if head.get("alg") not in ALGORITHMS:
            raise Unauthenticated("the token is not signed with a public key", hint=_HINT)
        kid = head.get("kid")
        key = self._known(kid)
        if key is None:
            is_certain = await self._ask() or not isinstance(kid, str) or kid in self._removed
            key = self._known(kid)
            if key is None and not (is_certain and self._was_read):
                raise Unavailable(
                    "the broker could not ask the OpenID provider for the key of this token yet", hint="Retry with back-off."
                )
        if key is None:
            raise Unauthenticated("the token is signed with a key that its provider does not know", hint=_HINT)
        return key

    def _known(self, kid: object) -> _Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) if isinstance(kid, str) else None

    async def _ask(self) -> bool:
        """Requests a reading of the keys and waits for it, unless the last was less than ASK_AGAIN_S ago.

        Returns whether the provider was read.
        """
        if self._next_s > self._now_s() and self._next_s != float("inf"):
            return False
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S + SCHEDULING_S):
                await self._answered.wait()
                return self._is_current
        return False

    async def _read_again(self) -> bool:
        """Reads the keys, and returns whether that succeeded; after a failure the known keys remain."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                found = await self._read()
        except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            log.warning("reading keys of the OpenID provider failed issuer=%s: %s", self._issuer, error or type(error).__name__)
            return False
        lost = any(found.get(kid) is not key for kid, key in self._keys.items())
        removed = {kid for kid in (*self._removed, *self._keys) if kid not in found}
        self._removed = removed if len(removed) <= KEYS_MAX else set()
        self._keys, self._was_read = found, True
        for changed in self._subscribers if lost else ():
            changed()
        return True

    async def _read(self) -> dict[str, _Key]:
        about = msgspec.json.decode(await self._fetch(self._issuer.rstrip("/") + "/.well-known/openid-configuration"))
        if not isinstance(about, dict) or about.get("issuer") != self._issuer:
            raise ValueError("its issuer differs from oidc_issuer")
        where = about.get("jwks_uri")
        if not isinstance(where, str) or not is_safe_url(where):
            raise ValueError("its jwks_uri is not an https URL")
        document = msgspec.json.decode(await self._fetch(where))
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list):
            raise ValueError("its jwks_uri answers no list of keys")
        keys: dict[str, _Key] = {}
        for each in listed[:KEYS_MAX]:
            if (jwk := _public_key(each)) is not None:
                kid = jwk.key_id or ""
                held = self._keys.get(kid)
                keys[kid] = held if held is not None and held.document == each else _Key(each, jwk)
        return keys

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


_HINT: Final = "Show a token of the provider that this cluster trusts, for its audience, or an API key."


def _public_key(document: Any) -> jwt.PyJWK | None:
    """Returns a public signing key; None for keys of other uses and for shared secrets."""
    if not isinstance(document, dict) or document.get("kty") not in {"RSA", "EC", "OKP"} or document.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK({name: value for name, value in document.items() if name != "d"})
    except (jwt.PyJWTError, ValueError, TypeError):
        return None


def is_safe_url(url: str) -> bool:
    """Returns whether a provider may be asked at this URL: https, or http on the loopback."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def _reason(error: Exception) -> str:
    """Returns the library's message where it holds nothing of the token, else a general one."""
    known = (jwt.InvalidAudienceError, jwt.InvalidIssuerError, jwt.ImmatureSignatureError, jwt.MissingRequiredClaimError)
    return str(error) if isinstance(error, known) else "its signature or its form is wrong"


async def fetch_url(url: str) -> bytes:
    """Returns the body at a URL. Raises aiohttp.ClientError; ValueError for another status than 200, or a body too large."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as answer:
        answer.raise_for_status()
        if answer.status != 200:
            raise ValueError(f"{url} answers {answer.status}")
        body = await answer.content.read(ANSWER_BYTES_MAX + 1)
        while not answer.content.at_eof() and len(body) <= ANSWER_BYTES_MAX:
            body += await answer.content.read(ANSWER_BYTES_MAX + 1 - len(body))
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
        return body
