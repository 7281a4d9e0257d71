"""Signs readers in at an OpenID provider: the authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636, RFC 9207).

    /console/oidc/start     state, nonce, code verifier ─▶ sealed cookie       browser ─▶ authorization endpoint of the provider
    /console/oidc/callback  state of the cookie? ─▶ code, verifier ─▶ token endpoint ─▶ nonce of the ID token? ─▶ credentials

The credentials are the access token, or the ID token where the API does not accept the access token. The API verifies them with
each call (gateway/access/oidc.py). The ID token comes from the token endpoint itself, over TLS or the loopback, so its nonce is
checked without its signature (OpenID Connect Core 1.0, section 3.1.3.7, point 6).

Invariants: a code is exchanged only for the browser that began the flow. The broker keeps nothing of a flow. At most
ANSWER_BYTES_MAX of an answer are read, and no redirect of the provider is followed. Anyone may begin a flow and present its state
any number of times: the broker has at most EXCHANGES_MAX connections to the token endpoint, of which strangers never take all
(exchange_slots.py), and one for the discovery.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp
import jwt
import msgspec

from gateway.access.oidc import ANSWER_BYTES_MAX, ANSWER_TIMEOUT_S, LEEWAY_S, fetch_url, is_safe_url
from gateway.console.exchange_slots import AllTaken, ExchangeSlots
from gateway.console.page import link
from gateway.console.session_cookie import CookieSealer
from metadata.secret import Secret

# How long a reader may take at the provider.
FLOW_MS: Final = 600_000
# How long the provider's endpoints are remembered.
ENDPOINTS_AGE_S: Final = 600.0
# How long a failed discovery is remembered: until then sign-ins are refused without asking the provider.
FAILURE_AGE_S: Final = 15.0
# How long a browser is known after a sign-in.
KNOWN_MS: Final = 90 * 86_400_000
_RANDOM_BYTES: Final = 32
_TEXT_CHARACTERS_MAX: Final = 200

BUSY: Final = (
    "The broker exchanges as many codes with the provider as it may at the same time. Load this page again in a few seconds, or "
    "sign in with an API key."
)

Post = Callable[[str, Mapping[str, str], Mapping[str, str]], Awaitable[tuple[int, bytes]]]


class SignInRefused(Exception):
    """Says with a sentence why a sign-in at the provider failed. `status` is that of the page which shows it."""

    def __init__(self, sentence: str, *, status: int = 403) -> None:
        super().__init__(sentence)
        self.status = status


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the cookie of a reader says while the reader is at the provider."""

    state: str
    nonce: str
    code_verifier: str
    # The page to go on with.
    next: str
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"Flow(expires_at_ms={self.expires_at_ms})"


