"""Tokens of an OpenID provider, which is played here: what is accepted, and what must never be."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.access import oidc
from gateway.access.oidc import OidcVerifier
from gateway.access.settings import AccessSettings
from metadata.errors import InvalidArgument, Unauthenticated, Unavailable
from tests.simulation.virtual_loop import run

ISSUER, AUDIENCE = "https://id.example", "tidelog"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


ANSWERS_S = 0.01


class Provider:
    """Serves its keys and counts the requests."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": RSA_KEY.public_key()}
        self.issuer = ISSUER
        self.asked = 0
        self.away = False

    async def fetch(self, url: str) -> bytes:
        await asyncio.sleep(ANSWERS_S)
        if self.away:
            raise OSError("no route to it")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            self.asked += 1
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys"}).encode()
        assert url == f"{ISSUER}/keys"
        return json.dumps({"keys": [self._reported(kid, key) for kid, key in self.keys.items()]}).encode()

    def _reported(self, kid: str, key: Any) -> dict[str, Any]:
        if isinstance(key, bytes):
            return {"kty": "oct", "k": base64.urlsafe_b64encode(key).decode(), "kid": kid}
        kind = jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePublicKey) else jwt.algorithms.RSAAlgorithm
        return json.loads(kind.to_jwk(key)) | {"kid": kid, "use": "sig"}  # type: ignore[no-any-return]  # JSON


def token(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "billing", "exp": time.time() + 600} | claims
    head = {} if kid is None else {"kid": kid}
    return jwt.encode({name: value for name, value in said.items() if value is not None}, key, algorithm=algorithm, headers=head)


