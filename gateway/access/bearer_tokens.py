"""Bearer tokens of an OpenID provider: JWTs, checked with the provider's own public keys.

    token ─▶ its kid ─▶ a key that is known? ─▶ signature, issuer, audience, times ─▶ the principal, until the token expires
                            └ no: the provider is asked once more, at most every ASK_AGAIN_S

    {issuer}/.well-known/openid-configuration ─▶ jwks_uri ─▶ keys, read again every KEYS_AGE_S

Only signatures with public keys are taken: a token that says `none`, or HMAC with the public key as its secret, is none (RFC 8725
§3.1). While the provider is away, known keys hold. Invariants: nothing of a token is believed before its signature was checked
with a key of the provider; no answer of the provider takes more than ANSWER_BYTES_MAX; a crowd of tokens with unknown keys asks
it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec

from gateway.access.settings import LOOPBACK
from metadata.acl import check_principal
from metadata.errors import TidelogError, Unauthenticated, Unavailable

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
TOKEN_CHARACTERS_MAX: Final = 12 << 10
ANSWER_BYTES_MAX: Final = 1 << 20
ANSWER_TIMEOUT_S: Final = 5.0
KEYS_AGE_S: Final = 600.0
ASK_AGAIN_S: Final = 15.0
LEEWAY_S: Final = 30
"""By which clocks may differ."""
KEYS_MAX: Final = 200

log = logging.getLogger(__name__)
Fetch = Callable[[str], Awaitable[bytes]]


class Verified(NamedTuple):
    principal: str
    expires_at_ms: int


class Terms(Protocol):
    """Of gateway/access/settings.py's AccessSettings."""

    @property
    def oidc_issuer(self) -> str: ...
    @property
    def oidc_audience(self) -> str: ...
    @property
    def oidc_principal_claim(self) -> str: ...


class BearerTokens:
    def __init__(self, terms: Terms, fetch: Fetch | None = None) -> None:
        """`fetch`: how the provider is asked; tests bring their own."""
        self._issuer = terms.oidc_issuer
        self._audience = terms.oidc_audience
        self._claim = terms.oidc_principal_claim
        self._fetch = fetch or fetched
        self._keys: dict[str, jwt.PyJWK] = {}
        self._asked_s = float("-inf")
        self._read_s = float("-inf")
        self._asking = asyncio.Lock()

    async def verify(self, token: str) -> Verified:
        """Unauthenticated for a token that is none of ours; Unavailable where the provider's keys can't be had."""
        key = await self._key_of(token)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired", hint="Get a new one from the provider.") from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token is not accepted: {_said(error)}", hint=_HINT) from None
        principal = claims.get(self._claim)
        if not isinstance(principal, str):
            raise Unauthenticated(f"the token names no principal: its claim {self._claim} is not text", hint=_HINT)
        try:
            check_principal(principal)
        except TidelogError:
            raise Unauthenticated(f"the token's claim {self._claim} can't name a principal", hint=_HINT) from None
        return Verified(principal, int(1000 * (float(claims["exp"]) + LEEWAY_S)))

    async def _key_of(self, token: str) -> jwt.PyJWK:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise Unauthenticated("the token is too long", hint=_HINT)
        try:
            head = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise Unauthenticated("the credentials are neither an API key nor a token", hint=_HINT) from None
        if head.get("alg") not in ALGORITHMS:
            raise Unauthenticated("the token is not signed with a public key", hint=_HINT)
        kid = head.get("kid")
        key = self._known(kid)
        if key is None or self._now_s() - self._read_s > KEYS_AGE_S:
            await self._ask(is_urgent=key is None)
            key = self._known(kid)
        if key is None:
            if not self._keys:
                raise Unavailable("the keys of the OpenID provider can't be had", hint="Retry with back-off.")
            raise Unauthenticated("the token is signed with a key that its provider does not know", hint=_HINT)
        return key

    def _known(self, kid: object) -> jwt.PyJWK | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) if isinstance(kid, str) else None

    async def _ask(self, *, is_urgent: bool) -> None:
        """Reads the provider's keys, unless that was tried a moment ago. What fails leaves those that are known."""
        wanted_s = self._now_s()
        async with self._asking:
            if self._read_s >= wanted_s or self._now_s() - self._asked_s < ASK_AGAIN_S:
                return
            self._asked_s = self._now_s()
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    found = await self._read()
            except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError, ValueError) as error:
                log.warning("the OpenID provider %s tells no keys: %s", self._issuer, error or type(error).__name__)
                return
            if found:
                self._keys, self._read_s = found, self._now_s()

    async def _read(self) -> dict[str, jwt.PyJWK]:
        about = msgspec.json.decode(await self._fetch(self._issuer.rstrip("/") + "/.well-known/openid-configuration"))
        if not isinstance(about, dict) or about.get("issuer") != self._issuer:
            raise ValueError("it calls itself otherwise than oidc_issuer")
        where = about.get("jwks_uri")
        if not isinstance(where, str) or not _is_safe(where):
            raise ValueError("its jwks_uri is no https URL")
        told = msgspec.json.decode(await self._fetch(where))
        keys: dict[str, jwt.PyJWK] = {}
        for each in (told.get("keys", []) if isinstance(told, dict) else [])[:KEYS_MAX]:
            if (key := _public_key(each)) is not None:
                keys[key.key_id or ""] = key
        return keys

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


_HINT: Final = "Show a token of the provider that this cluster trusts, for its audience, or an API key."


def _public_key(told: Any) -> jwt.PyJWK | None:
    """None for what signs nothing, or is a secret that two share."""
    if not isinstance(told, dict) or told.get("kty") not in {"RSA", "EC", "OKP"} or told.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK({name: value for name, value in told.items() if name != "d"})
    except (jwt.PyJWTError, ValueError, TypeError):
        return None


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def _said(error: Exception) -> str:
    """The library's words hold nothing of the token for these; for others only what kind of fault it is."""
    known = (jwt.InvalidAudienceError, jwt.InvalidIssuerError, jwt.ImmatureSignatureError, jwt.MissingRequiredClaimError)
    return str(error) if isinstance(error, known) else "its signature or its form is wrong"


async def fetched(url: str) -> bytes:
    """The body at a URL. Raises aiohttp.ClientError, ValueError."""
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
