"""Which requests a broker without authentication takes for those of another site's page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.settings import AccessSettings
from gateway.net.host_check import HostCheck, is_loopback_name
from gateway.process.compactor_http import CompactorHttp
from gateway.telemetry.registry import MetricsRegistry
from metadata.errors import Denied, InvalidArgument
from tests.kit.gateway.http_client import Client
from tests.kit.gateway.small_broker import SmallBroker, with_broker

LOOPBACK = HostCheck(allowed=("proxy.example",), is_loopback=True)
ELSEWHERE = HostCheck(allowed=(), is_loopback=False)
HERE = b"127.0.0.1:8080"


def is_taken(check: HostCheck, *, method: str = "GET", host: bytes | None = HERE, origin: bytes | None = None) -> bool:
    headers = [(name, value) for name, value in ((b"host", host), (b"origin", origin)) if value is not None]
    try:
        check.check(method, headers)
    except Denied:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1:8080",
        b"127.0.0.1",
        b"127.9.9.9:1",
        b"[::1]:8080",
        b"[::1]",
        b"localhost:8080",
        b"LocalHost.",
        b"tidelog.localhost:8080",
        b"proxy.example:8080",
        b"Proxy.Example",
    ],
)
def test_a_loopback_listener_takes_names_of_the_loopback_and_those_that_are_allowed(host: bytes) -> None:
    for method in ("GET", "POST"):
        assert is_taken(LOOPBACK, method=method, host=host)


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:8080",
        b"evil.example",
        b"",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"notlocalhost",
        b"127.0.0.1@evil.example",
        b"evil.example#127.0.0.1",
        b"evil.example/localhost",
        b"10.0.0.7:8080",
        b"0.0.0.0:8080",
        b"[::1",
        b"127.0.0.1:port",
        b"\xff",
        b"2130706433",
    ],
)
def test_a_loopback_listener_refuses_every_other_name(host: bytes) -> None:
    for method in ("GET", "POST"):
        assert not is_taken(LOOPBACK, method=method, host=host)
    assert not is_taken(LOOPBACK, host=host), "it is not remembered either"


@given(st.text(max_size=40) | st.from_regex(r"(evil\.)?(127\.0\.0\.1|localhost|\[::1\])(\.evil|@evil|:80|#|/|\?)*", fullmatch=True))
def test_no_name_that_a_browser_would_look_up_elsewhere_is_taken(host: str) -> None:
    try:
        raw = host.encode("latin-1")
    except UnicodeEncodeError:
        return
    if is_taken(HostCheck(allowed=(), is_loopback=True), host=raw):
        name = host.strip().lower()
        bare = name[1 : name.index("]")] if name.startswith("[") else name.partition(":")[0]
        assert is_loopback_name(bare.rstrip("."))


def test_one_wrong_host_among_several_is_enough() -> None:
    with pytest.raises(Denied):
        LOOPBACK.check("GET", [(b"host", HERE), (b"host", b"evil.example")])
    LOOPBACK.check("GET", [])  # HTTP/1.0: no browser


@pytest.mark.parametrize("check", [LOOPBACK, ELSEWHERE], ids=["loopback", "elsewhere"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"http://evil.example:8080", b"null", b"", b"http://127.0.0.1@evil.example"]
)
def test_a_page_of_another_site_changes_nothing(check: HostCheck, method: str, origin: bytes) -> None:
    assert not is_taken(check, method=method, origin=origin)
    assert is_taken(check, method="GET", origin=origin)  # whose answer no page of another site may read


def test_pages_of_this_machine_and_of_the_broker_itself_may_change_things() -> None:
    assert is_taken(LOOPBACK, method="POST", origin=b"http://localhost:3000")
    assert is_taken(LOOPBACK, method="POST", origin=b"https://proxy.example")
    assert is_taken(ELSEWHERE, method="POST", host=b"broker.example:8080", origin=b"http://Broker.Example:8080")
    assert not is_taken(ELSEWHERE, method="POST", host=b"broker.example:8080", origin=b"http://broker.example:9999")
    assert is_taken(ELSEWHERE, method="POST", host=b"broker.example")


def test_with_authentication_only_what_shows_no_key_is_checked_since_browsers_show_certificates_by_themselves() -> None:
    check = HostCheck(allowed=(), is_loopback=True, asks_for_credentials=True)
    foreign = [(b"host", b"broker.example"), (b"origin", b"https://evil.example")]
    with pytest.raises(Denied, match="without an API key or a token"):
        check.check("POST", foreign)
    check.check("POST", [*foreign, (b"authorization", b"Bearer tlk_x")])
    check.check("GET", foreign)
    with pytest.raises(Denied):
        LOOPBACK.check("POST", [*foreign, (b"authorization", b"Bearer tlk_x")])  # not checked there


@pytest.mark.parametrize("scheme", [b"Basic ", b"basic ", b" BASIC ", b"Basic\t"])
def test_credentials_of_a_browser_s_login_window_allow_pages_of_other_sites_no_changes(scheme: bytes) -> None:
    check = HostCheck(allowed=("console.example",), is_loopback=False, asks_for_credentials=True)
    shown = [(b"host", b"broker.example"), (b"authorization", scheme + b"YTpi")]
    with pytest.raises(Denied, match="without an API key or a token"):
        check.check("POST", [(b"authorization", scheme + b"YTpi"), *shown, (b"origin", b"https://evil.example")])
    check.check("POST", [*shown, (b"origin", b"https://console.example")])
    check.check("POST", [*shown, (b"origin", b"https://broker.example")])
    check.check("POST", shown)  # no browser
    check.check("GET", [*shown, (b"origin", b"https://evil.example")])


def test_over_tls_the_certificate_names_the_host() -> None:
    assert is_taken(HostCheck(allowed=(), is_loopback=True, is_tls=True), host=b"broker.example")


def test_a_star_allows_all() -> None:
    check = HostCheck(allowed=AccessSettings(allowed_hosts="*").hosts, is_loopback=True)
    assert is_taken(check, method="POST", host=b"evil.example", origin=b"https://evil.example")


@pytest.mark.parametrize("hosts", ["http://a.example", "a.example:8080", "a b", "me@a"])
def test_allowed_hosts_are_names_alone(hosts: str) -> None:
    with pytest.raises(InvalidArgument, match="allowed_hosts"):
        AccessSettings(allowed_hosts=hosts)
    assert AccessSettings(allowed_hosts=" a.example, b.example,").hosts == {"a.example", "b.example"}


@pytest.mark.slow
def test_a_broker_refuses_a_rebound_name_and_a_post_from_another_site(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker) -> None:
        async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
            client = Client(session)
            for method, path in (("GET", "/v1/topics"), ("GET", "/livez"), ("POST", "/v1/producers"), ("GET", "/metrics")):
                reported = await client.refused(client.ask(method, path, headers={"host": "evil.example"}))
                assert reported == (403, "DENIED")
            # No body, so no Content-Type: a browser sends this without a preflight request.
            reported = await client.refused(client.ask("POST", "/v1/producers", headers={"origin": "https://evil.example"}))
            assert reported == (403, "DENIED")
            assert (await client.ask("POST", "/v1/producers")).status == 201
            assert (await client.get("/v1/topics", host="localhost")).status == 200

    with_broker(tmp_path, scenario)


@pytest.mark.slow
def test_a_compactor_refuses_them_as_well() -> None:
    async def scenario() -> None:
        endpoint = CompactorHttp(MetricsRegistry(), lambda: 0, allowed_hosts=("proxy.example",))
        address = await endpoint.start("127.0.0.1:0")
        try:
            async with aiohttp.ClientSession(f"http://{address}") as session:
                client = Client(session)
                assert (await client.get("/livez")).status == 200
                assert (await client.get("/livez", host="proxy.example")).status == 200
                refused = await client.get("/metrics", host="evil.example")
                assert refused.status == 403
                assert "'evil.example' is no name of the loopback" in refused.json["reason"]
        finally:
            await endpoint.stop()

    asyncio.run(scenario())