def verify(scenario: Callable[[OidcVerifier, Provider], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        provider = Provider()
        terms = AccessSettings(**{"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, **settings})
        tokens = OidcVerifier(terms, provider.fetch)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(tokens.run())
            await scenario(tokens, provider)
            reading.cancel()

    run(whole())


async def refused(tokens: OidcVerifier, text: str) -> str:
    with pytest.raises(Unauthenticated) as why:
        await tokens.verify(text)
    signature = text.rpartition(".")[2]
    assert len(signature) < 20 or signature not in why.value.message + why.value.hint
    return why.value.message


def test_a_token_of_the_provider_names_its_principal_until_it_expires() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        expires = int(time.time()) + 600
        found = await tokens.verify(token(exp=expires))
        assert (found.principal, found.expires_at_ms) == ("billing", 1000 * (expires + oidc.LEEWAY_S))
        provider.keys["two"] = EC_KEY.public_key()
        await asyncio.sleep(60)
        assert (await tokens.verify(token(EC_KEY, "ES256", "two", sub="reports"))).principal == "reports"

    verify(scenario)


def test_another_claim_may_name_the_principal() -> None:
    async def scenario(tokens: OidcVerifier, _: Provider) -> None:
        assert (await tokens.verify(token(email="a@example"))).principal == "a@example"
        assert "names no principal" in await refused(tokens, token())
        assert "names no principal" in await refused(tokens, token(email=7))
        assert "can't name a principal" in await refused(tokens, token(email="*"))

    verify(scenario, oidc_principal_claim="email")


def test_tokens_of_others_for_others_and_of_other_times_are_refused() -> None:
    async def scenario(tokens: OidcVerifier, _: Provider) -> None:
        assert "expired" in await refused(tokens, token(exp=time.time() - 60))
        assert await tokens.verify(token(exp=time.time() - 5))  # clocks differ
        await refused(tokens, token(nbf=time.time() + 300))
        await refused(tokens, token(aud="another"))
        await refused(tokens, token(aud=None))
        await refused(tokens, token(iss="https://evil.example"))
        await refused(tokens, token(exp=None))
        await refused(tokens, token(OTHER_KEY))
        await refused(tokens, token()[:-8] + "AAAAAAAA")
        await refused(tokens, token(EC_KEY, "ES256"))
        for nonsense in ("", "a.b.c", "....", "é", "tlk_no", "x" * 20_000):
            await refused(tokens, nonsense)

    verify(scenario)


def test_a_token_without_a_signature_or_with_a_shared_secret_is_none() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        public = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        provider.keys["shared"] = b"s" * 32
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "admin", "exp": time.time() + 600}
        assert "public key" in await refused(tokens, jwt.encode(said, "", algorithm="none", headers={"kid": "one"}))
        forged = jwt.encode(said, b"s" * 32, algorithm="HS256", headers={"kid": "shared"})
        assert "public key" in await refused(tokens, forged)
        head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=")
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=")
        import hmac

        mac = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, "sha256")).rstrip(b"=")
        assert "public key" in await refused(tokens, (head + b"." + body + b"." + mac).decode())

    verify(scenario)


def test_a_rotated_key_is_found_and_one_that_was_taken_away_is_forgotten() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        await tokens.verify(token())
        provider.keys = {"two": OTHER_KEY.public_key()}
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        assert await tokens.verify(token(OTHER_KEY, kid="two"))
        await refused(tokens, token())
        assert provider.asked == 2

    verify(scenario)


def test_a_crowd_with_unknown_keys_asks_the_provider_once() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        await tokens.verify(token())
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        await asyncio.gather(*(refused(tokens, token(kid=f"k{number}")) for number in range(50)))
        assert provider.asked == 2

    verify(scenario)


def test_a_caller_that_hangs_up_does_not_keep_the_keys_from_the_others() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        impatient = asyncio.ensure_future(tokens.verify(token(kid="unknown")))
        await asyncio.sleep(ANSWERS_S / 2)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert await tokens.verify(token())
        assert provider.asked == 1

    verify(scenario)


def test_a_token_holds_no_longer_than_the_key_that_has_signed_it() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        reported: list[bool] = []
        found = await tokens.verify(token())
        tokens.subscribe(lambda: reported.append(found.holds()))
        provider.keys["two"] = OTHER_KEY.public_key()
        await asyncio.sleep(2 * oidc.KEYS_AGE_S)
        assert found.holds()
        provider.keys = {"one": OTHER_KEY.public_key()}
        await asyncio.sleep(2 * oidc.KEYS_AGE_S)
        assert reported == [False]

    verify(scenario)


def test_a_token_with_a_deeply_nested_header_is_refused() -> None:
    async def scenario(tokens: OidcVerifier, _: Provider) -> None:
        nested = base64.urlsafe_b64encode(b"[" * 6_000).decode().rstrip("=")
        assert "neither an API key nor a token" in await refused(tokens, f"{nested}.e30.AAAA")

    verify(scenario)


def test_a_token_is_one_text() -> None:
    async def scenario(tokens: OidcVerifier, _: Provider) -> None:
        for written_otherwise in (token() + "!", token() + "=", " " + token(), token().replace(".", ". ")):
            await refused(tokens, written_otherwise)

    verify(scenario)


def test_known_keys_hold_while_the_provider_is_away() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        provider.away = True
        with pytest.raises(Unavailable):
            await tokens.verify(token())
        provider.away = False
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        assert await tokens.verify(token())
        provider.away = True
        await asyncio.sleep(10 * oidc.KEYS_AGE_S)
        assert await tokens.verify(token(exp=time.time() + 100_000))
        provider.away, provider.issuer, provider.keys = False, "https://evil.example", {"one": OTHER_KEY.public_key()}
        await asyncio.sleep(10 * oidc.KEYS_AGE_S)
        assert await tokens.verify(token(exp=time.time() + 100_000))

    verify(scenario)


def test_a_key_that_was_taken_away_counts_no_more_soon_after_the_provider_is_back() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        found = await tokens.verify(token(exp=time.time() + 100_000))
        provider.away = True
        await asyncio.sleep(oidc.KEYS_AGE_S + oidc.ASK_AGAIN_S)
        assert found.holds()
        provider.away, provider.keys = False, {"two": OTHER_KEY.public_key()}
        await asyncio.sleep(2 * oidc.ASK_AGAIN_S)
        assert not found.holds()
        asked = provider.asked
        await asyncio.sleep(oidc.KEYS_AGE_S / 2)
        assert provider.asked == asked

    verify(scenario)


def test_a_provider_that_lists_no_keys_has_taken_all_away() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        found = await tokens.verify(token())
        provider.keys = {}
        await asyncio.sleep(oidc.KEYS_AGE_S + 1)
        assert not found.holds()
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        assert "does not know" in await refused(tokens, token())

    verify(scenario)


def test_a_token_whose_key_cannot_be_asked_for_yet_may_be_shown_again() -> None:
    async def scenario(tokens: OidcVerifier, provider: Provider) -> None:
        await tokens.verify(token())
        provider.keys = {"two": OTHER_KEY.public_key()}
        with pytest.raises(Unavailable):
            await tokens.verify(token(OTHER_KEY, kid="two"))
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        assert await tokens.verify(token(OTHER_KEY, kid="two"))
        await refused(tokens, token())  # its key was taken away, which is certain
        provider.away = True
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        with pytest.raises(Unavailable):
            await tokens.verify(token(kid="three"))
        provider.away = False
        await asyncio.sleep(oidc.ASK_AGAIN_S + 1)
        assert provider.asked == 3, "the failed reading was repeated"
        await asyncio.sleep(oidc.ASK_AGAIN_S)
        await refused(tokens, token(kid="three"))

    verify(scenario)


def test_a_provider_without_tls_is_not_asked_beyond_this_machine() -> None:
    AccessSettings(oidc_issuer="http://127.0.0.1:4444", oidc_audience="x")
    for wrong in ("http://id.example", "id.example", "ftp://id.example"):
        with pytest.raises(InvalidArgument):
            AccessSettings(oidc_issuer=wrong, oidc_audience="x")
    with pytest.raises(InvalidArgument):
        AccessSettings(oidc_issuer=ISSUER)
