"""The console of a broker with authentication in a real browser: signing in, explanations, the audit log, readers without rights.

Pictures and axe as in test_browser.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit.forked_tidelog import ForkedBroker
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, bearer
from tests.kit.gateway.console_browser import HOSTILE, IN_CHROMIUM, Watched, look
from tests.kit.gateway.oidc_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, OidcProvider, serving_in_a_thread
from tests.kit.servers import free_port
from tidelog.testing.broker_process import BrokerProcess

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("guarded-console")
    key_file = folder / "admin.key"
    key_file.write_text(ADMIN_KEY)
    flags = ["--authentication", "true", "--admin-key-file", str(key_file), "--audit-log", str(folder / "audit.jsonl")]
    with ForkedBroker(folder, flags=flags) as process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def console_url(broker: BrokerProcess) -> str:
    return broker.http_url


def sign_in(watched: Watched, key: str) -> None:
    watched.go("/sign-in")
    watched.page.get_by_label("API key").fill(key)
    watched.page.get_by_role("button", name="Sign in").click()
    watched.page.get_by_role("heading", name="Topics").wait_for()


def new_key(watched: Watched, principal: str) -> str:
    made = watched.page.request.post(f"{watched.url}/v1/keys", data={"principal": principal}, headers=bearer(ADMIN_KEY))
    text: str = made.json()["text"]
    return text


def test_an_administrator_finds_out_why_a_call_was_refused(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    principal = f"ann {HOSTILE[:20]} {request.node.callspec.id}"
    acl = {"principal": principal, "operation": "read", "resource": "topic", "name": "ord", "pattern": "prefix"}
    assert page.request.post(f"{watched.url}/v1/acls", data=acl, headers=bearer(ADMIN_KEY)).ok
    key = new_key(watched, principal)
    refused = page.request.post(f"{watched.url}/v1/topics", data={"name": "orders"}, headers=bearer(key))
    assert refused.status == 403
    watched.go("/sign-in")
    look(watched, "sign-in")
    sign_in(watched, ADMIN_KEY)
    watched.go("/access")
    page.get_by_role("link", name="Audit log").click()
    page.get_by_label("Principal", exact=True).fill(principal)
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="Why was").wait_for()
    look(watched, "audit-log")
    page.get_by_role("link", name="Why was").click()
    page.get_by_role("heading", name="may not create topic orders").wait_for()
    assert "operation=create" in page.url, "the address can be shared"
    look(watched, "explained-refusal")
    page.get_by_label("Wants to").select_option("read")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("These ACLs allow it").wait_for()
    look(watched, "explained-allowance")


def test_a_reader_without_rights_sees_each_page_refused_or_empty(watched: Watched, request: pytest.FixtureRequest) -> None:
    page = watched.page
    sign_in(watched, new_key(watched, f"powerless-{request.node.callspec.id}"))
    for path in ("/topics", "/groups", "/cluster"):
        watched.go(path)
    look(watched, "cluster-without-rights")
    for path in ("/access", "/access/explain?principal=ann&operation=read&resource=topic&name=x", "/access/audit"):
        answer = page.goto(f"{watched.url}/console{path}")
        assert answer is not None
        assert answer.status == 403
        page.get_by_role("heading", name="PERMISSION_DENIED").wait_for()
    look(watched, "refused")
    # The browser itself reports each refusal.
    watched.faults = [fault for fault in watched.faults if "403" not in fault]


def test_a_reader_signs_in_at_a_provider_of_another_site(browser: Browser, tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    key_file, secret_file = tmp_path / "admin.key", tmp_path / "client-secret"
    key_file.write_text(ADMIN_KEY)
    secret_file.write_text(CLIENT_SECRET)
    # To the browser, localhost and 127.0.0.1 are two sites: it withholds the session's cookie when the provider leads back.
    provider = OidcProvider(redirect=f"http://{http}/console/oidc/callback", host="localhost")
    provider.subject = "root"
    with serving_in_a_thread(provider):
        flags = ["--authentication", "true", "--admin-key-file", str(key_file), "--admin-principals", "root"]
        flags += ["--oidc-issuer", provider.issuer, "--oidc-audience", AUDIENCE, "--console-oidc-client-id", CLIENT_ID]
        flags += ["--console-oidc-client-secret-file", str(secret_file), "--console-oidc-redirect", provider.redirect]
        with ForkedBroker(tmp_path, flags=flags) as process:
            process.http_address = http
            process.start()
            context = browser.new_context()
            watched = Watched(context.new_page(), process.http_url)
            page = watched.page
            watched.go("/sign-in?next=%2Fconsole%2Faccess")
            look(watched, "sign-in-oidc")
            page.get_by_role("link", name="Sign in at your identity provider").click()
            page.get_by_role("heading", name="API keys").wait_for()
            assert page.url == f"{process.http_url}/console/access"
            page.get_by_role("button", name="Sign out").click()
            page.get_by_role("heading", name="Sign in").wait_for()
            context.close()
            assert [fault for fault in watched.faults if not fault.startswith(f"foreign: {provider.issuer}/authorize")] == []
