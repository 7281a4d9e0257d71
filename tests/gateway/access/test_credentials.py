"""The forms of credentials through a real broker, and what is remembered of them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.access import authentication, oidc
from gateway.access.authentication import Authenticator
from gateway.access.oidc import fetch_url
from gateway.access.settings import AccessSettings
from gateway.proto import admin_pb2
from metadata.access.acl import Rights
from metadata.access.api_key import ApiKey, new_key
from metadata.errors import Unauthenticated
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, guarded, serve

PROVIDER_KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.slow
def test_a_key_may_be_shown_in_each_of_its_forms(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        _, key_id, secret = ADMIN_KEY.split("_")
        for shown in (
            f"Bearer {ADMIN_KEY}",
            f"bearer {ADMIN_KEY}",
            f"Basic {base64.b64encode(f'{key_id}:{secret}'.encode()).decode()}",
            f"Basic {base64.b64encode(f'{key_id}:{ADMIN_KEY}'.encode()).decode()}",
        ):
            assert (await at.http.get("/v1/keys", authorization=shown)).status == 200
            call: Any = at.channel.unary_unary("/tidelog.v1.Access/ListKeys")
            await call(admin_pb2.ListKeysRequest().SerializeToString(), metadata=(("authorization", shown),))
        for wrong in (
            ADMIN_KEY,
            f"Digest {ADMIN_KEY}",
            f"Bearer {ADMIN_KEY}0",
            "Basic",
            "Bearer",
            "Basic é",
            "Bearer " + "x" * 20_000,
        ):
            answer = await at.http.ask("GET", "/v1/keys", headers={"authorization": wrong})
            assert answer.status == 401, wrong
            assert b"x" * 100 not in answer.body

    serve(tmp_path, scenario)


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """The URL of an OpenID provider on this machine."""
    reported = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PROVIDER_KEY.public_key())) | {"kid": "k", "use": "sig"}
    issuer = ""

    async def about(_: web.Request) -> web.Response:
        return web.json_response({"issuer": issuer, "jwks_uri": f"{issuer}/keys"})

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [reported]})

    async def moved(_: web.Request) -> web.Response:
        raise web.HTTPFound("/keys")

    async def endless(_: web.Request) -> web.Response:
        return web.Response(body=b" " * (oidc.ANSWER_BYTES_MAX + 1))

    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", about)
    app.router.add_get("/keys", keys)
    app.router.add_get("/moved", moved)
    app.router.add_get("/endless", endless)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        issuer = f"http://{host}:{port}"
        yield issuer
    finally:
        await runner.cleanup()


@pytest.mark.slow
def test_a_token_of_the_provider_opens_what_an_acl_allows_its_subject(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with provider() as issuer, guarded(tmp_path, oidc_issuer=issuer, oidc_audience="tidelog") as at:
            said = {"iss": issuer, "aud": "tidelog", "sub": "billing", "exp": time.time() + 600}
            token = jwt.encode(said, PROVIDER_KEY, algorithm="ES256", headers={"kid": "k"})
            await at.as_admin("POST", "/v1/topics", json={"name": "orders"})
            assert (await at.http.get("/v1/topics/orders", **bearer(token))).status == 403
            await at.allow("billing", "read", "topic", "orders")
            assert (await at.http.get("/v1/topics/orders", **bearer(token))).status == 200
            await at.call("/tidelog.v1.Topics/GetTopic", admin_pb2.GetTopicRequest(name="orders"), token)
            soon = said | {"exp": time.time() - oidc.LEEWAY_S + 1}
            ends = jwt.encode(soon, PROVIDER_KEY, algorithm="ES256", headers={"kid": "k"})
            path = "/v1/topics/orders/partitions/0/records?wait_ms=50000"
            assert (await at.http.get(path, **bearer(ends))).status == 401
            refused = await at.http.get("/v1/topics/orders", **bearer(token[:-6] + "AAAAAA"))
            assert (refused.status, refused.json["code"]) == (401, "UNAUTHENTICATED")
            assert token.rpartition(".")[2] not in at.audit_file.read_text()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.slow
def test_responses_of_a_provider_are_bounded_and_its_redirects_are_refused() -> None:
    async def scenario() -> None:
        async with provider() as issuer:
            assert b"keys" in await fetch_url(f"{issuer}/keys")
            for wrong in ("moved", "endless", "nothing"):
                with pytest.raises((ValueError, aiohttp.ClientError)):
                    await fetch_url(f"{issuer}/{wrong}")

    asyncio.run(scenario())


class Book:
    version = 0

    def __init__(self) -> None:
        self.keys: dict[str, ApiKey] = {}

    def stale_error(self) -> None:
        return None

    def key(self, key_id: str) -> ApiKey | None:
        return self.keys.get(key_id)

    async def catch_up(self, timeout_s: float, *, anonymous: bool = False) -> bool:
        return True

    def rights(self, principal: str) -> Rights:
        return Rights(())

    def scram_user(self, user: str) -> None:
        return None


def test_credentials_are_remembered_with_a_bound_and_only_while_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_MAX", 3)
    book = Book()
    endpoint = Authenticator(AccessSettings(), book, now_ms=lambda: 5)
    texts = []
    for number in range(5):
        key, text = new_key(principal="a", id_bytes=bytes([number] * 8), secret_bytes=bytes(32), now_ms=1)
        book.keys[key.key_id] = key
        texts.append(f"Bearer {text.reveal()}")

    async def scenario() -> None:
        callers = [await endpoint.caller(text, None) for text in texts]
        assert [endpoint.known(text) is not None for text in texts] == [False, False, True, True, True]
        assert await endpoint.caller(texts[4], None) is callers[4]
        with pytest.raises(Unauthenticated):
            await endpoint.caller(texts[0] + "0", None)
        assert len(endpoint._known) == 3
        del book.keys["04" * 8]
        assert endpoint.known(texts[4]) is None
        with pytest.raises(Unauthenticated):
            await endpoint.caller(texts[4], None)
        with pytest.raises(Unauthenticated):
            callers[4].check_counts()

    asyncio.run(scenario())
