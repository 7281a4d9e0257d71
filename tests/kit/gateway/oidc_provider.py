"""A small OpenID provider on the loopback: the authorization code flow with PKCE, strict as RFC 7636 and 6749 want it.

Each reader who comes is signed in at once, as `subject`. Tests change what it issues, and see what it was asked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import unquote, urlencode

import jwt
import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

AUDIENCE, CLIENT_ID, CLIENT_SECRET = "tidelog", "the console", "s:cret/+"
KEY = ec.generate_private_key(ec.SECP256R1())


class OidcProvider:
    """Answers discovery, keys, the authorization endpoint and the token endpoint."""

    def __init__(self, *, redirect: str, host: str = "127.0.0.1") -> None:
        self.redirect = redirect
        self.issuer = f"http://{host}:0"
        self.subject = "ann"
        self.secret: str | None = CLIENT_SECRET
        # What the next tokens hold beside the claims of each; None leaves one out.
        self.id_claims: dict[str, Any] = {}
        self.access_claims: dict[str, Any] = {}
        # The access token in place of a JWT.
        self.opaque_access_token: str | None = None
        # The error that the authorization endpoint returns.
        self.error = ""
        self.refused: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._host = host

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        return app

    async def serve(self) -> web.AppRunner:
        runner = web.AppRunner(self.application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://{self._host}:{runner.addresses[0][1]}"
        return runner

    async def _discovery(self, request: web.Request) -> web.Response:
        urls = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return web.json_response({"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in urls.items()})

    async def _keys(self, request: web.Request) -> web.Response:
        jwk = msgspec.json.decode(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
        return web.json_response({"keys": [jwk | {"kid": "one", "use": "sig", "alg": "ES256"}]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        wanted = {"response_type": "code", "client_id": CLIENT_ID, "redirect_uri": self.redirect, "code_challenge_method": "S256"}
        if any(asked.get(name) != value for name, value in wanted.items()) or "openid" not in asked.get("scope", "").split():
            self.refused.append(f"authorize: {asked}")
            return web.Response(status=400, text="this client may not ask so")
        answer = {"state": asked["state"], "iss": self.issuer}
        if self.error:
            answer |= {"error": self.error, "error_description": "<b>not today</b>"}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = asked
            answer["code"] = code
        raise web.HTTPFound(f"{self.redirect}?{urlencode(answer)}")

    async def _token(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        asked = self._codes.pop(str(form.get("code", "")), None)
        why = self._why_not(request.headers.get("authorization", ""), form, asked)
        if why or asked is None:
            self.refused.append(why)
            return web.json_response({"error": why}, status=400)
        base = {"iss": self.issuer, "sub": self.subject, "exp": time.time() + 600}
        id_token = _signed(base | {"aud": CLIENT_ID, "nonce": asked["nonce"]} | self.id_claims)
        access_token = self.opaque_access_token or _signed(base | {"aud": AUDIENCE} | self.access_claims)
        return web.json_response({"token_type": "Bearer", "id_token": id_token, "access_token": access_token})

    def _why_not(self, authorization: str, form: dict[str, Any], asked: dict[str, str] | None) -> str:
        if self.secret is not None:
            client_id, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            if (unquote(client_id), unquote(secret)) != (CLIENT_ID, self.secret):
                return "invalid_client"
        if asked is None or form.get("grant_type") != "authorization_code" or form.get("redirect_uri") != self.redirect:
            return "invalid_grant"
        digest = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return "invalid_grant"
        return ""


def _signed(claims: dict[str, Any]) -> str:
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, KEY, algorithm="ES256", headers={"kid": "one"})


@asynccontextmanager
async def serving(provider: OidcProvider) -> Any:
    runner = await provider.serve()
    try:
        yield provider
    finally:
        await runner.cleanup()


@contextmanager
def serving_in_a_thread(provider: OidcProvider) -> Iterator[OidcProvider]:
    """For tests that cannot run an event loop themselves."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(provider.serve(), loop).result(30)
    try:
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
