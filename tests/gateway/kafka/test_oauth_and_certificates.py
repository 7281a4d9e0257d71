"""Kafka clients authenticate with tokens of an OpenID provider, and with client certificates."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.kafka.access.authentication import FAILURE_TEXT
from gateway.net.tls.settings import TlsSettings
from tests.gateway.kafka.test_plain import SASL_AUTHENTICATION_FAILED, logged_in
from tests.kit.certificates import make_certificates
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, guarded
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller
from tests.kit.gateway.small_broker import PATIENCE_S

pytestmark = pytest.mark.slow
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
AUDIENCE = "tidelog"


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """Serves the discovery and the keys of an OpenID provider. Its issuer is given."""
    reported = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "one", "use": "sig"}
    issuer = ""

    async def discovery(_: web.Request) -> web.Response:
        return web.json_response({"issuer": issuer, "jwks_uri": f"{issuer}/keys"})

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [reported]})

    app = web.Application()
    app.add_routes([web.get("/.well-known/openid-configuration", discovery), web.get("/keys", keys)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield issuer
    finally:
        await runner.cleanup()


def token(issuer: str, principal: str = "billing", *, lasts_s: float = 600.0) -> str:
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": principal, "exp": time.time() + lasts_s}
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "one"})


async def by_token(client: KafkaCaller, text: str, authorization_id: str = "") -> Any:
    handshake = await client.ask("SaslHandshake", 1, mechanism="OAUTHBEARER")
    assert handshake.error_code == 0, handshake.mechanisms
    asked = f"a={authorization_id}" if authorization_id else ""
    return await client.ask("SaslAuthenticate", 2, auth_bytes=f"n,{asked},\x01auth=Bearer {text}\x01\x01".encode())


def test_a_token_lets_its_principal_in_until_it_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with provider() as issuer, guarded(tmp_path, kafka="127.0.0.1:0", oidc_issuer=issuer, oidc_audience=AUDIENCE) as one:
            async with kafka_caller(one.broker) as client:
                for _ in range(2):
                    answer = await by_token(client, token(issuer), authorization_id="billing")
                    assert answer.error_code == 0
                    assert 600_000 < answer.session_lifetime_ms <= 630_000, "the token's end, and the leeway of clocks"
                    assert (await client.ask("Metadata", 12, topics=[])).brokers
            async with kafka_caller(one.broker) as client:
                answer = await by_token(client, token(issuer, lasts_s=-28))
                assert 0 < answer.session_lifetime_ms <= 2_000
                await asyncio.sleep(answer.session_lifetime_ms / 1000 + 0.05)
                client.send("Metadata", 12, topics=[])
                assert await client.is_closed()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_wrong_token_gets_a_challenge_and_then_the_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with provider() as issuer, guarded(tmp_path, kafka="127.0.0.1:0", oidc_issuer=issuer, oidc_audience=AUDIENCE) as one:
            right = token(issuer)
            for text, authorization_id in (
                (right[:-4] + "AAAA", ""),
                ("garbage", ""),
                (right, "root"),
                (right + "\x01auth=Bearer other", ""),
            ):
                async with kafka_caller(one.broker) as client:
                    challenge = await by_token(client, text, authorization_id)
                    assert challenge.error_code == 0
                    assert json.loads(challenge.auth_bytes) == {"status": "invalid_token"}
                    answer = await client.ask("SaslAuthenticate", 2, auth_bytes=b"\x01")
                    assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, FAILURE_TEXT)
                    assert await client.is_closed()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_certificate_names_the_principal_and_sasl_may_name_another(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "certificates", client="billing")
    tls = TlsSettings(tls_cert_file=files.cert, tls_key_file=files.key, tls_client_ca_file=files.ca, tls_client_auth="optional")

    def context(*, shown: bool) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(files.ca))
        if shown:
            made.load_cert_chain(files.client_cert, files.client_key)
        return made

    async def scenario() -> None:
        async with guarded(tmp_path, kafka="127.0.0.1:0", tls=tls) as one:
            async with kafka_caller(one.broker, tls=context(shown=True)) as client:
                assert (await client.ask("Metadata", 12, topics=[])).brokers
                [connection] = one.broker._kafka.requests.open  # type: ignore[union-attr]
                assert connection.authenticated is not None
                assert (connection.authenticated.principal, connection.authenticated.credential) == ("billing", "certificate")
                assert (await logged_in(client, ADMIN_KEY)).error_code == 0
                assert connection.authenticated.principal == "admin"
            async with kafka_caller(one.broker, tls=context(shown=False)) as client:
                client.send("Metadata", 12, topics=[])
                assert await client.is_closed()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
