"""Signing in at an OpenID provider: the whole flow at a real broker and a small real provider, and what must never sign in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.access.settings import AccessSettings
from gateway.settings import BrokerSettings, GatewaySettings
from metadata.errors import InvalidArgument
from tests.kit.gateway.access.guarded_broker import Guarded, guarded
from tests.kit.gateway.http_client import Answer
from tests.kit.gateway.oidc_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, OidcProvider, serving
from tests.kit.gateway.small_broker import PATIENCE_S

pytestmark = pytest.mark.slow

REDIRECT = "http://127.0.0.1:9/console/oidc/callback"


class Browser:
    """Keeps cookies as a browser does, and goes to the provider and back."""

    def __init__(self, broker: Guarded) -> None:
        self._http = broker.http
        self.cookies: dict[str, str] = {}

    async def get(self, path: str) -> Answer:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        async with self._http.session.get(path, headers={"cookie": cookie}, allow_redirects=False) as response:
            for header in response.headers.getall("set-cookie", []):
                name, _, value = header.partition(";")[0].partition("=")
                self.cookies[name] = value
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, headers, await response.read())

    async def to_provider(self, next_page: str = "/console/cluster") -> str:
        """Begins a sign-in, and returns the address at the provider."""
        answer = await self.get(f"/console/oidc/start?next={next_page.replace('/', '%2F')}")
        assert answer.status == 303
        return answer.headers["location"]

    async def at_provider(self, location: str) -> str:
        """Signs in there, and returns the path of the console that the provider leads to."""
        async with self._http.session.get(location, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            back = response.headers["location"]
        assert back.startswith(f"{REDIRECT}?")
        return back.removeprefix("http://127.0.0.1:9")

    async def signed_in(self) -> Answer:
        return await self.get(await self.at_provider(await self.to_provider()))


def alert(answer: Answer) -> str:
    found = re.search(r'role="alert">([^<]+)<', answer.body.decode())
    assert found is not None
    return unescape(found[1])


def with_provider(
    folder: Path, scenario: Callable[[Guarded, OidcProvider], Awaitable[None]], *, has_secret: bool = True, audience: str = AUDIENCE
) -> None:
    async def whole() -> None:
        secret_file = folder / "client-secret"
        secret_file.write_text(CLIENT_SECRET + "\n")
        provider = OidcProvider(redirect=REDIRECT)
        provider.secret = CLIENT_SECRET if has_secret else None
        async with asyncio.timeout(PATIENCE_S), serving(provider):
            settings = GatewaySettings(
                console=True,
                console_oidc_client_id=CLIENT_ID,
                console_oidc_client_secret_file=secret_file if has_secret else None,
                console_oidc_redirect=REDIRECT,
            )
            async with guarded(folder, gateway=settings, oidc_issuer=provider.issuer, oidc_audience=audience) as broker:
                await scenario(broker, provider)

    asyncio.run(whole())


@pytest.mark.parametrize("has_secret", [True, False])
def test_a_reader_signs_in_at_the_provider_and_has_the_rights_of_the_token(has_secret: bool, tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        for name in ("orders", "salaries"):
            await broker.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        await broker.allow("ann", "read", "topic", "orders")
        browser = Browser(broker)
        page = (await browser.get("/console/sign-in?next=%2Fconsole%2Fgroups")).body.decode()
        assert 'href="/console/oidc/start?next=%2Fconsole%2Fgroups"' in page
        answer = await browser.signed_in()
        assert (answer.status, answer.headers["location"]) == (303, "/console/cluster")
        assert browser.cookies["tidelog_console_sign_in"] == ""
        html = (await browser.get("/console/topics")).body.decode()
        assert "orders" in html
        assert "salaries" not in html
        assert provider.refused == []

    with_provider(tmp_path, scenario, has_secret=has_secret)


def test_a_sign_in_gives_the_browser_no_secret_and_nothing_that_scripts_can_read(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        browser = Browser(broker)
        asked = parse_qs(urlsplit(await browser.to_provider()).query)
        assert len(asked["code_challenge"][0]) == 43
        assert {"state", "nonce"} <= asked.keys()
        started = await browser.get("/console/oidc/start")
        cookie = started.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Lax", "Path=/console/oidc"} <= set(cookie.split("; "))
        again = parse_qs(urlsplit(started.headers["location"]).query)
        assert not {again[name][0] for name in ("state", "nonce", "code_challenge")} & {
            asked[name][0] for name in ("state", "nonce", "code_challenge")
        }

    with_provider(tmp_path, scenario)


def test_a_callback_without_the_cookie_of_its_flow_signs_in_no_one(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        victim, other = Browser(broker), Browser(broker)
        back = await other.at_provider(await other.to_provider())
        assert "begun in another browser" in alert(await victim.get(back))
        await victim.to_provider()
        assert "belongs to another sign-in" in alert(await victim.get(back)), "the state is of another flow"
        victim.cookies["tidelog_console_sign_in"] = victim.cookies.get("tidelog_console", "x")
        assert "begun in another browser" in alert(await victim.get(back)), "a session's cookie is none of a flow"
        assert (await victim.get("/console/topics")).status == 303
        assert (await other.get(back)).status == 303

    with_provider(tmp_path, scenario)


def test_a_code_signs_in_once(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        browser = Browser(broker)
        back = await browser.at_provider(await browser.to_provider())
        flow = browser.cookies["tidelog_console_sign_in"]
        assert (await browser.get(back)).status == 303
        repeated = Browser(broker)
        repeated.cookies["tidelog_console_sign_in"] = flow
        assert "refused the code: invalid_grant" in alert(await repeated.get(back))

    with_provider(tmp_path, scenario)


def test_a_refusal_of_the_provider_is_shown_as_text(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        provider.error = "access_denied"
        answer = await Browser(broker).signed_in()
        assert answer.status == 403
        assert "&lt;b&gt;not today&lt;/b&gt;" in answer.body.decode()
        provider.error, provider.secret = "", "another secret"
        assert "invalid_client" in alert(await Browser(broker).signed_in())

    with_provider(tmp_path, scenario)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"nonce": "of another flow"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"aud": "another client"}, "for another client"),
        ({"exp": 1_000}, "has expired"),
        ({"iss": "https://evil.example"}, "for another client"),
    ],
)
def test_an_id_token_of_another_flow_client_or_time_signs_in_no_one(claims: dict[str, object], said: str, tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        provider.id_claims = claims
        assert said in alert(await Browser(broker).signed_in())

    with_provider(tmp_path, scenario)


def test_a_token_that_the_api_does_not_accept_signs_in_no_one_and_the_id_token_may_take_its_place(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        provider.access_claims = {"aud": "another API"}
        assert "The broker accepts no token of the provider" in alert(await Browser(broker).signed_in())
        provider.id_claims = {"aud": [CLIENT_ID, AUDIENCE]}
        assert (await Browser(broker).signed_in()).status == 303
        provider.opaque_access_token = "opaque"
        assert (await Browser(broker).signed_in()).status == 303

    with_provider(tmp_path, scenario)


def test_a_token_that_is_too_long_for_a_cookie_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        provider.access_claims = {"groups": [f"group-{number}" for number in range(400)]}
        browser = Browser(broker)
        said = alert(await browser.signed_in())
        assert "The console keeps it in a cookie, which takes 2,500" in said
        assert (await browser.get("/console/topics")).status == 303

    with_provider(tmp_path, scenario)


def test_a_long_address_of_the_next_page_still_begins_a_sign_in(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        browser = Browser(broker)
        answer = await browser.get(await browser.at_provider(await browser.to_provider("/console/" + "x" * 4_000)))
        assert (answer.status, answer.headers["location"]) == (303, "/console/topics")

    with_provider(tmp_path, scenario)


def test_more_exchanges_than_the_broker_makes_at_a_time_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.console.exchange_slots.EXCHANGES_MAX", 0)

    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        answer = await Browser(broker).signed_in()
        assert answer.status == 503
        assert "Load this page again in a few seconds" in alert(answer)

    with_provider(tmp_path, scenario)


def test_a_browser_in_which_a_reader_has_signed_in_is_let_in_where_unknown_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        known, other = Browser(broker), Browser(broker)
        answer = await known.signed_in()
        assert answer.status == 303
        assert {"tidelog_console_known"} <= known.cookies.keys()
        assert provider.subject not in known.cookies["tidelog_console_known"]
        monkeypatch.setattr("gateway.console.exchange_slots.UNKNOWN_MAX", 0)
        assert (await other.signed_in()).status == 503
        assert (await known.signed_in()).status == 303
        assert (await other.get("/console/topics")).status == 303, "the cookie alone is no session"
        other.cookies = {"tidelog_console_known": known.cookies["tidelog_console_known"]}
        assert (await other.get("/console/topics")).headers["location"].startswith("/console/sign-in")

    with_provider(tmp_path, scenario)


def test_a_provider_that_names_another_issuer_leaves_the_sign_in_by_key(tmp_path: Path) -> None:
    async def scenario(broker: Guarded, provider: OidcProvider) -> None:
        provider.issuer = "http://127.0.0.1:1"  # discovery names another issuer than the settings
        answer = await Browser(broker).get("/console/oidc/start")
        assert answer.status == 403
        assert "is not the issuer of the settings" in alert(answer)
        assert 'name="key"' in answer.body.decode()

    with_provider(tmp_path, scenario)


@pytest.mark.parametrize(
    "settings",
    [
        {"console_oidc_redirect": ""},
        {"console_oidc_redirect": "http://console.example/console/oidc/callback"},
        {"console_oidc_redirect": "https://console.example/elsewhere"},
        {"console_oidc_scope": "profile"},
    ],
)
def test_settings_that_cannot_sign_in_are_refused_at_the_start(settings: dict[str, str]) -> None:
    whole = {"console_oidc_client_id": "c", "console_oidc_redirect": "https://console.example/console/oidc/callback"}
    with pytest.raises(InvalidArgument):
        GatewaySettings(**whole | settings)  # type: ignore[arg-type]  # they are texts


def test_a_client_without_a_provider_is_refused_at_the_start(tmp_path: Path) -> None:
    gateway = GatewaySettings(console_oidc_client_id="c", console_oidc_redirect="https://console.example/console/oidc/callback")
    with pytest.raises(InvalidArgument, match="needs authentication and oidc_issuer"):
        BrokerSettings(data_dir=tmp_path, gateway=gateway, access=AccessSettings(authentication=True))