class KnownReader(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the cookie of a browser says in which a reader has signed in. It gives no rights."""

    # Names the reader without revealing who it is.
    reader: str
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"KnownReader(expires_at_ms={self.expires_at_ms})"


class OidcClient(NamedTuple):
    """Names this console at the provider."""

    issuer: str
    client_id: str
    # None for a public client, which proves itself by PKCE alone.
    secret: Secret | None
    # The URL of /console/oidc/callback, as the provider knows it.
    redirect: str
    scope: str


class Tokens(NamedTuple):
    """Holds what the provider has issued for a reader."""

    id_token: str
    # Empty where there is none.
    access_token: str
    # The reader, as the provider names it.
    subject: str = ""


class _Endpoints(NamedTuple):
    authorization: str
    token: str


class _Discovery:
    """Finds the provider's endpoints, and remembers them, or that they were not found.

    One task asks the provider for all callers who wait. It ends with its answer, or when its last caller is cancelled.
    """

    def __init__(self, issuer: str, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        # The endpoints, or why there are none.
        self._outcome: _Endpoints | str = ""
        self._until_s = float("-inf")
        self._asking: asyncio.Task[_Endpoints | str] | None = None
        self._waiting = 0

    async def endpoints(self) -> _Endpoints:
        """Returns the endpoints. Raises SignInRefused."""
        now_s = asyncio.get_running_loop().time
        outcome = self._outcome
        if now_s() >= self._until_s:
            outcome = await self._asked()
        if isinstance(outcome, str):
            raise SignInRefused(outcome)
        return outcome

    async def _asked(self) -> _Endpoints | str:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="discovery of the OpenID provider")
        asking = self._asking
        self._waiting += 1
        try:
            return await asyncio.shield(asking)
        finally:
            self._waiting -= 1
            if not self._waiting and self._asking is asking:
                self._asking = None
                asking.cancel()  # without effect where it has ended

    async def _ask(self) -> _Endpoints | str:
        outcome = await self._found()
        age_s = FAILURE_AGE_S if isinstance(outcome, str) else ENDPOINTS_AGE_S
        self._outcome, self._until_s = outcome, asyncio.get_running_loop().time() + age_s
        return outcome

    async def _found(self) -> _Endpoints | str:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                about = msgspec.json.decode(await self._fetch(self._issuer.rstrip("/") + "/.well-known/openid-configuration"))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError):
            return "The OpenID provider does not answer. An API key works meanwhile."
        found = [about.get(name) for name in ("authorization_endpoint", "token_endpoint")] if isinstance(about, dict) else []
        urls = [url for url in found if isinstance(url, str) and url.isascii() and url.isprintable() and is_safe_url(url)]
        if len(urls) != 2 or about.get("issuer") != self._issuer:
            return "The OpenID provider names no endpoints with https, or is not the issuer of the settings."
        return _Endpoints(*urls)


class OidcSignIn:
    """Begins and ends flows."""

    def __init__(
        self,
        client: OidcClient,
        sealer: CookieSealer,
        random_bytes: Callable[[int], bytes],
        *,
        known: CookieSealer,
        fetch: Callable[[str], Awaitable[bytes]] = fetch_url,
        post: Post | None = None,
    ) -> None:
        """`known` seals the cookies of known readers. `fetch` and `post` ask the provider; tests pass their own."""
        self._client = client
        self._sealer = sealer
        self._random_bytes = random_bytes
        self._discovery = _Discovery(client.issuer, fetch)
        self._post = post or post_form
        self._known = known
        self._slots = ExchangeSlots()

    async def begin(self, next_page: str, *, now_ms: int) -> tuple[str, str]:
        """Returns the address at the provider, and the value of the cookie. Raises SignInRefused.

        The sign-in goes on with the topics where the address of the next page does not fit into the cookie.
        """
        endpoints = await self._discovery.endpoints()
        state, nonce, code_verifier = (_base64url(self._random_bytes(_RANDOM_BYTES)) for _ in range(3))
        flow = Flow(state=state, nonce=nonce, code_verifier=code_verifier, next=next_page, expires_at_ms=now_ms + FLOW_MS)
        asked = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._client.redirect,
            "scope": self._client.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": _base64url(hashlib.sha256(code_verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        sign = "&" if "?" in endpoints.authorization else "?"
        try:
            cookie = self._sealer.seal(flow)
        except ValueError:
            cookie = self._sealer.seal(msgspec.structs.replace(flow, next=link("topics")))
        return f"{endpoints.authorization}{sign}{urlencode(asked)}", cookie

    def opened(self, cookie: str, *, now_ms: int) -> Flow | None:
        """Returns the flow of a cookie; None for one that is not of this cluster, or took too long."""
        return self._sealer.open(cookie, Flow, now_ms=now_ms)

    def known_reader(self, cookie: str, *, now_ms: int) -> str:
        """Returns the reader who has signed in at this browser; empty where none has."""
        held = self._known.open(cookie, KnownReader, now_ms=now_ms)
        return held.reader if held is not None else ""

    def known_cookie(self, tokens: Tokens, *, now_ms: int) -> str:
        """Returns the cookie of a browser in which the reader of these tokens has signed in."""
        reader = hashlib.sha256(tokens.subject.encode()).hexdigest()[:32]
        return self._known.seal(KnownReader(reader=reader, expires_at_ms=now_ms + KNOWN_MS))

    async def end(self, flow: Flow, query: Mapping[str, str], *, address: str = "", reader: str = "") -> Tokens:
        """Exchanges the code of the provider's answer for the reader of `known_reader`, at `address`. Raises SignInRefused."""
        if not hmac.compare_digest(query.get("state", "").encode(), flow.state.encode()):
            raise SignInRefused("The answer of the provider belongs to another sign-in. Sign in again.")
        if query.get("iss", self._client.issuer) != self._client.issuer:
            raise SignInRefused("The answer is of another provider. Sign in again.")
        if error := query.get("error", ""):
            said = query.get("error_description", "") or error
            raise SignInRefused(f"The provider refused the sign-in: {said[:_TEXT_CHARACTERS_MAX]}")
        if not (code := query.get("code", "")):
            raise SignInRefused("The provider's answer holds no code.")
        answer = await self._exchanged(code, flow, address, reader)
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(id_token, str):
            raise SignInRefused("The provider issued no ID token. The setting console_oidc_scope must hold openid.")
        subject = self._checked_subject(id_token, flow)
        return Tokens(id_token, access_token if isinstance(access_token, str) else "", subject)

    def _checked_subject(self, id_token: str, flow: Flow) -> str:
        """Returns the reader of an ID token of this flow. Raises SignInRefused."""
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token,
                options={"verify_signature": False, "verify_exp": True, "verify_aud": True, "verify_iss": True, "require": ["exp"]},
                audience=self._client.client_id,
                issuer=self._client.issuer,
                leeway=LEEWAY_S,
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise SignInRefused("The ID token of the provider has expired, or is for another client.") from None
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), flow.nonce.encode()):
            raise SignInRefused("The ID token of the provider belongs to another sign-in. Sign in again.")
        return str(claims.get("sub", ""))

    async def _exchanged(self, code: str, flow: Flow, address: str, reader: str) -> dict[str, Any]:
        client = self._client
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": client.redirect,
            "client_id": client.client_id,
            "code_verifier": flow.code_verifier,
        }
        headers = {"accept": "application/json"}
        if client.secret is not None:  # client_secret_basic (RFC 6749 §2.3.1)
            pair = f"{quote(client.client_id, safe='')}:{quote(client.secret.reveal(), safe='')}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        endpoints = await self._discovery.endpoints()
        try:
            with self._slots.taken(address=address, reader=reader):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    status, body = await self._post(endpoints.token, form, headers)
            answer = msgspec.json.decode(body)
        except AllTaken:
            raise SignInRefused(BUSY, status=503) from None
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError):
            raise SignInRefused("The provider's token endpoint did not answer, or not in JSON.") from None
        if status != 200 or not isinstance(answer, dict):
            error = answer.get("error") if isinstance(answer, dict) else None
            said = str(error)[:_TEXT_CHARACTERS_MAX] if error else f"it answers {status}"
            raise SignInRefused(f"The provider's token endpoint refused the code: {said}")
        return answer


async def post_form(url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Returns the status and the body. Raises aiohttp.ClientError; ValueError for a body too large."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url, data=form, headers=headers, allow_redirects=False) as answer,
    ):
        body = b""
        async for part in answer.content.iter_any():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
        return answer.status, body


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
